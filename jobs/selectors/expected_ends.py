"""Range of the expected end of a running job, at the speed on its present accelerators."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from controlplane.core.expected_starts import UNCERTAINTY
from controlplane.core.protocol.wire import StopKind
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job, StepReport
from jobs.selectors.cluster import remaining_work

#: Work beyond this is not told: 10 years.
_LEFT_LIMIT_S = 10 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class ExpectedEnd:
    """Times between which a running job ends.

    Attributes:
        earliest_at: None if its stop condition, the value of a metric, may be met at any time.
    """

    earliest_at: datetime.datetime | None
    latest_at: datetime.datetime


def expected_end_of(job: Job, now: datetime.datetime) -> ExpectedEnd | None:
    """Return when a running job ends; None while unknown, or if the range has passed.

    The work left, which may take `UNCERTAINTY` times shorter or longer as in forecasts of starts,
    is divided by the mean speed on as many accelerators as the newest steps were done on. Times
    count from these steps, so they change with reports only.
    """
    if job.status != JobStatus.RUNNING:
        return None
    steps = StepReport.objects.filter(job=job).order_by("-last_step", "-id")
    newest = steps.values_list("at", "num_accelerators").first()
    left = remaining_work(job, is_metric_missed=True)
    if newest is None or left is None:
        return None
    at, num_accelerators = newest
    speed = job.throughput_by_count.get(str(num_accelerators))
    if not speed or left / speed > _LEFT_LIMIT_S:
        return None
    left_s = left / speed
    latest_at = at + datetime.timedelta(seconds=left_s * UNCERTAINTY)
    if latest_at < now:
        return None
    if job.stop_kind == StopKind.METRIC:
        return ExpectedEnd(None, latest_at)
    return ExpectedEnd(at + datetime.timedelta(seconds=left_s / UNCERTAINTY), latest_at)
