"""A small job whose pace the test sets: slow until a file appears, then as fast as it goes.

The pace changes when a step happens, never what it computes. The model has dropout and batch norm,
so randomness and non-trainable state have to survive every resize too. Its state is so large that
joiners get it beside the training.
"""

import time
from pathlib import Path

import keras
import numpy as np


@keras.saving.register_keras_serializable()
class Ballast(keras.layers.Layer):
    """Holds 4 MiB and a little that nothing changes, and costs the steps nothing."""

    def build(self, input_shape):
        self.weight = self.add_weight(shape=(2**20 + 1,), initializer="ones", trainable=False)

    def call(self, inputs):
        return inputs


def build(settings):
    """Return (compiled model, training data, no validation data)."""
    model = keras.Sequential(
        [
            keras.Input(shape=(8,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            Ballast(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    return model, PacedExamples(settings["go_file"], settings["pause_s"]), None


class PacedExamples:
    """Points on a bent plane, the same for everybody."""

    def __init__(self, go_file, pause_s):
        self.go_file = Path(go_file)
        self.pause_s = pause_s
        self.may_run = False
        random = np.random.default_rng(11)
        self.inputs = random.normal(size=(512, 8)).astype("float32")
        self.targets = np.sin(self.inputs.sum(axis=1, keepdims=True)).astype("float32")
        print(f"{len(self.inputs)} points on a bent plane", flush=True)  # noqa: T201  its log

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        self.may_run = self.may_run or self.go_file.exists()
        if not self.may_run:
            time.sleep(self.pause_s)
        return self.inputs[index], self.targets[index]
