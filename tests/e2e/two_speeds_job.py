"""A job whose slices take longer on some nodes than elsewhere, and in a slot that a file names.

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
CALLERS = ("step.stepper", "engine.profiling")
#: How many times as long an example takes, by node, unless settings say so; 1 elsewhere.
FACTORS = {"node-slow": 3, "node-snail": 40}
#: The same in a slot that is held up.
HELD_UP = 3


def build(settings):
    """Return (compiled model, training data, no validation data)."""
    run_dir = Path(os.environ["VIRTUALFLOW_RUN_DIR"])
    factor = settings.get("factors", FACTORS).get(run_dir.parent.parent.name, 1)
    slot = run_dir.name.partition("-")[2]
    pace = Pace(Path(settings["go_file"]), slot, factor * settings["pause_s"])
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

    def __init__(self, go_file, slot, pause_s):
        self.go_file = go_file
        self.held_up_file = go_file.with_name(f"{go_file.name}-held-up-{slot}")
        self.pause_s = pause_s
        self.may_run = False

    def kept_by(self, compute_part):
        @functools.wraps(compute_part)
        def paced(compute, batch):
            self.may_run = self.may_run or self.go_file.exists()
            if not self.may_run:
                factor = HELD_UP if self.held_up_file.exists() else 1
                time.sleep(factor * self.pause_s * len(batch.plan.positions))
            return compute_part(compute, batch)

        return paced
