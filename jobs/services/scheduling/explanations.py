"""A policy's explanation for each job: a sentence, and the expected start of a waiting job."""

from __future__ import annotations

import datetime

from django.db.models import F

from controlplane.core.values.lifecycle import SCHEDULABLE_JOB_STATUSES
from controlplane.core.values.types import Plan
from jobs.models import Job

#: Rows per UPDATE statement.
_BATCH = 500

#: Ignore changes of a start expected in t seconds that are at most this share of t ...
_MOVE_SHARE = 0.1

#: ... or at most this many seconds, whichever is larger.
_MOVE_S = 15.0


def reasons_save(plan: Plan, now: datetime.datetime) -> set[int]:
    """Store changed explanations of a plan; return the jobs that changed."""
    live = Job.objects.filter(status__in=[*SCHEDULABLE_JOB_STATUSES])
    rows = live.filter(id__in=list(plan.reasons)).only("id", "policy_reason", "expected_start_at")
    changed = []
    for job in rows:
        start_at = _start_at(plan.starts_in_s.get(job.pk), job.expected_start_at, now)
        if (job.policy_reason, job.expected_start_at) != (plan.reasons[job.pk], start_at):
            job.policy_reason = plan.reasons[job.pk]
            job.expected_start_at = start_at
            job.version = F("version") + 1
            changed.append(job)
    # `live` leaves out jobs that have ended meanwhile: these keep the explanation of their end.
    live.bulk_update(changed, ["policy_reason", "expected_start_at", "version"], batch_size=_BATCH)
    return {job.pk for job in changed}


def _start_at(
    starts_in_s: float | None, before: datetime.datetime | None, now: datetime.datetime
) -> datetime.datetime | None:
    if starts_in_s is None:
        return None
    expected = now + datetime.timedelta(seconds=starts_in_s)
    if before is not None:
        moved_s = abs((expected - before).total_seconds())
        if moved_s <= max(_MOVE_S, _MOVE_SHARE * starts_in_s):
            return before
    return expected
