"""Gradients of a batch that are compared with those of its slices."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import model_build
from agents.trainer.model.state import ModelState
from agents.trainer.step.functions import StepFunctions, TurnFunctions
from agents.trainer.step.gradient_layout import FieldKind, LayoutField
from agents.trainer.validate import gradient_trial
from agents.trainer.validate.gradient_trial import gradients_check
from tests.support.cases import some

PIECES = [
    LayoutField(FieldKind.GRADIENT, 0, (2,), 2),
    LayoutField(FieldKind.SQUARE, 0, (), 1),
    LayoutField(FieldKind.MESSAGES, 0, (), 1),
    LayoutField(FieldKind.LOSS, 0, (), 1),
]


@pytest.mark.parametrize(
    ("length", "loss", "scale", "is_refused"),
    [(1.0, 1.0, 1, True), (4e-6, 0.4, 1, False), (0.1, 1e4, 1, False), (4e-3, 0.4, 1024, False)],
)
def test_gradients_that_cancel_are_rounding(
    monkeypatch: pytest.MonkeyPatch, length: float, loss: float, scale: int, is_refused: bool
) -> None:
    """Gradients of normalised outputs cancel; only the differences of rounding are left."""

    def train(program: Any, weights: Any, _num: Any, _seeds: Any, examples: Any) -> list[Any]:
        del program
        share = 1.0 if len(set(examples.numpy())) > 1 else 0.85
        vector = [length, share * length, length**2, 1.0, loss]
        return [tf.constant(vector) * weights[0]]

    model = keras.Sequential([])
    model.compile(keras.optimizers.SGD(loss_scale_factor=scale), "mse")
    fake = SimpleNamespace(
        model=model,
        sample=(),
        seeds=[],
        turns=[TurnFunctions(train, None, PIECES)],
    )
    functions = cast("StepFunctions", fake)
    runner = Mock(draws_vary=False)
    monkeypatch.setattr(gradient_trial, "PartRunner", Mock(return_value=runner))
    examples = [np.array([0.0, 1.0], "float32")]
    if not is_refused:
        gradients_check(functions, examples)
        return
    with pytest.raises(JobCodeError) as caught:
        gradients_check(functions, examples)
    assert caught.value.code == "loss_not_additive"


class Centred(keras.layers.Layer):
    """Subtracts the mean of the batch in training."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs - keras.ops.mean(inputs, axis=0) if training else inputs


@tf.custom_gradient
def unit(inputs: Any) -> Any:
    return inputs, lambda gradient: gradient / tf.norm(gradient)


@tf.custom_gradient
def times_size(inputs: Any) -> Any:
    return inputs, lambda gradient: gradient * tf.cast(tf.shape(inputs)[0], inputs.dtype)


class Noise(keras.layers.Layer):
    """Adds random numbers, in inference too."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(3)

    def call(self, inputs: Any) -> Any:
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.seed)


class NoiseOfSome(Noise):
    """Adds random numbers to some places, as many as the values decide."""

    def call(self, inputs: Any) -> Any:
        some_places = inputs > 0
        changed = super().call(tf.boolean_mask(inputs, some_places))
        return tf.tensor_scatter_nd_update(inputs, tf.where(some_places), changed)


class NoiseFromTheEnd(Noise):
    """Adds random numbers that an example gets by its distance from the end of the batch."""

    def call(self, inputs: Any) -> Any:
        return keras.ops.flip(super().call(keras.ops.flip(inputs, 0)), 0)


#: Layers beside which a gradient cannot be seen in the loss, and functions with such gradients.
HIDDEN: dict[str, tuple[Callable[[], keras.layers.Layer], Any]] = {
    "mixed_float16": (lambda: keras.layers.Dense(4, dtype="mixed_float16"), unit),
    "mixed_bfloat16": (lambda: keras.layers.Dense(4, dtype="mixed_bfloat16"), unit),
    "bfloat16": (lambda: keras.layers.Dense(4, dtype="bfloat16"), unit),
    "dropout and batch normalisation": (
        lambda: keras.Sequential(
            [keras.layers.SpatialDropout1D(0.5), keras.layers.BatchNormalization()]
        ),
        times_size,
    ),
    "own noise": (Noise, unit),
    "spectral normalisation": (
        lambda: keras.layers.SpectralNormalization(keras.layers.Dense(4)),
        times_size,
    ),
    "recurrent dropout": (
        lambda: keras.layers.SimpleRNN(
            4, dropout=0.5, recurrent_dropout=0.5, return_sequences=True
        ),
        unit,
    ),
}


def trial_of(*layers: keras.layers.Layer) -> tuple[StepFunctions, list[np.ndarray]]:
    """Make the arguments of `gradients_check` for a model [n, 3, 4] -> [n, 3, 2]."""
    draws = np.random.default_rng(3)
    x, y = (draws.normal(size=(4, 3, width)).astype("float32") for width in (4, 2))
    dense = [keras.layers.Dense(size) for size in (4, 2)]
    model = keras.Sequential([keras.Input((3, 4)), dense[0], *layers, dense[1]])
    model.compile("sgd", "mse")
    model_build(model, (x, y))
    functions = StepFunctions(model, ModelState(model), (x[:1], y[:1]), has_validation=False)
    return functions, [x, y]


def test_what_mixes_examples_beside_dropout_is_refused() -> None:
    with pytest.raises(JobCodeError, match="a layer that mixes the examples of a batch"):
        gradients_check(*trial_of(keras.layers.Dropout(0.5), Centred()))


def test_as_many_random_numbers_as_the_data_decide_are_accepted() -> None:
    gradients_check(*trial_of(NoiseOfSome()))


@pytest.mark.parametrize(
    "name", some(HIDDEN, {"mixed_float16", "spectral normalisation", "recurrent dropout"})
)
def test_gradients_by_the_whole_batch_are_refused_whatever_layers_hide_them(name: str) -> None:
    make, function = HIDDEN[name]
    gradients_check(*trial_of(make()))
    with pytest.raises(JobCodeError, match="not the mean of its parts' gradients"):
        gradients_check(*trial_of(make(), keras.layers.Lambda(function)))


def test_random_numbers_on_which_the_loss_hardly_depends_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a network that makes examples out of them, before it has learned anything."""
    monkeypatch.setattr(gradient_trial, "ROUNDING", 10.0)  # losses differ by less
    gradients_check(*trial_of(NoiseFromTheEnd()))


def test_layers_of_keras_that_mix_examples_are_accepted() -> None:
    elastic = keras.layers.RandomElasticTransform(1.0, 1.0, value_range=(-9, 9), seed=1)
    layers = [keras.layers.Reshape((3, 4, 1)), elastic, keras.layers.Reshape((3, 4))]
    gradients_check(*trial_of(*layers))
