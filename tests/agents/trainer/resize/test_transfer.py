"""How a state is cut up for its way to a joiner, and that it arrives as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.trainer.model.state import VariableSpec
from agents.trainer.resize.transfer import LARGE_BYTES, Chunk, transfer_plan
from controlplane.core.protocol.wire import ReportKind, StopCondition, StopKind
from tests.agents.trainer.hasty_trainer import HASTY_PROGRAM
from tests.agents.trainer.local_jobs import local_job, prepared, training_spec

#: One kernel of 4.4 MB (two pieces), one of 0.4 MB (a piece of its own), the rest together.
LARGE_JOB = """
import keras
import numpy as np


def build(settings):
    generator = np.random.default_rng(5)
    x = generator.normal(size=(64, 1000)).astype("float32")
    y = generator.normal(size=(64, 100)).astype("float32")
    model = keras.Sequential(
        [keras.Input((1000,)), keras.layers.Dense(1100), keras.layers.Dense(100)]
    )
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse", metrics=["mae"])
    return model, (x, y), None
"""

#: One variable of one row, so that all of its 64 MB are one piece.
LONG_JOB = """
import keras
import numpy as np


@keras.saving.register_keras_serializable()
class Ballast(keras.layers.Layer):
    def build(self, input_shape):
        self.weight = self.add_weight(shape=(1, 2**24), initializer="ones", trainable=False)

    def call(self, inputs):
        return inputs


def build(settings):
    generator = np.random.default_rng(5)
    x = generator.normal(size=(64, 10)).astype("float32")
    model = keras.Sequential([keras.Input((10,)), Ballast(), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model, (x, x[:, :1]), None
"""


def test_large_variables_are_cut_by_rows_and_small_ones_travel_together() -> None:
    specs = [
        VariableSpec("0:kernel", "float32", (1000, 1000)),  # 4,000 bytes a row
        VariableSpec("1:bias", "float32", (1000,)),
        VariableSpec("2:step", "int64", ()),
        VariableSpec("3:table", "float16", (3, 400_000)),  # 800,000 bytes a row
        VariableSpec("4:mask", "bool", (LARGE_BYTES,)),  # no collective carries it
    ]
    plan = transfer_plan(specs, piece_bytes=1_600_000)
    assert plan.small == (1, 2, 4)
    assert plan.small_bytes == 4000 + 8 + LARGE_BYTES
    assert plan.pieces == (
        Chunk(0, 0, 400, is_whole=False),
        Chunk(0, 400, 800, is_whole=False),
        Chunk(0, 800, 1000, is_whole=False),
        Chunk(3, 0, 2, is_whole=False),
        Chunk(3, 2, 3, is_whole=False),
    )


def test_a_row_larger_than_a_piece_is_not_cut_and_a_small_enough_variable_is_one_piece() -> None:
    specs = [
        VariableSpec("0:wide", "float64", (2, 500_000)),
        VariableSpec("1:kernel", "float32", (500, 500)),
    ]
    assert transfer_plan(specs, piece_bytes=1_000_000).pieces == (
        Chunk(0, 0, 1, is_whole=False),
        Chunk(0, 1, 2, is_whole=False),
        Chunk(1, 0, 500, is_whole=True),
    )


@pytest.mark.timeout(180)
def test_a_state_in_many_pieces_arrives_bit_by_bit(tmp_path: Path) -> None:
    spec = training_spec(stop=StopCondition(kind=StopKind.STEPS, limit=1_000_000))
    with local_job(tmp_path, spec, LARGE_JOB) as job:
        first = job.plan(1, None)
        grown = job.plan(3, first)
        prepared(job, [first, grown])
        job.go(first)
        job.wait_step(5)
        job.go(grown)
        job.wait_switched(grown)
        digests: list[str] = []

        def has_all() -> bool:
            digests[:] = [
                report.data["sha256"]
                for report in job.told(ReportKind.DIGEST)
                if report.generation == grown.generation
            ]
            return len(digests) == 3

        job.wait(has_all, "digests of the source and both joiners", 60.0)
        moved = job.trainers[1].last(ReportKind.SWITCHED, grown.generation)
    assert len(set(digests)) == 1
    assert moved is not None
    assert moved.data["bytes_moved"] > 3 * 4 * (1000 * 1100 + 1100 * 100)


@pytest.mark.timeout(180)
def test_a_source_that_leaves_stays_until_its_state_has_arrived(tmp_path: Path) -> None:
    """What a process has not sent yet goes with it, and with it would go the only state."""
    spec = training_spec(stop=StopCondition(kind=StopKind.STEPS, limit=1_000_000))
    with local_job(tmp_path, spec, LONG_JOB) as job:
        job.program = HASTY_PROGRAM
        # From one to another, and to two others: the second of them is not the one that leads.
        memberships = [job.plan(1, None)]
        for num_workers in (1, 2):
            memberships.append(job.plan(num_workers, memberships[-1], keep=[]))
        prepared(job, memberships)
        for membership in memberships:
            job.go(membership)
            job.wait_switched(membership)
            job.wait_step(job.step() + 5)
        assert job.told(ReportKind.STALLED) == []
