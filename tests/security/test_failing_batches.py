"""A control plane that fails over one report gets all others; one that is away loses none."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from django.utils import timezone

from agents.session.outbox import MAX_ITEMS
from controlplane.core.protocol.node_messages import LogChunk, ValidationReport
from controlplane.core.protocol.wire import ReportKind
from jobs.exceptions import TooLargeError
from jobs.models import Node
from jobs.services.reports.batches import ITEMS_LIMIT, batch_take
from tests.agents.builders import wanted_trainer
from tests.agents.conftest import Drive
from tests.agents.control_plane import ControlPlane
from tests.support.messages import batch_of


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


def test_more_items_than_any_agent_sends_are_refused_at_once() -> None:
    """A request of 8 MiB has 200,000 of them, which would keep a thread for minutes."""
    assert ITEMS_LIMIT >= 10 * MAX_ITEMS
    many: dict[str, Any] = {
        "validations": (ValidationReport(ok=False),) * (ITEMS_LIMIT + 1),
        "logs": (LogChunk(job_id=1, slot=0, offset=0, text=""),) * (ITEMS_LIMIT + 1),
    }
    for kind, items in many.items():
        with pytest.raises(TooLargeError, match="At most 1000 items"):
            batch_take(Node(), batch_of(Node(), **{kind: items}), timezone.now())
