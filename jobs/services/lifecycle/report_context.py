"""Context shared by the report handlers: the locked job and follow-up checks."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

from controlplane.core.protocol.wire import TrainerReport
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES
from jobs.models import Allocation, Generation, Job, Node


@dataclass(slots=True)
class ReportContext:
    """Reports of one batch about one locked job.

    Attributes:
        away_s: seconds in which the node could not report.
        is_loss_due: a trainer may be lost; check once all reports are in.
        is_stalled: trainers wait for others; check again after the grace period.
        is_settle_due: a trainer has exited, maybe the last one.
        crashed: trainers that exited unexpectedly.
    """

    job: Job
    node: Node
    now: datetime.datetime
    away_s: float = 0.0
    is_loss_due: bool = False
    is_stalled: bool = False
    is_settle_due: bool = False
    crashed: list[Allocation] = field(default_factory=list)

    @property
    def is_live(self) -> bool:
        return self.job.status not in ENDED_JOB_STATUSES

    def generation(self, number: int) -> Generation | None:
        return self.job.generations.filter(number=number).first()


def time_read(report: TrainerReport, now: datetime.datetime) -> datetime.datetime:
    """Return the time of a report by the node's clock, never later than now."""
    try:
        at = datetime.datetime.fromtimestamp(report.at, tz=datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return now
    return min(at, now)
