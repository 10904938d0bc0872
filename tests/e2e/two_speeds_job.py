"""A job whose slices take three times as long on the node `node-slow` as anywhere else.

A slice waits in the model's first layer, which costs no processor time, so that a test's node can
be slow on a machine that is busy. What is computed is the same everywhere.
"""

import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf


@keras.saving.register_keras_serializable()
class Paced(keras.layers.Layer):
    """Passes on what it gets: after a pause for every example, unless the go file is there."""

    def __init__(self, go_file, pause_s, **options):
        super().__init__(**options)
        self.go_file = go_file
        self.pause_s = pause_s
        self.may_run = False

    def get_config(self):
        return {**super().get_config(), "go_file": self.go_file, "pause_s": self.pause_s}

    def call(self, inputs):
        outputs = tf.numpy_function(self.passed_on, [inputs], inputs.dtype)
        outputs.set_shape(inputs.shape)
        return outputs

    def compute_output_shape(self, shape):
        return shape

    def passed_on(self, inputs):
        self.may_run = self.may_run or Path(self.go_file).exists()
        if not self.may_run:
            time.sleep(self.pause_s * len(inputs))
        return inputs


def build(settings):
    """Return (compiled model, training data, no validation data)."""
    factor = 3 if "/node-slow/" in os.environ["VIRTUALFLOW_RUN_DIR"] else 1
    model = keras.Sequential(
        [
            keras.Input(shape=(8,)),
            Paced(settings["go_file"], factor * settings["pause_s"]),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    random = np.random.default_rng(11)
    inputs = random.normal(size=(512, 8)).astype("float32")
    targets = np.sin(inputs.sum(axis=1, keepdims=True)).astype("float32")
    return model, (inputs, targets), None
