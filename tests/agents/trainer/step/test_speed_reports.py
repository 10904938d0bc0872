"""What trainers tell about their speed, and uneven splits that move while they train."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from agents.trainer.local.local_cluster import LocalJob
from controlplane.core.protocol.wire import ReductionMode, ReportKind, StopCondition, StopKind
from controlplane.core.virtual_nodes.uneven_split import runs
from tests.agents.trainer.local_jobs import local_job, prepared, training_spec, undisturbed

#: Counts of virtual nodes of each membership; the third differs from the second in nothing else.
SPLITS = [(6, 2), (5, 2, 1), (2, 2, 4), (7, 1)]

#: Enough work in a slice for six to take longer than two, whatever else the machine does.
HEAVY_JOB = """
import keras
import numpy as np


def build(settings):
    generator = np.random.default_rng(4)
    x = generator.normal(size=(2048, 256)).astype("float32")
    y = generator.integers(0, 4, size=2048)
    layers = [keras.Input((256,)), keras.layers.Dense(768, activation="relu")]
    model = keras.Sequential([*layers, keras.layers.Dropout(0.2), keras.layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss=loss)
    return model, (x, y), None
"""


@pytest.mark.nightly
@pytest.mark.parametrize("reduction", [ReductionMode.EXACT, ReductionMode.FAST])
def test_uneven_splits_report_their_speed_and_keep_the_bits(
    reduction: ReductionMode, tmp_path: Path
) -> None:
    spec = training_spec(
        reduction=reduction,
        num_virtual_nodes=8,
        global_batch_size=1024,
        stop=StopCondition(kind=StopKind.STEPS, limit=220),
    )
    with local_job(tmp_path, spec, HEAVY_JOB, num_slots=4) as job:
        job.wants_profile = True
        memberships = [job.plan(2, None, runs(SPLITS[0]))]
        for split in SPLITS[1:]:
            memberships.append(job.plan(len(split), memberships[-1], runs(split)))
        prepared(job, memberships)
        check_profile(job, 0, [1, 2, 4, 6])
        check_profile(job, 1, [1, 2])
        for number, membership in enumerate(memberships):
            job.wait_step(number * 40)
            job.go(membership)
            job.wait_switched(membership)
            assert job.finished() is None, "the job ended before all splits: give it more steps"
        result = job.wait_finished()
        check_computing(job, SPLITS)
    if reduction is ReductionMode.EXACT:
        alone = undisturbed(tmp_path / "one", spec, HEAVY_JOB, num_slots=1)
        assert alone["digest"] == result["digest"]


def check_profile(job: LocalJob, slot: int, sizes: list[int]) -> None:
    """See that a joiner timed some of the sizes that it was to time, and at least the first."""
    report = job.trainers[slot].last(ReportKind.READY)
    assert report is not None
    measured = report.data["profile"]
    assert [int(number) for number in measured] == sizes[: len(measured)]
    assert all(0.0 < seconds < 60.0 for seconds in measured.values())


def check_computing(job: LocalJob, splits: list[tuple[int, ...]]) -> None:
    """See that every membership's leader heard of all members, and of the loaded one the most."""
    for generation, split in enumerate(splits, start=1):
        heard = [
            report.data["compute_s"]
            for report in job.trainers[0].reports
            if report.kind is ReportKind.STEPS and report.generation == generation
        ]
        assert heard[0] == {}, "the first step of a membership is no measure"
        told = [row for row in heard if row]
        slots = [str(slot) for slot in range(len(split))]
        assert all(sorted(row) == slots for row in told)
        whole = [
            report.data["seconds"] / (report.data["last_step"] - report.data["first_step"] + 1)
            for report in job.trainers[0].reports
            if report.kind is ReportKind.STEPS and report.generation == generation
        ]
        assert all(min(row.values()) > 0.0 for row in told)
        assert min(max(row.values()) for row in told) < 2.0 * max(whole)
        if generation == len(splits):  # seven virtual nodes against one
            median_s = [statistics.median(row[slot] for row in told) for slot in slots]
            assert median_s[0] > 1.5 * median_s[1]
