"""A job whose lowest loss is set by its learning rate: Friedman's first function, without noise.

Fast rates win at first and then keep the loss up, so that a search at the plateau has something to
find. The function is of J. H. Friedman, Multivariate adaptive regression splines (1991), equation
61, with five of ten inputs; targets have mean 0 and standard deviation 1.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

_NUM_TRAINING, _NUM_VALIDATION, _NUM_INPUTS, _WIDTH = 16_384, 2048, 10, 64


def build(hyperparameters: dict[str, float]) -> tuple[keras.Model, Any, Any]:
    """Return the model, and training and validation examples."""
    random = np.random.default_rng(0)
    x = random.uniform(size=(_NUM_TRAINING + _NUM_VALIDATION, _NUM_INPUTS)).astype("float32")
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    y = y + 10 * x[:, 3] + 5 * x[:, 4]
    y = ((y - y.mean()) / y.std())[:, None]
    model = keras.Sequential(
        [
            keras.Input((_NUM_INPUTS,)),
            keras.layers.Dense(_WIDTH, activation="relu"),
            keras.layers.Dense(_WIDTH, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(hyperparameters["learning_rate"]), "mse")
    training, validation = slice(_NUM_TRAINING), slice(_NUM_TRAINING, None)
    return model, (x[training], y[training]), (x[validation], y[validation])
