"""Messages large enough to be cut into parts are added along the same tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents.trainer.collectives.tree_reduction import CUT_FROM_ELEMENTS
from controlplane.core.protocol.wire import ReportKind, StopCondition, StopKind
from tests.agents.trainer.local_jobs import local_job, training_spec

#: 784 x 641 weights and more: above the limit, and divisible by neither 2 nor 3.
WIDE_JOB = """
import keras
import numpy as np
import pytest


def build(settings):
    generator = np.random.default_rng(2)
    x = generator.normal(size=(60, 784)).astype("float32")
    y = generator.integers(0, 3, size=60)
    layers = [keras.Input((784,)), keras.layers.Dense(641, activation="relu")]
    model = keras.Sequential([*layers, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss=loss)
    return model, (x, y), None
"""


@pytest.mark.nightly
def test_cut_messages_give_the_same_bits(tmp_path: Path) -> None:
    assert CUT_FROM_ELEMENTS < 784 * 641
    spec = training_spec(num_virtual_nodes=7, stop=StopCondition(kind=StopKind.STEPS, limit=25))
    results: list[dict[str, Any]] = []
    for number, mapping in enumerate(
        [[[0, 1, 2, 3, 4, 5, 6]], [[0, 1, 2, 3], [4, 5, 6]], [[6, 1], [0, 3, 5], [2, 4]]]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with local_job(folder, spec, WIDE_JOB) as job:
            job.resize(len(mapping), mapping)
            results.append(job.wait_finished())
            switched = job.trainers[len(mapping) - 1].last(ReportKind.SWITCHED)
            assert switched is not None
            moved = switched.data["bytes_moved"]
            assert (moved > 2 * 4 * 784 * 641) == (len(mapping) > 1)
    assert len({result["digest"] for result in results}) == 1
