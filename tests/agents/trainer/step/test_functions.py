"""The traced step against Keras's own `fit`: what a compiled model says is honoured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.data.arrays import ArraySource
from agents.trainer.data.sources import source_open
from agents.trainer.model.keras_private import model_build
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.model.state import ModelState
from agents.trainer.model.stateful_ops import refuse_process_operations
from agents.trainer.step import microbatches
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.prefetch import JobData
from agents.trainer.step.stepper import local_rows
from controlplane.core.protocol.wire import StopCondition, StopKind
from tests.agents.trainer.local_jobs import membership_of, training_spec

NUM_EXAMPLES = 40
BATCH_SIZE = 16
Arrays = tuple[Any, ...]
Build = Callable[[], keras.Model]


RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(NUM_EXAMPLES, 4)).astype("float32")
Y = RANDOM.normal(size=(NUM_EXAMPLES, 1)).astype("float32")
WEIGHT = RANDOM.uniform(0.1, 3.0, size=NUM_EXAMPLES).astype("float32")
TOKENS = RANDOM.integers(0, 7, size=(NUM_EXAMPLES, 5))


class EpochByVirtualNodes:
    """Trains one epoch in the order of the data, as `fit(shuffle=False)` does."""

    def __init__(self, model: keras.Model, data: Any, num_virtual_nodes: int) -> None:
        source = source_open(data, "data.train", Path(__file__).parent)
        sample = source.fetch(np.arange(2))
        model_build(model, sample)
        self.model = model
        self.state = ModelState(model)
        self.functions = StepFunctions(model, self.state, sample)
        spec = training_spec(
            num_virtual_nodes=num_virtual_nodes, global_batch_size=BATCH_SIZE, shuffle=False
        )
        stop = StopCondition(kind=StopKind.EPOCHS, limit=1)
        schedule = TrainingSchedule(len(source), len(source), BATCH_SIZE, stop)
        specs = tuple(self.functions.example_specs)
        self.data = JobData(spec, schedule, source, source, specs, len(self.state.seeds))
        everything = {0: tuple(range(num_virtual_nodes))}
        self.planner = Planner(spec, membership_of(everything), (0,), 0)

    def train_once(self) -> list[float]:
        """Take the first step; gives what updating tells."""
        progress = Progress()
        batch = self.data.local_batch(self.planner, self.data.order(progress), progress)
        (turn,) = self.functions.turns
        told = turn.apply(local_rows(turn.train, batch)[0])
        return [float(number) for number in told]

    def run(self) -> dict[str, float]:
        progress = Progress()
        while not progress.is_over:
            order = self.data.order(progress)
            batch = self.data.local_batch(self.planner, order, progress)
            if progress.activity is Activity.TRAIN:
                (turn,) = self.functions.turns
                turn.apply(local_rows(turn.train, batch)[0])
            else:
                self.functions.count(local_rows(self.functions.validate, batch)[0])
            progress = self.data.schedule.after_batch(progress, 0.0)
            if self.data.schedule.is_activity_over(progress):
                results = self.model.get_metrics_result()
                logs = {name: float(np.asarray(value)) for name, value in results.items()}
                progress = self.data.schedule.after_activity(progress, logs)
                self.model.reset_metrics()
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)
        return progress.history[0].logs


def train_with_keras(model: keras.Model, arrays: Arrays) -> dict[str, float]:
    history = model.fit(
        *arrays[:2],
        sample_weight=arrays[2] if len(arrays) > 2 else None,
        validation_data=arrays,
        batch_size=BATCH_SIZE,
        validation_batch_size=BATCH_SIZE,
        shuffle=False,
        verbose=0,
    )
    return {name: values[0] for name, values in history.history.items()}


def plain(**options: Any) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    )
    options = {"optimizer": "adam", "loss": "mse", "metrics": ["mae"]} | options
    model.compile(**options)
    return model


def regularised_sum() -> keras.Model:
    """Put a summed loss beside terms that belong to the batch as a whole."""

    class Activity(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            self.add_loss(0.3 * keras.ops.mean(inputs**2))
            return inputs

    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, kernel_regularizer="l2", activation="tanh")(inputs)
    outputs = keras.layers.Dense(1)(Activity()(hidden))
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.SGD(0.01),
        loss=keras.losses.MeanSquaredError(reduction="sum"),
    )
    return model


def two_outputs() -> keras.Model:
    first, second = keras.Input((4,), name="first"), keras.Input((4,), name="second")
    joined = keras.layers.Concatenate()([first, second])
    low = keras.layers.Dense(1, name="low")(joined)
    high = keras.layers.Dense(1, name="high", activation="sigmoid")(joined)
    model = keras.Model({"first": first, "second": second}, {"low": low, "high": high})
    model.compile(
        optimizer=keras.optimizers.RMSprop(0.01),
        loss={"low": "mse", "high": "binary_crossentropy"},
        loss_weights={"low": 0.25, "high": 2.0},
        metrics={"low": ["mae"]},
        weighted_metrics={"high": ["accuracy"]},
    )
    return model


#: Whole batches only: Keras gives the losses of single outputs one vote per batch, however small.
TWO_OUTPUTS_DATA = (
    {"first": X[:32], "second": X[32::-1][:32].copy()},
    {"low": Y[:32], "high": (Y[:32] > 0).astype("float32")},
)


def embedding_and_frozen_layer() -> keras.Model:
    """With SGD: Keras's Adam squares the gradients of a token's repetitions one by one."""
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(9, 6),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
            keras.layers.Dense(1),
        ]
    )
    model.layers[-1].trainable = False
    model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.5), loss="mse")
    return model


def constraint_schedule_and_average() -> keras.Model:
    constraint = keras.constraints.MaxNorm(0.5)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, kernel_constraint=constraint)]
    )
    model.add(keras.layers.Dense(1))
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 1, 0.5)
    optimizer = keras.optimizers.AdamW(schedule, use_ema=True, ema_momentum=0.5, clipnorm=0.2)
    model.compile(optimizer=optimizer, loss="mae", metrics=[keras.metrics.RootMeanSquaredError()])
    return model


def one_value_for_a_batch() -> keras.Model:
    """With means that get the mean of a batch: of a layer, of the model, and of a function."""

    class Tracked(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.size = keras.metrics.Mean(name="size")

        def call(self, inputs: Any) -> Any:
            self.size.update_state(keras.ops.mean(inputs**2))
            return inputs

    def off(y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.abs(y_true - y_pred))

    model = keras.Sequential([keras.Input((4,)), Tracked(), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", metrics=[off, "mae"], weighted_metrics=["mse"])
    return model


def weights_assigned_by_a_layer() -> keras.Model:
    """Both layers assign their kernels in a training call; a penalty reads one of them, too."""
    normalised = keras.layers.SpectralNormalization
    dense = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")
    layers = [keras.Input((4,)), normalised(dense), normalised(keras.layers.Dense(1))]
    model = keras.Sequential(layers)
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.5), loss="mse")
    return model


def half_precision() -> keras.Model:
    policy = keras.mixed_precision.DTypePolicy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="tanh", dtype=policy),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )
    inner = keras.optimizers.SGD(0.05)
    optimizer = keras.optimizers.LossScaleOptimizer(
        inner, initial_scale=64.0, dynamic_growth_steps=2
    )
    model.compile(optimizer=optimizer, loss="mse")
    return model


CASES: dict[str, tuple[Build, Arrays]] = {
    "plain": (plain, (X, Y)),
    "sample weights": (lambda: plain(weighted_metrics=["mse"]), (X, Y, WEIGHT)),
    "sgd with momentum": (
        lambda: plain(optimizer=keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)),
        (X, Y),
    ),
    "clipping": (
        lambda: plain(optimizer=keras.optimizers.Adam(0.01, global_clipnorm=0.05)),
        (X, Y),
    ),
    "gradient accumulation": (
        lambda: plain(optimizer=keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)),
        (X, Y),
    ),
    "summed loss, add_loss, regulariser": (regularised_sum, (X, Y)),
    "two inputs and outputs": (two_outputs, TWO_OUTPUTS_DATA),
    "embedding and frozen layer": (embedding_and_frozen_layer, (TOKENS, Y)),
    "one value for a batch": (one_value_for_a_batch, (X, Y, WEIGHT)),
    "weights assigned by a layer": (weights_assigned_by_a_layer, (X, Y)),
    "constraint, schedule, average": (constraint_schedule_and_average, (X, Y)),
    "mixed precision with loss scale": (half_precision, (X, Y)),
}


def all_variables(model: keras.Model) -> list[Any]:
    return [*model.variables, *model.optimizer.variables]


#: Cases that neither `test_same_as_keras` nor tests/conformance has; the first has sample weights.
ONLY_HERE = (
    "one value for a batch",
    "weights assigned by a layer",
)


@pytest.mark.parametrize("num_virtual_nodes", [pytest.param(1, marks=pytest.mark.nightly), 3])
@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=() if name in ONLY_HERE else pytest.mark.nightly) for name in CASES],
)
def test_an_epoch_equals_fit(case: str, num_virtual_nodes: int) -> None:
    build, arrays = CASES[case]
    keras.utils.set_random_seed(1)
    model = build()
    reference = build()
    model_build(model, ArraySource(arrays, "data").fetch(np.arange(2)))
    model_build(reference, ArraySource(arrays, "data").fetch(np.arange(2)))
    for mine, theirs in zip(all_variables(model), all_variables(reference), strict=True):
        mine.assign(theirs)
    logs = EpochByVirtualNodes(model, arrays, num_virtual_nodes).run()
    expected = train_with_keras(reference, arrays)
    tolerance = 2e-3 if "precision with" in case else 2e-5
    for mine, theirs in zip(all_variables(model), all_variables(reference), strict=True):
        np.testing.assert_allclose(
            np.asarray(mine), np.asarray(theirs), rtol=tolerance, atol=tolerance, err_msg=mine.path
        )
    assert logs.keys() == expected.keys()
    assert logs == pytest.approx(expected, rel=10 * tolerance)


def test_batch_statistics_are_the_weighted_mean_over_virtual_nodes() -> None:
    """Three virtual nodes of 5, 5 and 6 examples: each sees its own mean."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(momentum=0.9)])
    model.add(keras.layers.Dense(1))
    model.compile(optimizer="sgd", loss="mse")
    epoch = EpochByVirtualNodes(model, (X[:BATCH_SIZE], Y[:BATCH_SIZE]), 3)
    epoch.run()
    means = [X[low:high].mean(axis=0) for low, high in ((0, 5), (5, 10), (10, 16))]
    variances = [X[low:high].var(axis=0) for low, high in ((0, 5), (5, 10), (10, 16))]
    shares = [5 / 16, 5 / 16, 6 / 16]
    mean = sum(share * (0.9 * 0.0 + 0.1 * m) for share, m in zip(shares, means, strict=True))
    var = sum(share * (0.9 * 1.0 + 0.1 * v) for share, v in zip(shares, variances, strict=True))
    layer = model.layers[0]
    np.testing.assert_allclose(np.asarray(layer.moving_mean), mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(layer.moving_variance), var, rtol=1e-5, atol=1e-6)


class Tally(keras.layers.Layer):
    """Keeps whole numbers that do not fit into 32-bit floats, and a flag."""

    def build(self, input_shape: Any) -> None:
        shared: dict[str, Any] = {"shape": (), "trainable": False}
        self.large = self.add_weight(dtype="int64", initializer="zeros", name="large", **shared)
        self.flag = self.add_weight(dtype="bool", initializer="zeros", name="flag", **shared)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.large.assign(self.large * 3 - 123_456_789_012_345)
            self.flag.assign(keras.ops.logical_not(self.flag))
        return inputs


def test_whole_numbers_change_once_a_step_and_exactly() -> None:
    model = keras.Sequential([keras.Input((4,)), Tally(), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    EpochByVirtualNodes(model, (X, Y), 3).run()
    expected = 0
    for _ in range(3):  # 40 examples in batches of 16
        expected = expected * 3 - 123_456_789_012_345
    assert int(model.layers[0].large) == expected
    assert bool(np.asarray(model.layers[0].flag))


@pytest.mark.parametrize(
    "virtual_nodes_in_a_piece", [pytest.param(1, marks=pytest.mark.nightly), 2]
)
def test_pieces_of_a_batch_leave_the_same_bits(
    virtual_nodes_in_a_piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six virtual nodes of at most 3 examples, of 5 numbers each, whole and in pieces."""

    def train() -> list[bytes]:
        keras.utils.set_random_seed(1)
        layers = [Tally(), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse", metrics=["mae"])
        EpochByVirtualNodes(model, (X, Y), 6).run()
        return [np.asarray(variable).tobytes() for variable in all_variables(model)]

    whole = train()
    monkeypatch.setattr(microbatches, "PIECE_BYTES", virtual_nodes_in_a_piece * 3 * 5 * 4)
    assert microbatches.virtual_nodes_per_piece(5 * 4, 3) == virtual_nodes_in_a_piece
    assert train() == whole


def test_dropout_differs_between_virtual_nodes_and_steps(tmp_path: Path) -> None:
    """With weight 1 and one input per example, the output tells what was dropped."""
    seen = tmp_path / "seen.txt"

    class Probe(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            shown = tf.strings.as_string(tf.reshape(inputs, [-1]), precision=1)
            tf.print(tf.strings.reduce_join(shown, separator=" "), output_stream=f"file://{seen}")
            return inputs

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), Probe()])
    model.add(keras.layers.Dense(1))
    model.compile(optimizer="sgd", loss="mse")
    ones = np.ones((32, 4), "float32")
    EpochByVirtualNodes(model, (ones, ones[:, :1]), 4).run()
    patterns = [line for line in seen.read_text().splitlines() if len({*line.split()}) > 1]
    assert len(patterns) == 8  # 2 steps of 4 virtual nodes of 4 examples; validation drops nothing
    assert len(set(patterns)) == 8


def test_python_functions_are_refused_by_name() -> None:
    class Python(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return tf.ensure_shape(tf.py_function(lambda v: v, [inputs], tf.float32), (None, 4))

    model = keras.Sequential([keras.Input((4,)), Python(), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    with pytest.raises(JobCodeError, match=r"EagerPyFunc.*keras\.ops") as refused:
        EpochByVirtualNodes(model, (X, Y), 2)
    assert refused.value.code == "python_function"


class Toggling(keras.Sequential):  # type: ignore[misc]  # no types in Keras
    """Freezes its first layer as it trains, after the optimizer was built for it."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        self.layers[0].trainable = not training
        return super().call(inputs, training=training)


def test_a_call_that_freezes_weights_is_refused_by_name() -> None:
    model = Toggling(
        [keras.Input((4,)), keras.layers.Dense(2, name="first"), keras.layers.Dense(1)]
    )
    model.compile(optimizer="sgd", loss="mse")
    with pytest.raises(JobCodeError, match=r"own call sets trainable, which .*first/kernel"):
        EpochByVirtualNodes(model, (X, Y), 2)


@pytest.mark.parametrize(
    ("draw", "operation"),
    [
        (lambda: tf.random.normal([4]), "RandomStandardNormal"),
        (
            lambda: tf.random.uniform_candidate_sampler([[1]], 1, 2, True, 9)[0],
            "UniformCandidateSampler",
        ),
    ],
)
def test_random_numbers_of_a_process_are_refused_by_name(
    draw: Callable[[], Any], operation: str
) -> None:
    graph = tf.function(draw).get_concrete_function().graph
    with pytest.raises(JobCodeError, match=rf"{operation}, whose.*keras\.random") as refused:
        refuse_process_operations(graph)
    assert refused.value.code == "process_random"
