"""Jobs that lost trainers a moment ago and hold less than their minimum."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from django.conf import settings
from django.db.models import Q

from controlplane.core.scheduling.replacements import ShortJob
from controlplane.core.values import types
from jobs.models import Allocation, Generation, Job
from jobs.models.jobs import PREEMPTED


def short_jobs(
    jobs: Iterable[tuple[Job, types.Job]],
    newest_open: Mapping[int, Generation],
    manned: Mapping[int, tuple[int, ...]],
    now: datetime.datetime,
) -> list[ShortJob]:
    """List the jobs for which accelerators are kept, `REPLACE_LIMIT_S` from their loss on.

    Either their survivors wait in memory, or nobody has survived and they are to begin again from
    their checkpoint.
    """
    since = now - datetime.timedelta(seconds=settings.REPLACE_LIMIT_S)
    short = [
        (row, job)
        for row, job in jobs
        if len(manned.get(row.pk, ())) < row.min_accelerators
        and _lost_after(since, row, newest_open.get(row.pk))
    ]
    lost: dict[int, set[int]] = {row.pk: set() for row, _ in short}
    if lost:
        for job_id, accelerator_id in _losses(lost, since):
            lost[job_id].add(accelerator_id)
    return [
        ShortJob(job=job, held=manned.get(row.pk, ()), lost=frozenset(lost[row.pk]))
        for row, job in short
    ]


def _lost_after(since: datetime.datetime, job: Job, newest: Generation | None) -> bool:
    """Say whether a job waits since then because it lost trainers."""
    if newest is not None:
        return newest.is_held and newest.asked_at > since
    was_restarted = job.restarts > 0 and job.status_code != PREEMPTED
    return was_restarted and job.pending_since is not None and job.pending_since > since


def _losses(job_ids: Iterable[int], since: datetime.datetime) -> Iterable[tuple[int, int]]:
    """List (job, accelerator) of trainers that took part and did not leave by themselves."""
    gone = Q(released_at__gt=since) | Q(released_at=None, stop_asked_at__isnull=False)
    rows = Allocation.objects.filter(
        gone,
        job_id__in=list(job_ids),
        joined_at__isnull=False,
        left_at=None,
        finished_at=None,
    )
    return rows.values_list("job_id", "accelerator_id")
