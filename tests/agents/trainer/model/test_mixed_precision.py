"""Half precision with a loss scale over real trainers: the scale is state like any other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from controlplane.core.protocol.wire import ReportKind, StopCondition, StopKind
from tests.agents.trainer.local_jobs import local_job, prepared, training_spec, undisturbed

#: The first scales overflow half precision: those steps are skipped, and each halves the scale.
HALF_JOB = """
import keras
import numpy as np


def build(settings):
    keras.mixed_precision.set_global_policy("mixed_float16")
    generator = np.random.default_rng(5)
    x = generator.normal(size=(101, 6)).astype("float32")
    y = (x[:, :1] * x[:, 1:2] > 0).astype("float32")
    layers = [
        keras.Input((6,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1, dtype="float32"),
    ]
    model = keras.Sequential(layers)
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=2.0**24, dynamic_growth_steps=10
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model, (x, y), None
"""
STEPS = 240


@pytest.mark.nightly
def test_a_loss_scale_moves_and_overflows_are_skipped_by_all(tmp_path: Path) -> None:
    """1 -> 3 -> 2 trainers end with the bits of one; steps were skipped, the scale moved."""
    spec = training_spec(stop=StopCondition(kind=StopKind.STEPS, limit=STEPS))
    expected = undisturbed(tmp_path / "one", spec, HALF_JOB)
    with local_job(tmp_path, spec, HALF_JOB, num_slots=8) as job:
        memberships = [job.plan(1, None)]
        memberships += [job.plan(3, memberships[0])]
        memberships += [job.plan(2, memberships[1])]
        prepared(job, memberships)
        for number, membership in enumerate(memberships):
            job.wait_step(4 * number)
            job.go(membership)
            job.wait_switched(membership)
        assert job.finished() is None, "the job ended before all resizes: give it more steps"
        checkpoint = job.preempt()
        variables = read_variables(checkpoint)
        job.restore(2, checkpoint)
        result = job.wait_finished()
    assert result["digest"] == expected["digest"]
    scale = variables["dynamic_scale"]
    num_applied = variables["iteration"]
    saved_step = job.told(ReportKind.CHECKPOINTED)[0].data["step"]
    assert scale != 2.0**24
    assert np.log2(scale) == round(np.log2(scale)), "it only doubles and halves"
    assert 0 < num_applied < saved_step, "no step was skipped: give it a larger first scale"


def read_variables(checkpoint: Path) -> dict[str, float]:
    """Read the single numbers of a checkpoint by the last part of their names."""
    found: dict[str, float] = {}
    with np.load(checkpoint) as archive:
        meta = json.loads(archive["meta"].tobytes())
        for place, (name, dtype, shape) in enumerate(meta["variables"]):
            if shape == []:
                value = np.frombuffer(archive[f"v{place}"].tobytes(), dtype)[0]
                found[name.rpartition("/")[2]] = float(value)
    return found
