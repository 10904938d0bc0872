"""Virtual nodes run together: the sums of the same virtual nodes one by one, but for rounding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from agents.trainer.data.arrays import ArraySource
from agents.trainer.model.keras_private import model_build
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.model.state import ModelState
from agents.trainer.step import prefetch
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.gradient_layout import FieldKind, message_read
from agents.trainer.step.merging import passes_plan
from agents.trainer.step.prefetch import JobData
from agents.trainer.step.stepper import local_rows
from agents.trainer.step.virtual_node import VirtualNode
from agents.trainer.validate.merging_trial import merging_try
from controlplane.core.protocol.wire import ReductionMode, StopCondition, StopKind
from tests.agents.trainer.local_jobs import membership_of, training_spec

NUM_EXAMPLES, BATCH_SIZE, NUM_VIRTUAL_NODES = 50, 23, 6  # slices of 3 and 4 examples
RANDOM = np.random.default_rng(2)
IMAGES = RANDOM.normal(size=(NUM_EXAMPLES, 8, 8, 3)).astype("float32")
ROWS = RANDOM.normal(size=(NUM_EXAMPLES, 6)).astype("float32")
TOKENS = RANDOM.integers(1, 9, size=(NUM_EXAMPLES, 5))
CLASSES = RANDOM.integers(0, 4, size=NUM_EXAMPLES)
WEIGHTS = RANDOM.uniform(0.2, 2.0, size=NUM_EXAMPLES).astype("float32")
Job = tuple[keras.Model, tuple[Any, ...]]


def classifier(inputs: Any, features: Any, optimizer: Any = "adam") -> keras.Model:
    model = keras.Model(inputs, layers.Dense(4)(features))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def residual() -> Job:
    inputs = keras.Input((8, 8, 3))
    x = layers.RandomTranslation(0.1, 0.1)(inputs)
    x = layers.Conv2D(4, 3, padding="same", trainable=False)(x)
    y = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x))
    y = layers.GroupNormalization(2)(layers.Conv2D(4, 3, padding="same")(layers.ReLU()(y)))
    x = layers.SpatialDropout2D(0.3)(layers.Add()([x, y]))
    x = layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(x))
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, use_ema=True)
    return classifier(inputs, x, optimizer), (IMAGES, CLASSES)


def separable() -> Job:
    inputs = keras.Input((8, 8, 3))
    x = layers.DepthwiseConv2D(3, activation="gelu")(inputs)
    x = layers.MaxPooling2D()(layers.Conv2DTranspose(4, 3)(x))
    return classifier(inputs, layers.Flatten()(x)), (IMAGES, CLASSES)


def transformer() -> Job:
    inputs = keras.Input((5,))
    x = layers.Embedding(9, 8)(inputs)
    x = x + layers.MultiHeadAttention(2, 4, dropout=0.2)(x, x, use_causal_mask=True)
    x = layers.GaussianNoise(0.1)(layers.LayerNormalization()(x))
    return classifier(inputs, layers.Flatten()(x)), (TOKENS, CLASSES, WEIGHTS)


def recurrent() -> Job:
    inputs = keras.Input((5,))
    x = layers.Embedding(9, 4, mask_zero=True)(inputs)
    return classifier(inputs, layers.LSTM(6, recurrent_dropout=0.2)(x)), (TOKENS, CLASSES)


def masked() -> Job:
    inputs = keras.Input((5,))
    x = layers.Dropout(0.2)(layers.Embedding(9, 4, mask_zero=True)(inputs))
    tokens = TOKENS * (np.arange(5) <= CLASSES[:, None])
    return classifier(inputs, layers.Dense(4)(x), "sgd"), (tokens, tokens % 4)


def several_outputs() -> Job:
    class Penalised(layers.Layer):
        def call(self, inputs: Any) -> Any:
            self.add_loss(0.1 * ops.mean(ops.square(inputs)))
            return inputs

    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    x = Penalised()(layers.Dense(5, kernel_regularizer="l2")(layers.Concatenate()([a, b])))
    model = keras.Model({"a": a, "b": b}, {"p": layers.Dense(1)(x), "q": layers.Dense(2)(x)})
    model.compile(
        "sgd",
        {"p": "mse", "q": keras.losses.MeanAbsoluteError(reduction="sum")},
        metrics={"p": ["mae"]},
        weighted_metrics={"q": ["mse"]},
    )
    y = {"p": ROWS[:, :1], "q": ROWS[:, 1:3]}
    return model, ({"a": ROWS, "b": ROWS[::-1]}, y, {"p": WEIGHTS, "q": WEIGHTS[::-1]})


def counting() -> Job:
    class Counter(layers.Layer):
        def build(self, _: Any) -> None:
            self.calls = self.add_weight(
                shape=(), dtype="int32", initializer="zeros", trainable=False
            )

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                self.calls.assign_add(1)
            return inputs

    inputs = keras.Input((6,))
    x = layers.AlphaDropout(0.2)(Counter()(layers.Dense(8, "selu")(inputs)))
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(x))
    model.compile("rmsprop", "binary_crossentropy", metrics=[keras.metrics.AUC(num_thresholds=9)])
    return model, (ROWS, (CLASSES > 1)[:, None].astype("float32"))


def half_precision() -> Job:
    inputs = keras.Input((6,))
    x = layers.Dense(8, "tanh", dtype="mixed_float16")(inputs)
    x = layers.Dropout(0.5)(layers.BatchNormalization()(x))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    return classifier(inputs, x, optimizer), (ROWS, CLASSES)


def plain() -> Job:
    inputs = keras.Input((6,))
    return classifier(inputs, layers.Dense(4)(inputs), "sgd"), (ROWS, CLASSES)


SLOW = (transformer, recurrent, separable, counting, several_outputs, half_precision)
JOBS: list[Callable[[], Job]] = [
    residual,
    separable,
    transformer,
    recurrent,
    masked,
    several_outputs,
    counting,
    half_precision,
]
#: Jobs as parameters; slow ones are nightly.
TRIED = [
    pytest.param(make, id=make.__name__, marks=pytest.mark.nightly if make in SLOW else ())
    for make in JOBS
]


class Steps:
    """The traced steps of a job in fast mode, over a lone trainer's virtual nodes."""

    def __init__(self, job: Job, is_merged: bool, most_examples: int) -> None:
        model, arrays = job
        source = ArraySource(arrays, "data.train")
        sample = source.fetch(np.arange(2))
        model_build(model, sample)
        self.state = ModelState(model)
        self.functions = StepFunctions(model, self.state, sample, is_merged=is_merged)
        spec = training_spec(
            num_virtual_nodes=NUM_VIRTUAL_NODES,
            global_batch_size=BATCH_SIZE,
            reduction=ReductionMode.FAST,
        )
        schedule = TrainingSchedule(
            NUM_EXAMPLES, NUM_EXAMPLES, BATCH_SIZE, StopCondition(kind=StopKind.EPOCHS, limit=1)
        )
        specs = tuple(self.functions.example_specs)
        data = JobData(spec, schedule, source, source, specs, len(self.state.seeds))
        self.data = dataclasses.replace(data, pass_examples=most_examples if is_merged else None)
        self.planner = Planner(spec, membership_of({0: tuple(range(NUM_VIRTUAL_NODES))}), (0,), 0)

    def vector(self, place: Progress) -> Any:
        """Give the sums of the batch at `place`."""
        batch = self.data.local_batch(self.planner, self.data.order(place), place)
        is_train = place.activity is Activity.TRAIN
        compute = self.functions.turns[0].train if is_train else self.functions.validate
        return tf.reduce_sum(local_rows(compute, batch), 0)


def compare(pieces: Any, found: Any, expected: Any, tolerance: float) -> None:
    """Compare sums; gradients by the largest of all, as some are zero but for rounding."""
    read = [
        (piece, np.asarray(mine), np.asarray(theirs))
        for (piece, mine), (_, theirs) in zip(
            message_read(pieces, found), message_read(pieces, expected), strict=True
        )
    ]
    gradients = [theirs for piece, _, theirs in read if piece.kind is FieldKind.GRADIENT]
    largest = max((float(np.abs(theirs).max()) for theirs in gradients), default=0.0)
    for piece, mine, theirs in read:
        if piece.kind in (FieldKind.SQUARE, FieldKind.MESSAGES):
            continue  # of as many gradients as there are passes
        scale = largest if piece.kind is FieldKind.GRADIENT else np.abs(theirs).max(initial=0.0)
        np.testing.assert_allclose(
            mine, theirs, rtol=0, atol=tolerance * max(1e-3, float(scale)), err_msg=str(piece)
        )


#: Whole batches in one pass or some, the short last batch, and validation.
PLACES = [
    Progress(step=1),
    Progress(),
    Progress(step=2, batch=2, examples=46),
    Progress(activity=Activity.VALIDATE),
]


@pytest.mark.parametrize(
    "most_examples",
    [
        pytest.param(1000, id="at once", marks=pytest.mark.nightly),
        pytest.param(8, id="two at a time"),
    ],
)
@pytest.mark.parametrize("make", TRIED)
def test_merged_virtual_nodes_give_what_single_ones_give(
    make: Callable[[], Job], most_examples: int
) -> None:
    keras.utils.set_random_seed(4)
    merged = Steps(make(), True, most_examples)
    assert merged.functions.not_merged_because == ""
    keras.utils.set_random_seed(4)
    apart = Steps(make(), False, most_examples)
    assert merged.functions.turns[0].pieces == apart.functions.turns[0].pieces
    tolerance = 3e-3 if make is half_precision else 1e-5
    for place in PLACES:
        is_train = place.activity is Activity.TRAIN
        pieces = apart.functions.turns[0].pieces if is_train else apart.functions.validate_pieces
        found, expected = merged.vector(place), apart.vector(place)
        compare(pieces, found, expected, tolerance)
        merged.functions.turns[0].apply(found) if is_train else merged.functions.count(found)
        apart.functions.turns[0].apply(expected) if is_train else apart.functions.count(expected)
    for mine, theirs in zip(merged.state.variables, apart.state.variables, strict=True):
        if not tf.as_dtype(mine.value.dtype).is_floating:
            np.testing.assert_array_equal(mine, theirs, err_msg=mine.path)


def test_a_custom_gradient_keeps_virtual_nodes_apart() -> None:
    """Vectorised, it would silently be that of its operations."""

    @tf.custom_gradient
    def reversed_gradient(x: Any) -> Any:
        return x * 1.0, lambda upstream: -upstream

    inputs = keras.Input((6,))
    x = layers.Lambda(reversed_gradient, name="reversal")(layers.Dense(4)(inputs))
    steps = Steps((classifier(inputs, x), (ROWS, CLASSES)), True, 1000)
    assert "custom gradient" in steps.functions.not_merged_because
    assert "reversal" in steps.functions.not_merged_because
    assert np.isfinite(steps.vector(Progress())).all()


def test_weights_that_the_model_assigns_keep_virtual_nodes_apart() -> None:
    inputs = keras.Input((6,))
    x = layers.SpectralNormalization(layers.Dense(4))(inputs)
    steps = Steps((classifier(inputs, x), (ROWS, CLASSES)), True, 1000)
    assert steps.functions.not_merged_because == "it assigns its own weights"
    assert np.isfinite(steps.vector(Progress())).all()


class Enclosed(layers.Layer):
    """Reads a weight or state in a function of its own."""

    def __init__(self, trainable: bool) -> None:
        super().__init__()
        self.w = self.add_weight(shape=(6, 4), name="w", trainable=trainable)
        self.inner = tf.function(lambda x: tf.matmul(tf.tanh(x), self.w.value))

    def call(self, x: Any) -> Any:
        return self.inner(x)


@pytest.mark.parametrize("trainable", [True, False])
def test_a_function_that_was_traced_with_a_variable_keeps_virtual_nodes_apart(
    trainable: bool,
) -> None:
    """The function reads the variable, not its value in a pass, so that has no gradient."""
    inputs, layer = keras.Input((6,)), Enclosed(trainable)
    steps = Steps((classifier(inputs, layer(inputs)), (ROWS, CLASSES)), True, 1000)
    reason = steps.functions.not_merged_because
    assert reason == f"a function inside it reads {layer.w.path} by itself"
    before = [variable.numpy() for variable in steps.state.trainable]
    steps.functions.turns[0].apply(steps.vector(Progress()))
    after = [variable.numpy() for variable in steps.state.trainable]
    assert not any(map(np.array_equal, before, after)), "a weight is not trained"


def test_a_lone_trainer_measures_noise_in_some_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "NOISE_EVERY_STEPS", 4)
    steps = Steps(plain(), True, 1000)
    counts = [
        float(steps.functions.turns[0].apply(steps.vector(Progress(step=step)))[2])
        for step in range(6)
    ]
    assert counts == [2, 2, 2, 2, 2, 2]  # slices of two sizes are two passes in any case
    steps.data = dataclasses.replace(
        steps.data, schedule=dataclasses.replace(steps.data.schedule, batch_size=24)
    )
    counts = [
        float(steps.functions.turns[0].apply(steps.vector(Progress(step=step)))[2])
        for step in range(6)
    ]
    assert counts == [2, 1, 1, 1, 2, 1]


def test_passes_hold_virtual_nodes_of_one_size_up_to_the_limit() -> None:
    assert passes_plan([3, 3, 3, 4, 4], most_examples=100) == [(0, 3), (3, 5)]
    assert passes_plan([3] * 5, most_examples=7) == [(0, 1), (1, 3), (3, 5)]
    assert passes_plan([3] * 4, most_examples=100, fewest_passes=2) == [(0, 2), (2, 4)]
    assert passes_plan([9], most_examples=2, fewest_passes=2) == [(0, 1)]
    assert passes_plan([1, 1, 2, 2], most_examples=100) == [(0, 1), (1, 2), (2, 4)]
    assert passes_plan([], most_examples=2) == []


def test_a_trial_says_whether_virtual_nodes_may_run_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keras.utils.set_random_seed(4)
    steps = Steps(plain(), False, 1000)
    steps.data = dataclasses.replace(
        steps.data, schedule=dataclasses.replace(steps.data.schedule, batch_size=24)
    )
    place = Progress(step=1)
    batch = steps.data.local_batch(steps.planner, steps.data.order(place), place)
    arguments = list(next(batch.pieces).arguments)
    assert merging_try(steps.functions, arguments) == {
        "is_merged": True,
        "not_merged_because": "",
    }
    forward = VirtualNode.forward

    def biased(self: VirtualNode, *given: Any, **named: Any) -> Any:
        results = forward(self, *given, **named)
        return dataclasses.replace(results, objective=results.objective * 1.1)

    monkeypatch.setattr(VirtualNode, "forward", biased)
    told = merging_try(steps.functions, arguments)
    assert told["is_merged"] is False
    assert "another gradient" in told["not_merged_because"]
