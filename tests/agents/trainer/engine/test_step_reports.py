"""Reports of steps and phases: those of half a second are one."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.engine.step_reports import PhaseReports, StepReports
from agents.trainer.model.recent_steps import StepsDone
from agents.trainer.step.outcomes import StepOutcome
from controlplane.core.protocol.wire import ReportKind, StopCondition, StopKind
from tests.agents.trainer.local_jobs import local_job, training_spec
from tests.agents.trainer.trial_jobs import HEAD

VALIDATED_JOB = (
    HEAD
    + """
def build(settings):
    return compiled(net(), metrics=["accuracy"]), (X, Y), (X[:8], Y[:8])
"""
)


class Written(ReportWriter):
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.data: list[Any] = []

    def write(self, kind: ReportKind, data: Any, generation: int | None = None) -> None:
        assert (kind, generation) == (ReportKind.STEPS, None)
        self.data.append(data)


def step_done(step: int, seconds: float, loss: float) -> StepsDone:
    return StepsDone(1, step, step, 0, 32, seconds, loss, 1, 32)


@pytest.mark.parametrize(
    ("losses", "mean", "last"),
    [
        ((4.0, 3.0, 2.0), 3.0, 2.0),
        ((math.nan, 3.0), None, 3.0),
        ((4.0, math.inf), None, None),
    ],
)
def test_a_report_has_the_mean_loss_and_the_last(
    losses: tuple[float, ...],
    mean: float | None,
    last: float | None,
) -> None:
    written = Written()
    reports = StepReports(written, lambda: 0.1, report_every_s=lambda: math.inf)
    reports._reported_at = 0.0  # as if the first step was reported
    for step, loss in enumerate(losses, start=1):
        reports.add(step_done(step, 0.1, loss), StepOutcome(loss, False, {}))
    reports.flush()
    (told,) = written.data
    assert (told["first_step"], told["last_step"]) == (1, len(losses))
    assert (told["loss"], told["last_loss"]) == (mean, last)


def test_the_time_between_two_reports_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a second each: every one is a report, and later those of three seconds."""
    written, every_s, now_s = Written(), 0.5, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    reports = StepReports(written, lambda: 0.1, report_every_s=lambda: every_s)
    for step in range(1, 9):
        now_s += 1.0
        every_s = 3.0 if step > 2 else 0.5
        reports.add(step_done(step, 1.0, 1.0), StepOutcome(1.0, False, {}))
    spans = [(told["first_step"], told["last_step"]) for told in written.data]
    assert spans == [(1, 1), (2, 2), (3, 5), (6, 8)]


def test_a_phase_that_soon_ends_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five short evaluations, and one that lasts."""
    told: list[tuple[float, str]] = []
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    writer = cast(ReportWriter, SimpleNamespace(phase=lambda name: told.append((now_s, name))))
    phases = PhaseReports(writer, "training", lambda: 0.5)
    for _ in range(5):
        phases.begin("evaluating")
        phases.begin("training")
        phases.settle()
        now_s += 0.2
    phases.begin("evaluating")
    for _ in range(10):
        now_s += 0.2
        phases.settle()
    assert [(round(at, 1), phase) for at, phase in told] == [
        (100.0, "evaluating"),
        (100.6, "training"),
        (101.2, "evaluating"),
    ]


def test_a_job_of_short_epochs_reports_each_of_them_and_little_else(tmp_path: Path) -> None:
    stop = StopCondition(kind=StopKind.EPOCHS, limit=30)
    with local_job(tmp_path, training_spec(stop=stop, global_batch_size=24), VALIDATED_JOB) as job:
        job.report_every_s = 3600.0
        job.resize(1)
        job.wait_finished()
        job.trainers[0].read()
        reports = job.trainers[0].reports
    of_kind = {kind: [row.data for row in reports if row.kind is kind] for kind in ReportKind}
    steps = [(row["first_step"], row["last_step"]) for row in of_kind[ReportKind.STEPS]]
    assert steps == [(1, 1), (2, 30)]
    assert [row["epoch"] for row in of_kind[ReportKind.EPOCH]] == list(range(30))
    phases = [row["phase"] for row in of_kind[ReportKind.PHASE]]
    assert phases == ["booting", "building", "tracing", "training", "evaluating", "saving"]
