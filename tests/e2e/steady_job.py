"""A small job whose loss falls evenly, at a pace that the test sets, and far too slowly.

All examples are alike, so that the loss has no noise: any larger learning rate is better.
"""

import time
from pathlib import Path

import keras
import numpy as np


def build(settings):
    """Return (compiled model, training data, no validation data)."""
    model = keras.Sequential([keras.Input(shape=(4,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(1e-6), loss="mse")
    return model, PacedExamples(settings["go_file"], settings["pause_s"]), None


class PacedExamples:
    """One point, again and again."""

    def __init__(self, go_file, pause_s):
        self.go_file = Path(go_file)
        self.pause_s = pause_s
        self.may_run = False

    def __len__(self):
        return 512

    def __getitem__(self, index):
        self.may_run = self.may_run or self.go_file.exists()
        if not self.may_run:
            time.sleep(self.pause_s)
        return np.ones(4, "float32"), np.full(1, 9.0, "float32")
