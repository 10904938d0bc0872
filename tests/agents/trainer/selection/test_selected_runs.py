"""Real trainer processes that select their examples: the bits do not depend on the mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents.trainer.local.local_cluster import LocalJob
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.wire import ReportKind, StopCondition, StopKind, TrainingSpec
from tests.agents.trainer.local_jobs import local_job, training_spec
from tests.agents.trainer.scheduled_trainer import scheduled_program

METHODS = [method for method in SelectionMethod if method is not SelectionMethod.NONE]


def selecting_spec(method: SelectionMethod, num_epochs: int = 16, **more: Any) -> TrainingSpec:
    """Make a spec that selects from epoch 2 to the last but one."""
    selection = SelectionSpec(
        method=method, history=64, stale_every=2, start=2, end=num_epochs - 1, loss_cap=5.0
    )
    stop = StopCondition(kind=StopKind.EPOCHS, limit=num_epochs)
    return training_spec(selection=selection, stop=stop, **more)


def undisturbed(folder: Path, spec: TrainingSpec) -> dict[str, Any]:
    """Run a job on one accelerator from start to end."""
    folder.mkdir()
    with local_job(folder, spec) as job:
        job.resize(1)
        return job.wait_finished()


def steps_reported(job: LocalJob) -> list[dict[str, Any]]:
    """Return the data of all STEPS reports."""
    reports = [report for trainer in job.trainers.values() for report in trainer.reports]
    return [report.data for report in reports if report.kind is ReportKind.STEPS]


@pytest.mark.parametrize("method", METHODS)
def test_a_selecting_job_resized_1_3_2_4_ends_with_the_undisturbed_bits(
    method: SelectionMethod, tmp_path: Path
) -> None:
    spec = selecting_spec(method)
    expected = undisturbed(tmp_path / "one", spec)
    with local_job(tmp_path, spec, num_slots=6) as job:
        job.program = scheduled_program({1: 13, 2: 18, 3: 27})
        memberships = [job.plan(1, None)]
        for size in (3, 2, 4):
            memberships.append(job.plan(size, memberships[-1]))
        for membership in memberships:
            job.prepare(membership)
        for membership in memberships:
            job.wait_ready(membership)
        for membership in memberships:
            job.go(membership)
            job.wait_switched(membership)
            assert job.finished() is None, "the job ended before all resizes: give it more steps"
        result = job.wait_finished()
    assert result["digest"] == expected["digest"]
    assert result["metrics"] == expected["metrics"]
    assert result["step"] == expected["step"]
