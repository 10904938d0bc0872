"""A policy's explanation for each job: a sentence, and the expected start of a waiting job."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from django.db.models import F

from controlplane.core.expected_starts import ExpectedStart
from controlplane.core.values.lifecycle import SCHEDULABLE_JOB_STATUSES, JobStatus
from controlplane.core.values.types import JobId
from jobs.models import Job
from jobs.services.lifecycle.events import event_add

#: Rows per UPDATE statement.
_BATCH = 500

_FIELDS = ("policy_reason", "expected_start_earliest_at", "expected_start_latest_at")
_CHANGES = ("expected_start_changes", "expected_start_changed_at")


def reasons_save(
    reasons: Mapping[JobId, str], starts: Mapping[JobId, ExpectedStart], now: datetime.datetime
) -> set[int]:
    """Store changed reasons and expected starts of jobs; return the jobs that changed."""
    live = Job.objects.filter(status__in=[*SCHEDULABLE_JOB_STATUSES])
    changed = []
    for job in live.filter(id__in=list(reasons)).only("id", "status", *_FIELDS, *_CHANGES):
        reason, start = reasons[job.pk], starts.get(job.pk)
        before = (job.expected_start_earliest_at, job.expected_start_latest_at)
        bounds = (None, None) if start is None else _bounds(start, before, now)
        changes = (job.expected_start_changes, job.expected_start_changed_at)
        if job.status != JobStatus.PENDING:
            changes = (0, None)
        elif None not in before and None not in bounds and bounds != before:
            changes = (job.expected_start_changes + 1, now)
        values = dict(zip((*_FIELDS, *_CHANGES), (reason, *bounds, *changes), strict=True))
        if any(getattr(job, name) != value for name, value in values.items()):
            for name, value in values.items():
                setattr(job, name, value)
            job.version = F("version") + 1
            changed.append(job)
    # `live` leaves out jobs that have ended meanwhile: these keep the explanation of their end.
    live.bulk_update(changed, [*_FIELDS, *_CHANGES, "version"], batch_size=_BATCH)
    return {job.pk for job in changed}


def unreadable_note(errors: Mapping[JobId, str], now: datetime.datetime) -> set[int]:
    """Explain to jobs that the snapshot left out why they stay as they are; return the changed."""
    changed = set()
    for job_id, error in errors.items():
        text = (
            f"One of the job's values cannot be read ({error}). It keeps the accelerators that it "
            "holds and gets no others; cancel it and submit it again."
        )
        live = Job.objects.filter(id=job_id, status__in=[*SCHEDULABLE_JOB_STATUSES])
        if live.exclude(policy_reason=text).update(
            **dict(zip(_FIELDS, (text, None, None), strict=True)), version=F("version") + 1
        ):
            event_add("unreadable", text, now=now, job=Job.objects.get(id=job_id))
            changed.add(job_id)
    return changed


def _bounds(
    start: ExpectedStart, before: tuple[datetime.datetime | None, ...], now: datetime.datetime
) -> tuple[datetime.datetime | None, ...]:
    """Return the times of an expected start, or those told before while it confirms them."""
    earliest_at, latest_at = before
    if earliest_at is not None and latest_at is not None:
        told = ExpectedStart((earliest_at - now).total_seconds(), (latest_at - now).total_seconds())
        if start.confirms(told):
            return before
    bounds_s = (start.earliest_s, start.latest_s)
    return tuple(now + datetime.timedelta(seconds=seconds) for seconds in bounds_s)
