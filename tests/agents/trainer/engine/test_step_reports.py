"""Reports of steps: those of half a second are one."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.engine.step_reports import StepReports
from agents.trainer.model.progress import Progress
from agents.trainer.step.stepper import StepOutcome
from controlplane.core.protocol.wire import ReportKind


class Written(ReportWriter):
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.data: list[Any] = []

    def write(self, kind: ReportKind, data: Any, generation: int | None = None) -> None:
        assert (kind, generation) == (ReportKind.STEPS, None)
        self.data.append(data)


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
    reports = StepReports(written, 1, lambda: 0.1, report_every_s=lambda: math.inf)
    reports._reported_at = 0.0  # as if the first step was reported
    for step, loss in enumerate(losses, start=1):
        reports.add(Progress(step=step), 32, 0.1, StepOutcome(loss, False, {}), 32)
    reports.flush()
    (told,) = written.data
    assert (told["first_step"], told["last_step"]) == (1, len(losses))
    assert (told["loss"], told["last_loss"]) == (mean, last)


def test_the_time_between_two_reports_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a second each: every one is a report, and later those of three seconds."""
    written, every_s, now_s = Written(), 0.5, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    reports = StepReports(written, 1, lambda: 0.1, report_every_s=lambda: every_s)
    for step in range(1, 9):
        now_s += 1.0
        every_s = 3.0 if step > 2 else 0.5
        reports.add(Progress(step=step), 32, 1.0, StepOutcome(1.0, False, {}), 32)
    spans = [(told["first_step"], told["last_step"]) for told in written.data]
    assert spans == [(1, 1), (2, 2), (3, 5), (6, 8)]
