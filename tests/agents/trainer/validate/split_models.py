"""Losses, state and models that the checks of splitting are tried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from agents.trainer.model.keras_private import model_build

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


VECTORS = RANDOM.normal(size=(48, 4)).astype("float32")


def model_with_state(*layers: keras.layers.Layer) -> tuple[keras.Model, tuple[Any, ...]]:
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    model_build(model, (VECTORS, VECTORS))
    return model, (VECTORS, VECTORS)
