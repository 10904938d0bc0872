"""Runs of a job by the engine, with and without a selection, on accelerators that change."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.selection_runs import job as job_module
from benchmarks.specs import spec_make
from controlplane.core.protocol.selection import SelectionSpec
from controlplane.core.protocol.wire import ReportKind, StopCondition, TrainingSpec
from tests.support.steered_jobs import SteeredJob

BATCH_SIZE = 64
#: Steps after which a second accelerator joins, and after which it leaves.
JOIN_STEP, LEAVE_STEP = 20, 60
LIMIT_S = 3600.0


@dataclass(frozen=True)
class Reached:
    """The work of a run up to the end of an epoch.

    Attributes:
        accuracy: on the validation data, at the end of this epoch.
        plain: examples of the training steps of epochs that select nothing.
        chosen: those of epochs that select.
        seconds: of steps and selection passes, by the clock.
    """

    epoch: int
    accuracy: float
    plain: int
    chosen: int
    analysed: int
    candidates: int
    seconds: float

    @property
    def trained(self) -> int:
        """Examples of all training steps."""
        return self.plain + self.chosen


def job_spec(
    settings: dict[str, Any],
    stop: StopCondition,
    selection: SelectionSpec | None = None,
    seed: int = 1,
    **others: Any,
) -> TrainingSpec:
    """Describe a job with these settings."""
    return spec_make(settings, BATCH_SIZE, stop=stop, selection=selection, seed=seed, **others)


def run(spec: TrainingSpec) -> list[Reached]:
    """Train a job from one accelerator to two and back to one; returns its epochs.

    The second trainer boots before the first step, so that the changes come early enough.
    """
    with (
        tempfile.TemporaryDirectory(prefix="selection-") as folder,
        SteeredJob(spec, Path(job_module.__file__), Path(folder) / "trainers") as job,
    ):
        alone = job.plan(1, None)
        job.prepare(alone)
        both = job.plan(2, alone)
        job.prepare(both)
        job.wait_ready(both)
        job.go(alone)
        job.wait_switched(alone)
        job.wait_step(JOIN_STEP, LIMIT_S)
        if job.finished() is None:
            job.go(both)
            job.wait_switched(both)
            job.wait_step(LEAVE_STEP, LIMIT_S)
        if job.finished() is None:
            job.resize(1)
        job.wait_finished(LIMIT_S)
        return _epochs(job)


def _epochs(job: SteeredJob) -> list[Reached]:
    """Sum the reports of steps up to each epoch's end; the leader stays the same."""
    steps = [report.data for report in job.step_reports()]
    ends = {
        report.data["epoch"]: report.data
        for trainer in job.trainers.values()
        for report in trainer.reports
        if report.kind is ReportKind.EPOCH
    }
    selecting = {data["epoch"] for data in steps if data["candidates"]}
    rows = []
    for epoch in sorted(ends):
        done = [data for data in steps if data["last_step"] <= ends[epoch]["step"]]
        chosen = [data for data in done if data["epoch"] in selecting]
        num_chosen = sum(data["examples"] for data in chosen)
        rows.append(
            Reached(
                epoch=epoch,
                accuracy=ends[epoch]["logs"]["val_accuracy"],
                plain=sum(data["examples"] for data in done) - num_chosen,
                chosen=num_chosen,
                analysed=sum(data["analysed"] for data in chosen),
                candidates=sum(data["candidates"] for data in chosen),
                seconds=sum(data["seconds"] for data in done),
            )
        )
    return rows
