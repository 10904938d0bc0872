"""Losses over a whole batch, told from those of each example by their values alone."""

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
from agents.trainer.validate.loss_checks import loss_check
from agents.trainer.validate.part_runner import HALF_TOLERANCE, rows
from agents.trainer.validate.split_checks import splitting_check
from tests.agents.trainer.validate.split_models import (
    IMAGES,
    MASKS,
    NUM_EXAMPLES,
    OF_A_BATCH,
    OF_EACH,
    RANDOM,
    Function,
    dice,
    model_of,
    model_with_state,
)
from tests.support.cases import pairs


class Noise(keras.layers.Layer):
    """Multiplies by random numbers, in inference too."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(3)

    def call(self, inputs: Any) -> Any:
        return inputs * keras.random.uniform(ops.shape(inputs), 0.98, 1.0, seed=self.seed)


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
    runner = Mock(model=model, metrics=[], is_random=False, is_training=False, tolerances=[0.0])
    runner.side_effect = lambda examples, *_, **__: Mock(losses=np.array([float(len(examples[0]))]))
    examples = (np.full((6, 2), scale, "float32"),)
    with pytest.raises(JobCodeError, match=rf"{re.escape(end)}$"):
        loss_check(runner, examples, [examples])


def test_half_precision_is_not_taken_for_chance_where_only_training_uses_what_is_drawn() -> None:
    """Recurrent layers of Keras draw their dropout in inference, too, and do not use it there."""
    model = Mock(optimizer=keras.optimizers.SGD())
    runner = Mock(model=model, metrics=[], changed=[], is_random=True, draws_vary=False)
    runner.tolerances = [HALF_TOLERANCE]
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


def _squares(dtype: Any, reduced: Callable[[Any], Any]) -> Function:
    return lambda y, p: reduced((tf.cast(y, dtype) - tf.cast(p, dtype) - 1) ** 2)


HALF_MEANS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda dtype: _squares(dtype, tf.reduce_mean),
    "a sum divided": lambda dtype: _squares(
        dtype, lambda all_: tf.reduce_sum(all_) / tf.cast(tf.size(all_), dtype)
    ),
    "mean of Keras": lambda dtype: keras.losses.MeanSquaredError(dtype=dtype.name),
    "cast back": lambda dtype: _squares(
        dtype, lambda all_: 0.5 * tf.cast(tf.reduce_mean(all_), tf.float32) + 1
    ),
}
HALF_OTHERS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda dtype: _squares(dtype, lambda all_: tf.reduce_sum(all_ / 1000)),
    "sum, cast back": lambda dtype: _squares(
        dtype, lambda all_: tf.cast(tf.reduce_sum(all_ / 1000), tf.float32)
    ),
    "maximum": lambda dtype: _squares(dtype, lambda all_: tf.reduce_max(all_)),
    "examples over a fixed number": lambda dtype: _squares(
        dtype, lambda all_: tf.reduce_sum(tf.reduce_mean(all_, (1, 2, 3))) / 256
    ),
}
HALVES = (tf.float16, tf.bfloat16)


@pytest.mark.parametrize(("name", "dtype"), pairs(HALF_MEANS, HALVES))
def test_a_mean_in_half_precision_is_accepted(name: str, dtype: Any) -> None:
    model, examples = model_of(HALF_MEANS[name](dtype))
    assert splitting_check(model, rows(examples, 0, 100), global_batch_size=NUM_EXAMPLES) == []


@pytest.mark.parametrize(("name", "dtype"), pairs(HALF_OTHERS, HALVES))
def test_another_loss_in_half_precision_is_refused(name: str, dtype: Any) -> None:
    with pytest.raises(JobCodeError, match="not the mean over its parts") as caught:
        splitting_check(*model_of(HALF_OTHERS[name](dtype)))
    assert caught.value.code == "loss_not_additive"


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
