"""What the handlers of trainer reports share: the job they tell of, and reading odd numbers."""

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
    """A batch's part about one locked job.

    Attributes:
        is_loss_due: somebody may be missed; look once all of the reports are in.
        is_stalled: trainers wait for others; look again when their grace is over.
        is_settle_due: a trainer has gone, maybe the last one.
        crashed: trainers that ended although nobody asked them to.
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
    """Read a number; what is not finite travels as null and stays unknown."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def numbers_read(values: Mapping[str, Any]) -> dict[str, float | None]:
    return {str(name)[:100]: number_read(value) for name, value in list(values.items())[:200]}


def time_read(report: TrainerReport, now: datetime.datetime) -> datetime.datetime:
    """Give when it happened by the node's clock, never later than now."""
    try:
        at = datetime.datetime.fromtimestamp(report.at, tz=datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return now
    return min(at, now)
