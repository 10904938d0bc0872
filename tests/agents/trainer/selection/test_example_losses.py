"""Losses of single examples: those of Keras for batches of one, or a refusal by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from agents.trainer.model.keras_private import model_build
from agents.trainer.model.state import ModelState
from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.selection_pass import losses_traced
from agents.trainer.step.virtual_node import VirtualNode
from controlplane.core.protocol.reported_values import facts_read
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from tests.agents.trainer.trial_jobs import returning, validated
from tests.conformance.loss_cases import all_cases

CASES = [case for case in all_cases() if not case.refused]
NUM_COMPARED = 3
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(12, 4)).astype("float32")
Y = RANDOM.normal(size=(12, 1)).astype("float32")


def losses_of(model: keras.Model, arrays: tuple[Any, ...]) -> np.ndarray:
    """Compute the losses as a selection pass over two virtual nodes does."""
    model_build(model, arrays)
    state = ModelState(model)
    flat = [tf.convert_to_tensor(array) for array in keras.tree.flatten(arrays)]
    specs = [tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in flat]
    num = int(flat[0].shape[0])
    program = tf.constant([[0, 5, 0, 0], [5, num - 5, 0, 0]])
    seeds = tf.zeros([2, len(state.seeds), 2], tf.int64)
    losses = losses_traced(VirtualNode(model, state, arrays), specs)
    value: np.ndarray = losses(program, tf.ones([2]), 1, seeds, *flat).numpy()
    return value


def check(model: keras.Model, arrays: tuple[Any, ...], places: np.ndarray | None = None) -> None:
    """Compare with Keras's own loss for batches of one example; without `places` it ranks last."""
    found = losses_of(model, arrays)
    assert found.shape == (len(keras.tree.flatten(arrays)[0]),)
    assert found.dtype == np.float32
    for index in range(NUM_COMPARED):
        one = keras.tree.map_structure(lambda a, i=index: a[i : i + 1], arrays)
        x, y, weight = (*one, None, None)[:3]
        predicted = model(x, training=False)
        loss = model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight)
        loss = loss if places is None or places[index] else -np.inf
        assert found[index] == pytest.approx(np.asarray(loss).item(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.key, marks=pytest.mark.nightly if place % 3 else ())
        for place, case in enumerate(CASES)
    ],
)
def test_every_loss_of_keras_has_values_per_example(case: Any) -> None:
    check(case.build(), case.arrays, case.places)


def _two_outputs(
    weights: Mapping[str, float] = {"p": 0.3, "q": 2.0},
    losses: Mapping[str, Any] = {"p": "mse", "q": keras.losses.MeanAbsoluteError(reduction="sum")},
) -> keras.Model:
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    joined = layers.Dropout(0.5, seed=1)(layers.Concatenate()([a, b]))
    outputs = {"p": layers.Dense(1)(joined), "q": layers.Dense(2)(joined)}
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile("sgd", dict(losses), loss_weights=dict(weights))
    return model


def _sequence() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.Reshape((4, 1)), layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _normalised() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(), layers.Dense(1)])
    model.compile("sgd", lambda y_true, y_pred: keras.ops.mean((y_true - y_pred) ** 2, axis=-1))
    return model


def _padded(loss: Any, ignored: int | None = None) -> keras.Model:
    """Make a model with a mask on its output, which leaves the places that are not 0."""
    loss = loss if ignored is None else loss(from_logits=True, ignore_class=ignored)
    model = keras.Sequential([keras.Input((4, 1)), layers.Masking(), layers.Dense(3)])
    model.compile("sgd", loss)
    return model


#: Sequences of 0 to 4 steps: examples without any have no weight.
STEPS = np.where(np.arange(4) < (np.arange(12) % 5)[:, None], np.abs(X) + 0.1, 0.0)[:, :, None]
SPARSE = keras.losses.SparseCategoricalCrossentropy
STEP_WEIGHTS = RANDOM.uniform(0.1, 3.0, size=(11, 4)).astype("float32")
WEIGHT = RANDOM.uniform(0.0, 3.0, size=12).astype("float32")
MODELS: dict[str, tuple[Callable[[], keras.Model], tuple[Any, ...]]] = {
    "several inputs and outputs, weights, dropout": (
        _two_outputs,
        ({"a": X, "b": X}, {"p": Y, "q": X[:, :2]}, {"p": WEIGHT, "q": WEIGHT[::-1]}),
    ),
    "a sequence, weighted by step": (
        _sequence,
        (X, RANDOM.integers(0, 3, (12, 4)), RANDOM.uniform(size=(12, 4)).astype("float32")),
    ),
    "batch statistics and a function": (_normalised, (X, Y)),
    "a mask": (lambda: _padded("mse"), (STEPS[1:], np.repeat(STEPS[1:], 3, 2))),
    "a mask, weighted by step": (
        lambda: _padded("mse"),
        (STEPS[1:], np.repeat(STEPS[1:], 3, 2), STEP_WEIGHTS),
    ),
    "an ignored class under a mask": (
        lambda: _padded(SPARSE, ignored=1),
        (STEPS[1:], RANDOM.integers(0, 2, (11, 4)) * [0, 1, 1, 1]),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_all_shapes_have_losses_per_example(name: str) -> None:
    build, arrays = MODELS[name]
    check(build(), arrays)


def _cosine() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    model.compile("sgd", keras.losses.CosineSimilarity())
    return model


ZEROS = np.float32([0, 1, 0] * 4)
INFINITE = np.where(np.arange(12)[:, np.newaxis] < 2, np.inf, X).astype("float32")
#: Model, examples, and which of these have the weight 0: no other loss is minus infinite.
UNWEIGHTED: dict[str, tuple[Callable[[], keras.Model], tuple[Any, ...], np.ndarray]] = {
    "negative losses": (_cosine, (X, X[:, :2], ZEROS), ZEROS == 0.0),
    "whole numbers": (_cosine, (X, X[:, :2], ZEROS.astype("int32")), ZEROS == 0.0),
    "weights of steps": (
        _sequence,
        (X, np.zeros((12, 4), int), np.outer(ZEROS, [0, 1, 0, 0]).astype("float32")),
        ZEROS == 0.0,
    ),
    "both outputs": (
        _two_outputs,
        ({"a": X, "b": X}, {"p": Y, "q": X[:, :2]}, {"p": ZEROS, "q": np.roll(ZEROS, 1)}),
        (ZEROS == 0.0) & (np.roll(ZEROS, 1) == 0.0),
    ),
    "one output, and the other counts for nothing": (
        lambda: _two_outputs(weights={"p": 0.0, "q": 0.25}),
        ({"a": X, "b": X}, {"p": Y, "q": X[:, :2]}, {"p": ZEROS, "q": np.roll(ZEROS, 1)}),
        np.roll(ZEROS, 1) == 0.0,
    ),
    "no weights": (_cosine, (X, X[:, :2]), np.zeros(12, bool)),
    "no unmasked place": (
        lambda: _padded("mse"),
        (STEPS, np.repeat(STEPS, 3, 2)),
        np.arange(12) % 5 == 0,
    ),
    "a loss that is not finite": (
        _sequence,
        (INFINITE, np.zeros((12, 4), int), np.outer(ZEROS, np.ones(4)).astype("float32")),
        (ZEROS == 0.0) & (np.arange(12) >= 2),
    ),
}


@pytest.mark.parametrize("name", UNWEIGHTED)
def test_examples_of_weight_0_have_losses_below_all_others(name: str) -> None:
    build, arrays, expected = UNWEIGHTED[name]
    found = losses_of(build(), arrays)
    np.testing.assert_array_equal(np.isneginf(found), expected)


def test_a_pass_changes_no_state_and_no_loss_of_the_compiled_model() -> None:
    model = _normalised()
    model_build(model, (X, Y))
    before = [np.array(v) for v in ModelState(model).capture()]
    loss = float(model.compute_loss(X, Y, model(X)))
    losses_of(model, (X, Y))
    assert float(model.compute_loss(X, Y, model(X))) == loss
    after = ModelState(model).capture()
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


def test_only_a_job_that_selects_by_losses_traces_them() -> None:
    model = _normalised()
    model_build(model, (X, Y))
    assert StepFunctions(model, ModelState(model), (X[:2], Y[:2])).losses is None


class _Whole(keras.losses.Loss):
    """The mean over all of a batch, whatever its reduction."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.square(y_true - y_pred))


class _Columns(keras.losses.Loss):
    """A value for each output, over all examples."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=0)


class _Called(keras.losses.Loss):
    """The mean over all of a batch, computed by `__call__` itself."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return keras.ops.mean(keras.ops.abs(y_true - y_pred))


class _Penalty(layers.Layer):
    def call(self, inputs: Any) -> Any:
        self.add_loss(keras.ops.mean(keras.ops.square(inputs)))
        return inputs


class OwnLoss(keras.Model):
    """A loss of the model's own, which reads what its call has left and calls a layer again."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        self.hidden = self.layers[1](inputs)
        return super().call(inputs, training=training)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None,
        training: bool = True,
    ) -> Any:  # fmt: skip
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        shifted = self.layers[1](x + 1.0)
        return loss + keras.ops.mean(keras.ops.square(self.hidden - shifted * y))


def _own(loss: Any = "mse") -> keras.Model:
    inputs = keras.Input((4,))
    hidden = layers.Dense(3, "tanh", kernel_regularizer="l2")(inputs)
    outputs = layers.Dense(1)(layers.Dropout(0.5)(layers.BatchNormalization()(hidden)))
    model = OwnLoss(inputs, outputs)
    model.compile("sgd", loss)
    return model


def _set_on_the_model() -> keras.Model:
    model = _normalised()
    model.compute_loss = lambda x, y, y_pred, *_, **__: keras.ops.mean(
        keras.ops.abs(y - y_pred), keepdims=True
    )
    return model


def _plain(*more: layers.Layer, loss: Any = None) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), *more])
    model.compile("sgd", loss)
    return model


def _masked() -> keras.Model:
    inputs = keras.Input((4,))
    steps = layers.Masking()(layers.Reshape((4, 1))(layers.ReLU(threshold=0.7)(inputs)))
    model = keras.Model(inputs, layers.Dense(1)(steps))
    model.compile("sgd", _Whole())
    return model


WHOLE: dict[str, tuple[Callable[[], keras.Model], tuple[Any, ...]]] = {
    "a mean in the loss": (lambda: _plain(loss=_Whole()), (X, X)),
    "a mean in the loss, weighted": (lambda: _plain(loss=_Whole()), (X, X, WEIGHT)),
    "a mean in the loss, masked": (_masked, (np.abs(X), X[:, :, None])),
    "a loss that reduces by itself": (lambda: _plain(loss=_Called()), (X, X)),
    "a mean over the examples for each output": (lambda: _plain(loss=_Columns()), (X, X)),
    "a compute_loss of one's own": (_own, (X, Y)),
    "a compute_loss without a compiled loss": (lambda: _own(loss=None), (X, Y)),
    "a compute_loss, weighted": (_own, (X, Y, WEIGHT)),
    "a compute_loss set on the model itself": (_set_on_the_model, (X, Y)),
    "add_loss alone": (lambda: _plain(_Penalty()), (X, X)),
    "several outputs, one with a mean in its loss": (
        lambda: _two_outputs(losses={"p": _Whole(), "q": "mae"}),
        ({"a": X, "b": X}, {"p": Y, "q": X[:, :2]}, {"p": WEIGHT, "q": np.arange(12)}),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_loss_of_a_whole_batch_is_computed_for_one_example_at_a_time(name: str) -> None:
    build, arrays = WHOLE[name]
    check(build(), arrays)


def test_an_example_of_weight_0_ranks_last_in_a_loss_of_a_whole_batch() -> None:
    found = losses_of(_own(), (X, Y, ZEROS))
    np.testing.assert_array_equal(np.isneginf(found), ZEROS == 0.0)


REFUSED = returning(
    "compiled(net(layers.Dense(4)), loss=Flat())",
    "(X, X)",
    before="""
    @keras.saving.register_keras_serializable("test")
    class Flat(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return ops.reshape(ops.square(y_true - y_pred), (-1,))
    """,
)


def test_a_loss_with_other_rows_than_examples_is_refused_at_validation(tmp_path: Path) -> None:
    selection = SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP)
    report = validated(tmp_path, REFUSED, selection=selection)
    assert (report.code, report.field) == ("no_example_loss", "selection.method"), report
    assert "without a reshape to (-1,)" in report.message
    assert report.message.endswith("Or train without selection")
    at_random = SelectionSpec(method=SelectionMethod.RANDOM)
    report = validated(tmp_path, REFUSED, selection=at_random)
    assert report.ok
    assert "selection" not in report.facts


def test_control_epochs_need_validation_data(tmp_path: Path) -> None:
    selection = SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP, control_every=4)
    report = validated(tmp_path, returning("compiled(net())"), selection=selection)
    assert (report.code, report.field) == ("no_validation_data", "selection.control_every")


def test_validation_measures_the_times_of_passes_and_steps(tmp_path: Path) -> None:
    selection = SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP)
    report = validated(tmp_path, returning("compiled(net())"), selection=selection)
    assert report.ok, report
    times = facts_read(report.facts)["selection"]
    assert {*times} == {"loss_s", "step_s"}
    assert min(times.values()) > 0.0
