"""Context shared by the report handlers: the locked job, follow-up checks, number parsing."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.core.protocol.wire import TrainerReport
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES
from jobs.models import Allocation, Generation, Job, Node


@dataclass(slots=True)
class ReportContext:
    """Reports of one batch about one locked job.

    Attributes:
        is_loss_due: a trainer may be lost; check once all reports are in.
        is_stalled: trainers wait for others; check again after the grace period.
        is_settle_due: a trainer has exited, maybe the last one.
        crashed: trainers that exited unexpectedly.
    """

    job: Job
    node: Node
    now: datetime.datetime
    is_loss_due: bool = False
    is_stalled: bool = False
    is_settle_due: bool = False
    crashed: list[Allocation] = field(default_factory=list)

    @property
    def is_live(self) -> bool:
        return self.job.status not in ENDED_JOB_STATUSES

    def generation(self, number: int) -> Generation | None:
        return self.job.generations.filter(number=number).first()


def number_read(value: Any) -> float | None:
    """Read a finite number; None for other values (non-finite ones are sent as null)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def numbers_read(values: Mapping[str, Any]) -> dict[str, float | None]:
    return {str(name)[:100]: number_read(value) for name, value in list(values.items())[:200]}


def time_read(report: TrainerReport, now: datetime.datetime) -> datetime.datetime:
    """Return the time of a report by the node's clock, never later than now."""
    try:
        at = datetime.datetime.fromtimestamp(report.at, tz=datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return now
    return min(at, now)
