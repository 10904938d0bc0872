"""Jobs of this machine as the control plane would describe them."""

from __future__ import annotations

from typing import Any

from controlplane.core.protocol.wire import ReductionMode, StopCondition, StopKind, TrainingSpec

#: Code of a job with two convolutions of `filters` filters.
CONVOLUTIONS = """
import keras
import numpy as np


def build(settings):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(1024, 16, 16, 3)).astype("float32")
    y = generator.integers(0, 10, size=1024)
    filters = settings["filters"]
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Conv2D(filters, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(filters, 3, padding="same", activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss)
    return model, (x, y), None
"""


def steps_stop(num_steps: int = 10_000_000) -> StopCondition:
    """Stop after so many steps; by default more than any benchmark trains."""
    return StopCondition(kind=StopKind.STEPS, limit=num_steps)


def epochs_stop(num_epochs: int) -> StopCondition:
    """Stop after so many epochs."""
    return StopCondition(kind=StopKind.EPOCHS, limit=num_epochs)


def spec_make(
    settings: dict[str, Any], global_batch_size: int, num_virtual_nodes: int = 4, **others: Any
) -> TrainingSpec:
    """Describe a job whose code is one file; exact and endless unless `others` say otherwise."""
    values: dict[str, Any] = {
        "job_id": 0,
        "name": "benchmark",
        "entry_file": "job.py",
        "code_sha256": "",
        "seed": 0,
        "reduction": ReductionMode.EXACT,
        "stop": steps_stop(),
        "settings": settings,
        "global_batch_size": global_batch_size,
        "num_virtual_nodes": num_virtual_nodes,
    }
    return TrainingSpec(**(values | others))
