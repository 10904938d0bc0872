"""Reports of steps: those of half a second are one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.engine import step_reports
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_reports, "REPORT_EVERY_S", math.inf)
    written = Written()
    reports = StepReports(written, 1, lambda: 0.1)
    reports._reported_at = 0.0  # as if the first step was reported
    for step, loss in enumerate(losses, start=1):
        reports.add(Progress(step=step), 32, 0.1, StepOutcome(loss, False, {}), 32)
    reports.flush()
    (told,) = written.data
    assert (told["first_step"], told["last_step"]) == (1, len(losses))
    assert (told["loss"], told["last_loss"]) == (mean, last)
