"""Losses and metrics over a whole batch, told from those of each example by their values alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import model_build, model_layers
from agents.trainer.validate.loss_checks import SLICE_LOSS, loss_check
from agents.trainer.validate.part_runner import rows
from agents.trainer.validate.split_checks import splitting_check
from tests.support.cases import pairs, some

Function = Callable[[Any, Any], Any]
NUM_EXAMPLES = 256
RANDOM = np.random.default_rng(3)
#: Images whose masks cover nearly equal parts, so that any two large parts of a batch are alike.
IMAGES = RANDOM.normal(size=(NUM_EXAMPLES, 12, 12, 1)).astype("float32")
MASKS = (IMAGES > 0.5).astype("float32")


def dice(y_true: Any, y_pred: Any, axis: Any = None) -> Any:
    total = ops.sum(y_true, axis=axis) + ops.sum(y_pred, axis=axis)
    return 1 - (2 * ops.sum(y_true * y_pred, axis=axis) + 1) / (total + 1)


def correlation(y_true: Any, y_pred: Any) -> Any:
    true, predicted = y_true - ops.mean(y_true), y_pred - ops.mean(y_pred)
    norm = ops.sqrt(ops.sum(true**2) * ops.sum(predicted**2))
    return 1 - ops.sum(true * predicted) / norm


def explained(y_true: Any, y_pred: Any) -> Any:
    return ops.sum((y_true - y_pred) ** 2) / ops.sum((y_true - ops.mean(y_true)) ** 2)


def root_mean_square(y_true: Any, y_pred: Any) -> Any:
    return ops.sqrt(ops.mean((y_true - y_pred) ** 2))


def balanced(y_true: Any, y_pred: Any) -> Any:
    share = ops.mean(y_true)
    return ops.mean(keras.losses.binary_crossentropy(y_true, y_pred)) / (share * (1 - share))


def scalar_mean(y_true: Any, y_pred: Any) -> Any:
    return ops.mean((y_true - y_pred) ** 2)


def dice_of_each(y_true: Any, y_pred: Any) -> Any:
    return dice(y_true, y_pred, axis=(1, 2, 3))


OF_A_BATCH = (dice, correlation, explained, root_mean_square, balanced)
OF_EACH = (scalar_mean, dice_of_each, keras.losses.binary_focal_crossentropy)


class Noise(keras.layers.Layer):
    """Multiplies by random numbers, in inference too."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(3)

    def call(self, inputs: Any) -> Any:
        return inputs * keras.random.uniform(ops.shape(inputs), 0.98, 1.0, seed=self.seed)


def model_of(
    loss: Any, metrics: Any = (), last: tuple[keras.layers.Layer, ...] = ()
) -> tuple[keras.Model, tuple[Any, ...]]:
    """Build a model of pixels; returns it with examples."""
    keras.utils.set_random_seed(1)
    layers = [keras.Input((12, 12, 1)), keras.layers.Conv2D(1, 1, activation="sigmoid"), *last]
    model = keras.Sequential(layers)
    model.compile("sgd", loss, metrics=list(metrics))
    examples = (IMAGES, MASKS)
    model_build(model, examples)
    return model, examples


@pytest.mark.parametrize(("loss", "last"), pairs(OF_A_BATCH, [(), (Noise,)]))
def test_a_loss_of_a_whole_batch_is_refused(loss: Function, last: tuple[Any, ...]) -> None:
    with pytest.raises(JobCodeError, match="not the mean over its parts") as caught:
        splitting_check(*model_of(loss, last=tuple(layer() for layer in last)))
    assert caught.value.code == "loss_not_additive"


@pytest.mark.parametrize(("loss", "last"), pairs(OF_EACH, [(), (Noise,)]))
def test_a_loss_of_each_example_is_accepted(loss: Function, last: tuple[Any, ...]) -> None:
    model, examples = model_of(loss, ["mae"], tuple(layer() for layer in last))
    assert splitting_check(model, examples, global_batch_size=2 * NUM_EXAMPLES) == []


def hardest(y_true: Any, y_pred: Any) -> Any:
    each = ops.mean((y_true - y_pred) ** 2, axis=(1, 2, 3))
    return ops.mean(ops.top_k(each, ops.minimum(64, ops.size(each)))[0])


class FirstOnes(keras.layers.Layer):
    """Has a loss of 64 examples at most."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(ops.mean(inputs[:64] ** 2))
        return inputs


@pytest.mark.parametrize(("loss", "last"), [(hardest, ()), ("mse", (FirstOnes,))])
def test_a_loss_of_a_fixed_number_of_examples_is_refused(loss: Any, last: Any) -> None:
    model, examples = model_of(loss, last=tuple(layer() for layer in last))
    with pytest.raises(JobCodeError, match="several copies of each example"):
        splitting_check(model, rows(examples, 0, 32), global_batch_size=NUM_EXAMPLES)


def pairs_strided(_: Any, y_pred: Any) -> Any:
    return ops.mean((y_pred[::2] - y_pred[1::2]) ** 2)


def pairs_counted(_: Any, y_pred: Any) -> Any:
    count = ops.shape(y_pred)[0] // 2
    return ops.sum((y_pred[: 2 * count : 2] - y_pred[1::2]) ** 2) / ops.cast(count, "float32")


@pytest.mark.parametrize(
    ("loss", "num", "message"),
    [
        (pairs_strided, 12, r"12 examples, but not 9 of them \(.*\[5,12,12,1\] vs. \[4,12,12,1\]"),
        (pairs_counted, 2, r"not the mean over its parts \(nan\)"),
    ],
)
def test_a_loss_of_pairs_of_neighbours_is_refused(loss: Function, num: int, message: str) -> None:
    """Numbers of examples may be even in the batch and in its slices, but not in every batch."""
    model, examples = model_of(loss)
    with pytest.raises(JobCodeError, match=message) as caught:
        splitting_check(model, rows(examples, 0, num), global_batch_size=num)
    assert caught.value.code == "loss_not_additive"


@pytest.mark.parametrize(("scale", "end"), [(1.0, "of a slice)"), (1e6, "(scale them)")])
def test_large_inputs_are_named_as_a_cause(scale: float, end: str) -> None:
    """Layer normalisation of time stamps, say, makes of their rounding what it likes."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    runner = Mock(model=model, metrics=[], is_random=False, is_training=False)
    runner.side_effect = lambda examples, *_, **__: Mock(losses=np.array([float(len(examples[0]))]))
    examples = (np.full((6, 2), scale, "float32"),)
    with pytest.raises(JobCodeError, match=rf"{re.escape(end)}$"):
        loss_check(runner, examples, [examples])


def test_half_precision_is_not_taken_for_chance_where_only_training_uses_what_is_drawn() -> None:
    """Recurrent layers of Keras draw their dropout in inference, too, and do not use it there."""
    model = Mock(compute_dtype="float16", optimizer=keras.optimizers.SGD())
    runner = Mock(model=model, metrics=[], changed=[], is_random=True, draws_vary=False)
    runner.return_value = Mock(losses=np.ones(1), state=[])
    examples = (np.zeros((6, 2), "float32"),)
    assert loss_check(runner, examples, [examples]) == []


class WarmedUp(keras.Sequential):  # type: ignore[misc]  # no types in Keras
    """Has a term over the whole batch that comes in with steps, its own too, and another number."""

    def compute_loss(self, *batch: Any, **more: Any) -> Any:
        self.own.assign_add(1.0)
        self.other.assign(self.other * 1.5)
        steps = ops.minimum(self.own, ops.cast(self.optimizer.iterations, "float32"))
        share = (steps % 1000) // 900 * (self.other // 1)
        return super().compute_loss(*batch, **more) + share * ops.var(batch[2])


def test_a_term_over_the_whole_batch_that_comes_in_later_is_refused() -> None:
    model = WarmedUp([keras.Input((4,)), keras.layers.Dense(1)])
    model.own = model.add_weight((), "zeros", trainable=False)
    model.other = model.add_weight((), keras.initializers.Constant(0.25), trainable=False)
    model.compile("sgd", "mse")
    examples = (RANDOM.normal(size=(8, 4)).astype("float32"), np.ones((8, 1), "float32"))
    model_build(model, examples)
    with pytest.raises(JobCodeError, match="after many steps") as caught:
        splitting_check(model, examples)
    assert caught.value.code == "loss_not_additive"
    assert [model.optimizer.iterations, model.own, model.other] == [0, 0, 0.25]


def test_a_loss_of_a_whole_batch_is_refused_though_the_head_begins_with_zeros() -> None:
    def correlation_or_none(y_true: Any, y_pred: Any) -> Any:
        true, predicted = y_true - ops.mean(y_true), y_pred - ops.mean(y_pred)
        norm = ops.sqrt(ops.sum(true**2) * ops.sum(predicted**2))
        return 1 - ops.sum(true * predicted) / (norm + 1e-6)

    head = keras.layers.Conv2D(1, 1, kernel_initializer="zeros")
    with pytest.raises(JobCodeError, match="not the mean over its parts"):
        splitting_check(*model_of(correlation_or_none, last=(head,)))
    assert not np.any(head.kernel)


class Balance(keras.layers.Layer):
    """Adds a small loss on how evenly examples are spread, as routers of experts do."""

    def call(self, inputs: Any) -> Any:
        shares = ops.mean(ops.softmax(inputs, axis=-1), axis=(0, 1, 2))
        self.add_loss(0.1 * ops.sum(shares**2))
        return inputs


def _balanced() -> keras.Model:
    start = keras.initializers.RandomUniform(-3.0, 3.0, seed=1)
    router = keras.layers.Dense(4, kernel_initializer=start)
    model = keras.Sequential([keras.Input((12, 12, 1)), router, Balance()])
    model.compile("sgd", lambda y, p: 9.0 + ops.mean((y - p) ** 2, axis=(1, 2, 3)))
    return model


def _beside_another(weight: float) -> keras.Model:
    pixels = keras.Input((12, 12, 1))
    outputs = [keras.layers.Dense(1, activation="sigmoid")(pixels) for _ in range(2)]
    model = keras.Model(pixels, outputs)
    model.compile("sgd", ["mse", dice], loss_weights=[1.0, weight])
    return model


@contextmanager
def in_policy(policy: str) -> Iterator[None]:
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


POLICIES = ["float32", "mixed_float16", "mixed_bfloat16"]
SMALL_TERMS = {"add_loss": _balanced, "a small weight": lambda: _beside_another(1e-5)}


@pytest.mark.parametrize(("name", "policy"), pairs(SMALL_TERMS, POLICIES))
def test_a_small_term_over_the_whole_batch_is_refused(name: str, policy: str) -> None:
    with in_policy(policy):
        model = SMALL_TERMS[name]()
    examples = (IMAGES, MASKS if name == "add_loss" else [MASKS, MASKS])
    model_build(model, examples)
    with pytest.raises(JobCodeError, match="a term of the loss of a batch") as caught:
        splitting_check(model, examples)
    assert caught.value.code == "loss_not_additive"
    assert {layer.dtype_policy.name for layer in model_layers(model)} == {policy}


class OwnCast(keras.layers.Layer):
    """Casts what it is given itself."""

    def call(self, inputs: Any) -> Any:
        return tf.cast(inputs, tf.float16) * tf.ones(4, self.compute_dtype)


def test_layers_that_cast_to_half_precision_themselves_are_accepted() -> None:
    assert splitting_check(*model_with_state(OwnCast(dtype="mixed_float16"))) == []


class Gated(keras.layers.Layer):
    """Changes examples [n, 4] by a weight that begins with the same number everywhere."""

    def __init__(self, change: Function, shape: tuple[int, ...], start: float) -> None:
        super().__init__()
        self.change = change
        self.gate = self.add_weight(shape=shape, initializer=keras.initializers.Constant(start))

    def call(self, inputs: Any) -> Any:
        return self.change(inputs, self.gate)


def mean_added(inputs: Any, gate: Any) -> Any:
    return inputs + gate * ops.mean(inputs, axis=0)


def mean_taken_off(inputs: Any, gate: Any) -> Any:
    return (inputs - ops.mean(inputs, axis=0)) * ops.exp(1e4 * gate)


@pytest.mark.parametrize(
    ("change", "shape", "start"),
    [(mean_added, (), 0.0), (mean_added, (4,), 1e-6), (mean_taken_off, (), 0.0)],
)
def test_what_mixes_examples_behind_a_gate_that_begins_shut_is_refused(
    change: Function, shape: tuple[int, ...], start: float
) -> None:
    with pytest.raises(JobCodeError, match="not the mean over its parts") as caught:
        splitting_check(*model_with_state(Gated(change, shape, start)))
    assert caught.value.code == "loss_not_additive"


def test_weights_near_0_are_tried_within_their_domain() -> None:
    def logit_added(inputs: Any, gate: Any) -> Any:
        return inputs + ops.max(ops.log(gate) - ops.log(1 - gate))

    assert splitting_check(*model_with_state(Gated(logit_added, (32,), 0.01))) == []


def test_a_loss_over_the_whole_batch_that_counts_for_nothing_is_accepted() -> None:
    model, examples = _beside_another(0.0), (IMAGES, [MASKS, MASKS])
    model_build(model, examples)
    assert splitting_check(model, examples) == []


class InTraining(keras.Model):
    """Has a linear layer, and what `change` and `extra` make of its examples in training alone."""

    def __init__(self, change: Any = None, extra: Any = None, first: Any = None) -> None:
        super().__init__()
        self.first = first
        self.linear = keras.layers.Dense(4)
        self.change = change
        self.extra = extra

    def call(self, inputs: Any, training: bool = False) -> Any:
        if self.first is not None:
            inputs = self.first(inputs, training=training)
        outputs = self.linear(inputs)
        if isinstance(self.change, keras.layers.Layer):
            return self.change(outputs, training=training)
        return self.change(outputs) if training and self.change else outputs

    def compute_loss(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool = True
    ) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + self.extra(y_pred) if training and self.extra else loss


def contrast(outputs: Any) -> Any:
    """Tell every example from all others of the batch, as SimCLR does."""
    unit = ops.normalize(outputs)
    alike = ops.log_softmax(ops.matmul(unit, ops.transpose(unit)))
    return -ops.mean(ops.diagonal(alike))


class DrawnInTraining(keras.layers.Layer):
    """Changes examples [n, 4] by what `change` draws, in training alone."""

    def __init__(self, change: Function) -> None:
        super().__init__()
        self.change = change
        self.seed = keras.random.SeedGenerator(3)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.change(inputs, self.seed) if training else inputs


def mixed_at_random(inputs: Any, seed: Any) -> Any:
    share = keras.random.uniform((), seed=seed)
    order = ops.argsort(keras.random.uniform(ops.shape(inputs)[:1], seed=seed))
    return share * inputs + (1 - share) * ops.take(inputs, order, axis=0)


def drawn_by_columns(inputs: Any, seed: Any) -> Any:
    """Draw numbers of which those of the first examples depend on how many examples there are."""
    return inputs * ops.transpose(keras.random.uniform(ops.shape(inputs)[::-1], seed=seed))


def drawn_for_some(inputs: Any, seed: Any) -> Any:
    """Draw as many numbers as the values decide."""
    places = inputs > 0
    some_inputs = tf.boolean_mask(inputs, places)
    some_inputs *= keras.random.uniform(ops.shape(some_inputs), seed=seed)
    return tf.tensor_scatter_nd_update(inputs, tf.where(places), some_inputs)


MIXING: dict[str, Callable[[], dict[str, Any]]] = {
    "contrast": lambda: {"extra": contrast},
    "spread": lambda: {"extra": lambda outputs: ops.mean(ops.std(outputs, axis=0))},
    "neighbours": lambda: {"change": lambda outputs: outputs + ops.roll(outputs, 1, axis=0)},
    "centred": lambda: {"change": lambda outputs: outputs - ops.mean(outputs, axis=0)},
    "one seed": lambda: {
        "change": lambda outputs: outputs * keras.random.uniform(ops.shape(outputs), seed=3)
    },
    "mixed at random": lambda: {"change": DrawnInTraining(mixed_at_random)},
}
SEPARATE: dict[str, Callable[[], dict[str, Any]]] = {
    "mean": lambda: {"extra": lambda outputs: ops.mean(outputs**2)},
    "dropout": lambda: {"change": keras.layers.Dropout(0.5, seed=1)},
    "noise": lambda: {
        "change": keras.layers.GaussianNoise(1.0, seed=1),
        "extra": lambda y: ops.mean(y**2),
    },
    "batch normalisation": lambda: {"change": keras.layers.BatchNormalization()},
    "drawn by columns": lambda: {"change": DrawnInTraining(drawn_by_columns)},
    "drawn for some": lambda: {"change": DrawnInTraining(drawn_for_some)},
}
#: Layers with state, which leave what comes after them to be tried, and none.
WITH_STATE: dict[str, Callable[[], keras.layers.Layer | None]] = {
    "none": lambda: None,
    "batch normalisation": keras.layers.BatchNormalization,
    "spectral normalisation": lambda: keras.layers.SpectralNormalization(keras.layers.Dense(4)),
    "a step counter": lambda: OwnState(lambda old, _: old + 1.0),
    "both": lambda: keras.Sequential([OwnState(lambda old, _: old + 1.0), normalised()]),
}


def normalised() -> keras.Model:
    """Have a batch normalisation in a model of its own, as a backbone has."""
    return keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(4)])


def trained_only(name: str, cases: Any, first: Any = None) -> tuple[keras.Model, tuple[Any, ...]]:
    model = InTraining(**cases[name](), first=first)
    model.compile("sgd", "mse")
    model_build(model, (VECTORS, VECTORS))
    return model, (VECTORS, VECTORS)


@pytest.mark.parametrize(("name", "layer"), pairs(MIXING, WITH_STATE))
def test_what_mixes_examples_in_training_alone_is_refused(name: str, layer: str) -> None:
    model, examples = trained_only(name, MIXING, WITH_STATE[layer]())
    with pytest.raises(JobCodeError, match=r", in training.*\) is not the mean") as caught:
        splitting_check(model, examples)
    assert caught.value.code == "loss_not_additive"
    assert all(each.trainable for each in model_layers(model))


@pytest.mark.parametrize(("name", "layer"), pairs(SEPARATE, WITH_STATE))
def test_what_changes_each_example_in_training_alone_is_accepted(name: str, layer: str) -> None:
    assert splitting_check(*trained_only(name, SEPARATE, WITH_STATE[layer]())) == []


def test_layers_frozen_by_the_job_stay_frozen() -> None:
    model, examples = trained_only("mean", SEPARATE, normalised())
    frozen = model.first.layers[0]
    frozen.trainable = False
    model.compile("sgd", "mse")
    model_build(model, examples)
    assert splitting_check(model, examples) == []
    assert not frozen.trainable


def test_weights_frozen_by_the_job_stay_frozen() -> None:
    model, examples = trained_only("mean", SEPARATE, normalised())
    normalisation = model.first.layers[0]
    normalisation.gamma.trainable = False
    model.compile("sgd", "mse")
    assert splitting_check(model, examples) == []
    assert (normalisation.gamma.trainable, normalisation.beta.trainable) == (False, True)
    assert not normalisation.moving_mean.trainable


def test_layers_of_keras_that_mix_examples_are_accepted() -> None:
    model, examples = model_of("mse", last=(keras.layers.MixUp(seed=1),))
    assert splitting_check(model, examples) == []


class PerBatch(keras.metrics.Metric):
    """A mean of batches' values, each counted once whatever the batch's size."""

    def __init__(self) -> None:
        super().__init__(name="per_batch")
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        del sample_weight
        self.total.assign_add(scalar_mean(y_true, y_pred))
        self.count.assign_add(1.0)

    def result(self) -> Any:
        return self.total / self.count


def test_a_metric_of_a_whole_batch_is_warned_of_by_name() -> None:
    names = [*(metric.__name__ for metric in OF_A_BATCH), "per_batch"]
    warnings = splitting_check(*model_of("mse", [*OF_A_BATCH, PerBatch()]))
    assert len(warnings) == len(names)
    for name, warning in zip(names, warnings, strict=True):
        assert f"the metric '{name}' is computed for each slice" in warning


class Late(keras.metrics.Sum):
    """Leaves out the first two batches, from which every virtual node starts anew."""

    def __init__(self) -> None:
        super().__init__(name="late")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        del sample_weight
        super().update_state(ops.where(self.count < 2, 0.0, y_true - y_pred))
        self.count.assign_add(1.0)


def test_a_metric_that_leaves_out_the_first_batches_is_refused() -> None:
    model, examples = model_of("mse", [Late()])
    with pytest.raises(JobCodeError, match="Late does not add up: after three batches it holds"):
        splitting_check(model, examples)


class Both(keras.metrics.MeanSquaredError):
    """Has two numbers for the logs."""

    def result(self) -> Any:
        square = super().result()
        return {"square": square, "root": ops.sqrt(square)}


def test_metrics_that_add_up_are_not_warned_of() -> None:
    classes = [
        Both(),
        keras.metrics.AUC(),
        keras.metrics.MeanIoU(2),
        keras.metrics.RootMeanSquaredError(),
    ]
    model, examples = model_of("mse", ["mae", "accuracy", *classes, *OF_EACH])
    assert splitting_check(model, tuple(array[:7] for array in examples)) == []


class Adaptive(keras.Sequential):  # type: ignore[misc]  # no types in Keras
    """Weights its loss in training by the mean of the losses so far, which a metric keeps."""

    def __init__(self, layers: Any) -> None:
        super().__init__(layers)
        self.mean = keras.metrics.Mean(name="mean")

    def compute_loss(self, *args: Any, training: bool = True, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, training=training, **kwargs)
        adapted = loss * (1.0 + self.mean.result()) if training else loss
        self.mean.update_state(loss)
        return adapted


def test_a_loss_that_reads_a_metric_is_refused() -> None:
    model = Adaptive([keras.Input((4,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    model_build(model, (VECTORS, VECTORS))
    with pytest.raises(JobCodeError, match="depends on the value of a metric") as caught:
        splitting_check(model, (VECTORS[:6], VECTORS[:6]))
    assert caught.value.code == "metric_not_additive"


class OwnState(keras.layers.Layer):
    """Has state that `after` computes from the old value and the examples [n, 4]."""

    def __init__(self, after: Function, shape: tuple[int, ...] = (4,), start: float = 0.0) -> None:
        super().__init__()
        self.after = after
        initializer = keras.initializers.Constant(start)
        self.state = self.add_weight(shape=shape, initializer=initializer, trainable=False)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.state.assign(self.after(self.state.value, inputs))
        return inputs


def length_of(inputs: Any) -> Any:
    return ops.cast(ops.shape(inputs)[0], "float32")


def unbiased_variance(old: Any, inputs: Any) -> Any:
    number = length_of(inputs)
    return 0.9 * old + 0.1 * ops.var(inputs, 0) * number / (number - 1)


NO_AVERAGES = {
    "examples": (lambda old, x: old + length_of(x), "grows with the number"),
    "sum": (lambda old, x: old + ops.sum(x, 0), "grows with the number"),
    "average of sums": (lambda old, x: 0.9 * old + 0.1 * ops.sum(x, 0), "grows with the number"),
    "last example": (lambda old, x: 0.0 * old + x[-1], "depends on the order"),
    "maximum": (lambda old, x: ops.maximum(old, ops.max(x, 0)), "is an extreme"),
    "minimum": (lambda old, x: ops.minimum(old, ops.min(x, 0)), "is an extreme"),
    "largest length": (
        lambda old, x: ops.maximum(old, ops.max(ops.norm(x, axis=-1))),
        "is an extreme",
    ),
    "seen": (
        lambda old, x: ops.maximum(old, ops.cast(ops.any(x > 1.8, 0), "float32")),
        "is an extreme",
    ),
}
AVERAGES = {
    "steps": lambda old, x: old + 1.0,
    "mean": lambda old, x: 0.9 * old + 0.1 * ops.mean(x, 0),
    "variance": unbiased_variance,
    "average of maxima": lambda old, x: 0.9 * old + 0.1 * ops.max(x, 0),
    "length": lambda old, x: 0.9 * old + 0.1 * ops.mean(ops.norm(x, axis=-1)),
    "slow mean": lambda old, x: 0.9999 * old + 0.0001 * ops.mean(x, 0),
    "flag": lambda old, x: ops.maximum(old, 1.0),
}
VECTORS = RANDOM.normal(size=(48, 4)).astype("float32")


def model_with_state(*layers: keras.layers.Layer) -> tuple[keras.Model, tuple[Any, ...]]:
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    model_build(model, (VECTORS, VECTORS))
    return model, (VECTORS, VECTORS)


@pytest.mark.parametrize("name", some(NO_AVERAGES, {"sum", "minimum", "largest length"}))
def test_float_state_that_is_no_average_is_refused(name: str) -> None:
    after, reason = NO_AVERAGES[name]
    with pytest.raises(JobCodeError, match=reason) as caught:
        splitting_check(*model_with_state(OwnState(after)))
    assert caught.value.code == "state_not_combinable"


def test_a_queue_of_examples_is_refused() -> None:
    queue = OwnState(lambda old, x: ops.concatenate([x, old])[:16], (16, 4))
    with pytest.raises(JobCodeError, match="depends on the order") as caught:
        splitting_check(*model_with_state(queue))
    assert caught.value.code == "state_not_combinable"


def test_float_state_that_is_an_average_is_accepted() -> None:
    """Each state is checked by itself; only the two that depend on the slices are warned of."""
    layers = {name: OwnState(after) for name, after in AVERAGES.items()}
    (warning,) = splitting_check(*model_with_state(*layers.values()))
    named = [repr(layers[name].state.path) for name in ("variance", "average of maxima")]
    assert warning.startswith(f"the state {', '.join(named)} is computed for each slice")


class Centred(OwnState):
    """Subtracts its state in training."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        given = super().call(inputs, training)
        return given - self.state if training else given


def test_a_loss_that_depends_on_the_slice_by_own_state_gets_a_warning() -> None:
    centred = Centred(lambda old, x: 0.0 * old + ops.mean(x, 0))
    assert splitting_check(*model_with_state(centred)) == [SLICE_LOSS]


@pytest.mark.parametrize(
    "start", some(["nan", "inf", "-inf", "1e9", "3e38"], {"inf", "-inf", "3e38"})
)
def test_state_that_no_change_leads_away_from_is_refused(start: str) -> None:
    def after(old: Any, inputs: Any) -> Any:
        is_first = ops.logical_or(ops.isnan(old), ops.abs(old) > 1e8)
        mean = ops.mean(inputs, 0)
        return ops.where(is_first, mean, 0.9 * ops.where(is_first, 0.0, old) + 0.1 * mean)

    with pytest.raises(JobCodeError, match="start from 0") as caught:
        splitting_check(*model_with_state(OwnState(after, start=float(start))))
    assert caught.value.code == "state_not_combinable"


def test_state_that_keeps_its_value_may_be_any_number() -> None:
    layers = [OwnState(lambda old, _: old, start=start) for start in (np.nan, 1e9, 3e38)]
    assert splitting_check(*model_with_state(*layers)) == []


class InInferenceToo(OwnState):
    """Changes its state whether the model trains or not."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        del training
        return super().call(inputs, training=True)


def test_state_that_inference_changes_is_warned_of() -> None:
    (warning,) = splitting_check(*model_with_state(InInferenceToo(AVERAGES["mean"])))
    assert "leave all state as it is" in warning


def test_checks_leave_the_state_as_it_was() -> None:
    model, examples = model_with_state(OwnState(AVERAGES["mean"]))
    splitting_check(model, examples)
    assert not np.any(model.layers[0].state.numpy())


class Tracked(keras.layers.Layer):
    """Gives a metric of its own what `measure` computes from the examples [n, 4]."""

    def __init__(self, metric: keras.metrics.Metric, measure: Callable[[Any], Any]) -> None:
        super().__init__()
        self.metric = metric
        self.measure = measure

    def call(self, inputs: Any) -> Any:
        self.metric.update_state(self.measure(inputs))
        return inputs


def test_a_layers_sum_over_batches_is_warned_of() -> None:
    of_batch = Tracked(keras.metrics.Sum(name="added"), ops.mean)
    (warning,) = splitting_check(*model_with_state(of_batch))
    assert "the metric 'added' is computed for each slice and averaged or added up" in warning


@pytest.mark.parametrize("metric", [keras.metrics.Sum, keras.metrics.Mean])
def test_a_layers_metric_of_each_example_is_not_warned_of(metric: Any) -> None:
    of_each = Tracked(metric(name="tracked"), lambda x: ops.mean(x**2, axis=-1))
    assert splitting_check(*model_with_state(of_each)) == []


@pytest.mark.parametrize("dtype", some(["float32", "mixed_float16", "float64"], ["float64"]))
def test_batch_normalisation_is_an_average(dtype: str) -> None:
    normalised = keras.layers.BatchNormalization(renorm=True, dtype=dtype)
    dropped = keras.layers.BatchNormalization(momentum=0.5, dtype=dtype)
    layers = [normalised, keras.layers.Dropout(0.5, seed=3), dropped]
    assert splitting_check(*model_with_state(*layers)) == []
