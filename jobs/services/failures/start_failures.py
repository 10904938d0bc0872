"""Accelerators on which a job's trainers crash or do not come up: left alone, longer each time.

A first crash may have been an accident, and the next trainer finds out soon: the accelerator is
free for the job at once. From the second one in a row on, without a trainer that got ready in
between, the job is not offered it for a while. The same goes for a first one that took long to find
out: a trainer that was unreachable, or not ready in time.
"""

from __future__ import annotations

import datetime

from django.conf import settings

from jobs.models import Allocation, Job, StartFailure

#: Ends of a trainer that its agent sees at once.
_CRASHES = frozenset({"crash", "memory_kill", "internal", "port_in_use", "peer_lost"})
#: More doublings than this change nothing.
_DOUBLINGS_LIMIT = 16


def start_failure_note(row: Allocation, now: datetime.datetime) -> None:
    """Count one more crash or failed start of a job on an accelerator.

    Those that the longest wait has been over since are forgotten.
    """
    failure, _ = StartFailure.objects.get_or_create(
        job_id=row.job_id, accelerator_id=row.accelerator_id, defaults={"until_at": now}
    )
    if failure.until_at < now - datetime.timedelta(seconds=settings.START_COOL_DOWN_LIMIT_S):
        failure.count = 0
    failure.count = min(failure.count + 1, _DOUBLINGS_LIMIT)
    cool_down_s = _cool_down_s(failure.count, is_crash=row.lost_code in _CRASHES)
    failure.until_at = now + datetime.timedelta(seconds=cool_down_s)
    failure.save(update_fields=["count", "until_at"])


def _cool_down_s(count: int, *, is_crash: bool) -> float:
    """Give the wait after so many failures in a row: none after a first crash."""
    doublings = count - 2 if is_crash else count - 1
    if doublings < 0:
        return 0.0
    return min(settings.START_COOL_DOWN_S * 2.0**doublings, settings.START_COOL_DOWN_LIMIT_S)


def start_failure_forget(row: Allocation) -> None:
    """Note that a trainer of the job got ready there."""
    StartFailure.objects.filter(job_id=row.job_id, accelerator_id=row.accelerator_id).delete()


def start_failures_of(job: Job, now: datetime.datetime) -> list[StartFailure]:
    """List the accelerators that a job is not offered now."""
    return list(job.start_failures.filter(until_at__gt=now).select_related("accelerator__node"))
