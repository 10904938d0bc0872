"""Cool-down of accelerators on which a job's trainers crash or fail to start.

A first crash may be an accident, and a retry fails fast: the accelerator stays available to the
job. From the second crash in a row on, without a trainer that got ready in between, the accelerator
is withheld from the job for a time that doubles. The same applies to a first failure that took long
to detect: a trainer that was unreachable, or not ready in time.
"""

from __future__ import annotations

import datetime

from django.conf import settings

from jobs.models import Allocation, StartFailure

#: Losses that the agent detects at once.
_CRASHES = frozenset({"crash", "memory_kill", "internal", "port_in_use", "peer_lost"})
#: Doublings after which the cool-down has reached its maximum.
_DOUBLINGS_LIMIT = 16


def start_failure_note(row: Allocation, now: datetime.datetime) -> None:
    """Count one more crash or failed start of a job on an accelerator.

    Earlier ones are forgotten when the last cool-down ended more than the longest cool-down ago.
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
    """Return the cool-down in seconds after `count` failures in a row: 0 after a first crash."""
    doublings = count - 2 if is_crash else count - 1
    if doublings < 0:
        return 0.0
    return min(settings.START_COOL_DOWN_S * 2.0**doublings, settings.START_COOL_DOWN_LIMIT_S)


def start_failure_forget(row: Allocation) -> None:
    """Reset the count after a trainer of the job got ready on the accelerator."""
    StartFailure.objects.filter(job_id=row.job_id, accelerator_id=row.accelerator_id).delete()
