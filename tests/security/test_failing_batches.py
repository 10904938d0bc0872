"""A control plane that fails over one report gets all others; one that is away loses none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from controlplane.core.protocol.wire import ReportKind
from tests.agents.builders import wanted_trainer
from tests.agents.conftest import DrivenAgent
from tests.agents.control_plane import ControlPlane

Drive = Callable[..., DrivenAgent]


def test_one_report_that_fails_does_not_hold_up_the_others(
    plane: ControlPlane, drive: Drive
) -> None:
    plane.refuse_report = lambda report: report.kind is ReportKind.READY and report.slot == 0
    plane.refusal = 500
    driven = drive()
    plane.want(wanted_trainer(plane), wanted_trainer(plane, slot=1, job_id=2))
    driven.until(lambda: len(plane.reports(2, 1)) > 10)
    driven.until(lambda: len(plane.reports(1, 0)) > 10)
    assert [report.sequence for report in plane.reports(1, 0)][:5] == [0, 2, 3, 4, 5]
    assert [report.sequence for report in plane.reports(2, 1)][:5] == [0, 1, 2, 3, 4]


def test_nothing_is_dropped_while_the_control_plane_fails_over_everything(
    plane: ControlPlane, drive: Drive
) -> None:
    driven = drive()
    plane.refuse_with["reports/"] = 500
    plane.want(wanted_trainer(plane))
    rounds = count()
    driven.until(lambda: next(rounds) > 300)
    plane.refuse_with.clear()
    driven.until(lambda: len(plane.reports(1, 0)) > 10)
    assert [report.sequence for report in plane.reports(1, 0)][:5] == [0, 1, 2, 3, 4]
