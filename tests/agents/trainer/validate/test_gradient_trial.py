"""Gradients of a batch that are compared with those of its slices."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import keras
import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import model_build
from agents.trainer.model.state import ModelState
from agents.trainer.step.batch_plan import TRAINING_STREAM, step_seeds
from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.gradient_layout import FieldKind, LayoutField
from agents.trainer.validate.gradient_trial import gradients_check
from tests.support.cases import some

PIECES = [
    LayoutField(FieldKind.GRADIENT, 0, (2,), 2),
    LayoutField(FieldKind.SQUARE, 0, (2,), 2),
    LayoutField(FieldKind.LOSS, 0, (), 1),
]
WHOLE, SLICES = ([slices, 0, 0, tf.zeros([slices])] for slices in (1, 2))


@pytest.mark.parametrize(
    ("length", "loss", "scale", "is_refused"),
    [(1.0, 1.0, 1, True), (4e-6, 0.4, 1, False), (0.1, 1e4, 1, False), (4e-3, 0.4, 1024, False)],
)
def test_gradients_that_cancel_are_rounding(
    length: float, loss: float, scale: int, is_refused: bool
) -> None:
    """Gradients of normalised outputs cancel; only the differences of rounding are left."""
    vectors = {
        slices: tf.constant([length, share * length, length**2, 1.0, loss])
        for slices, share in ((1, 0.7), (2, 0.0))
    }
    model = keras.Sequential([])
    model.compile(keras.optimizers.SGD(loss_scale_factor=scale), "mse")
    fake = SimpleNamespace(
        model=model,
        train_pieces=PIECES,
        train=lambda slices, *_: [vectors[slices]],
        loss_of=lambda vector: float(vector[-1]),
        dtype=tf.float32,
    )
    functions = cast("StepFunctions", fake)
    if not is_refused:
        gradients_check(functions, WHOLE, SLICES)
        return
    with pytest.raises(JobCodeError) as caught:
        gradients_check(functions, WHOLE, SLICES)
    assert caught.value.code == "loss_not_additive"


class Centred(keras.layers.Layer):
    """Subtracts the mean of the batch in training."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs - keras.ops.mean(inputs, axis=0) if training else inputs


@tf.custom_gradient
def unit(inputs: Any) -> Any:
    return inputs, lambda gradient: gradient / tf.norm(gradient)


HIDDEN: dict[str, Callable[[], keras.layers.Layer]] = {
    "mixed_float16": lambda: keras.layers.Dense(4, dtype="mixed_float16"),
    "mixed_bfloat16": lambda: keras.layers.Dense(4, dtype="mixed_bfloat16"),
    "dropout and batch normalisation": lambda: keras.Sequential(
        [keras.layers.SpatialDropout1D(0.5), keras.layers.BatchNormalization()]
    ),
    "noise": lambda: keras.layers.GaussianNoise(1.0),
    "recurrent dropout": lambda: keras.layers.SimpleRNN(
        4, dropout=0.5, recurrent_dropout=0.5, return_sequences=True
    ),
}


def trial_of(*layers: keras.layers.Layer) -> tuple[StepFunctions, list[Any], list[Any]]:
    """Make the arguments of `gradients_check` for a model [n, 3, 4] -> [n, 3, 2]."""
    draws = np.random.default_rng(3)
    x, y = (draws.normal(size=(4, 3, width)).astype("float32") for width in (4, 2))
    dense = [keras.layers.Dense(size) for size in (4, 2)]
    model = keras.Sequential([keras.Input((3, 4)), dense[0], *layers, dense[1]])
    model.compile("sgd", "mse")
    model_build(model, (x, y))
    functions = StepFunctions(model, ModelState(model), (x[:1], y[:1]), has_validation=False)

    def arguments(program: list[list[int]]) -> list[Any]:
        num = len(program)
        seeds = step_seeds(0, TRAINING_STREAM, 0, range(num), num, len(functions.seeds))
        fixed = (np.int32(program), np.full(num, 1 / num, np.float32), np.int32(1), seeds)
        return [tf.convert_to_tensor(value) for value in (*fixed, x, y)]

    return functions, arguments([[0, 4, 0, 1]]), arguments([[0, 2, 0, 1], [2, 2, 1, 0]])


def test_what_mixes_examples_beside_dropout_is_refused() -> None:
    with pytest.raises(JobCodeError, match="a layer that mixes the examples of a batch"):
        gradients_check(*trial_of(keras.layers.Dropout(0.5), Centred()))


@pytest.mark.parametrize("name", some(HIDDEN, {"mixed_float16", "noise", "recurrent dropout"}))
def test_gradients_by_the_whole_batch_are_refused_whatever_layers_hide_them(name: str) -> None:
    layer = HIDDEN[name]()
    trial = trial_of(layer)
    settings = layer.get_config()
    gradients_check(*trial)
    with pytest.raises(JobCodeError, match="not the mean of its parts' gradients"):
        gradients_check(*trial_of(layer, keras.layers.Lambda(unit)))
    assert layer.get_config() == settings
