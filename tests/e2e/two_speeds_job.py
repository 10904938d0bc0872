"""A job whose slices take three times as long on the node `node-slow` as anywhere else.

The pause lies in the trainer where it computes: it costs no processor time, so a test's node can be
slow on a machine that is busy, and it cannot be fetched ahead, as examples are. What is computed is
the same everywhere.
"""

import functools
import importlib
import os
import time
from pathlib import Path

import keras
import numpy as np

#: Where a trainer calls what computes its part of a batch.
CALLERS = ("stepper", "profiling")


def build(settings):
    """Return (compiled model, training data, no validation data)."""
    factor = 3 if "/node-slow/" in os.environ["VIRTUALFLOW_RUN_DIR"] else 1
    pace = Pace(Path(settings["go_file"]), factor * settings["pause_s"])
    for name in CALLERS:
        caller = importlib.import_module(f"agents.trainer.{name}")
        caller.local_rows = pace.kept_by(caller.local_rows)
    model = keras.Sequential(
        [
            keras.Input(shape=(8,)),
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


class Pace:
    """Lets every example of a trainer's part take a while, until the go file is there."""

    def __init__(self, go_file, pause_s):
        self.go_file = go_file
        self.pause_s = pause_s
        self.may_run = False

    def kept_by(self, compute_part):
        @functools.wraps(compute_part)
        def paced(compute, batch):
            self.may_run = self.may_run or self.go_file.exists()
            if not self.may_run:
                time.sleep(self.pause_s * len(batch.plan.positions))
            return compute_part(compute, batch)

        return paced
