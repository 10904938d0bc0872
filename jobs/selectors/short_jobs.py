"""Jobs below their minimum of accelerators after a recent loss of trainers."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from django.conf import settings
from django.db.models import Q

from jobs.models import Allocation, Generation, Job
from jobs.models.jobs import PREEMPTED


def short_jobs(
    jobs: Iterable[Job],
    newest_open: Mapping[int, Generation],
    manned: Mapping[int, tuple[int, ...]],
    now: datetime.datetime,
) -> dict[int, set[int]]:
    """Return the accelerators that jobs below their minimum lost in the last `REPLACE_LIMIT_S`.

    Survivors of such a job wait in memory, or none is left and the job is to restart from its
    checkpoint.
    """
    since = now - datetime.timedelta(seconds=settings.REPLACE_LIMIT_S)
    lost: dict[int, set[int]] = {
        row.pk: set()
        for row in jobs
        if len(manned.get(row.pk, ())) < row.min_accelerators
        and _lost_after(since, row, newest_open.get(row.pk))
    }
    if lost:
        for job_id, accelerator_id in _losses(lost, since):
            lost[job_id].add(accelerator_id)
    return lost


def _lost_after(since: datetime.datetime, job: Job, newest: Generation | None) -> bool:
    """Return whether a job has been waiting since a loss of trainers after `since`."""
    if newest is not None:
        return newest.is_parked and newest.requested_at > since
    was_restarted = job.restarts > 0 and job.status_code != PREEMPTED
    return was_restarted and job.pending_since is not None and job.pending_since > since


def _losses(job_ids: Iterable[int], since: datetime.datetime) -> Iterable[tuple[int, int]]:
    """List (job, accelerator) of trainers that took part and did not leave regularly."""
    gone = Q(released_at__gt=since) | Q(released_at=None, stop_requested_at__isnull=False)
    rows = Allocation.objects.filter(
        gone,
        job_id__in=list(job_ids),
        joined_at__isnull=False,
        left_at=None,
        finished_at=None,
    )
    return rows.values_list("job_id", "accelerator_id")
