"""A policy's explanation for each job: a sentence, and its expected start, or end with resizes."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from django.db.models import F

from controlplane.core.expected_starts import ExpectedStart
from controlplane.core.play import TimeRange
from controlplane.core.values.lifecycle import SCHEDULABLE_JOB_STATUSES, JobStatus
from controlplane.core.values.types import JobId
from jobs.models import Job
from jobs.services.lifecycle.events import event_add

#: Rows per UPDATE statement.
_BATCH = 500

_START = ("expected_start_earliest_at", "expected_start_latest_at")
_END = ("resized_end_earliest_at", "resized_end_latest_at")
_FIELDS = ("policy_reason", *_START, *_END)
_CHANGES = ("expected_start_changes", "expected_start_changed_at")


def reasons_save(
    reasons: Mapping[JobId, str],
    starts: Mapping[JobId, ExpectedStart],
    ends: Mapping[JobId, TimeRange],
    now: datetime.datetime,
) -> set[int]:
    """Store changed reasons, expected starts and ends of jobs; return the jobs that changed.

    Args:
        ends: of running jobs that will be resized before.
    """
    live = Job.objects.filter(status__in=[*SCHEDULABLE_JOB_STATUSES])
    changed = []
    for job in live.filter(id__in=list(reasons)).only("id", "status", *_FIELDS, *_CHANGES):
        before = (job.expected_start_earliest_at, job.expected_start_latest_at)
        bounds = _bounds(starts.get(job.pk), before, now)
        resized = (job.resized_end_earliest_at, job.resized_end_latest_at)
        resized = _bounds(ends.get(job.pk), resized, now)
        changes = (job.expected_start_changes, job.expected_start_changed_at)
        if job.status != JobStatus.PENDING:
            changes = (0, None)
        elif None not in before and None not in bounds and bounds != before:
            changes = (job.expected_start_changes + 1, now)
        found = (reasons[job.pk], *bounds, *resized, *changes)
        values = dict(zip((*_FIELDS, *_CHANGES), found, strict=True))
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
            **dict.fromkeys(_FIELDS) | {"policy_reason": text}, version=F("version") + 1
        ):
            event_add("unreadable", text, now=now, job=Job.objects.get(id=job_id))
            changed.add(job_id)
    return changed


def _bounds(
    found: TimeRange | None,
    before: tuple[datetime.datetime | None, datetime.datetime | None],
    now: datetime.datetime,
) -> tuple[datetime.datetime | None, datetime.datetime | None]:
    """Return the times of a range, or those told before while it confirms them."""
    if found is None:
        return None, None
    earliest_at, latest_at = before
    if earliest_at is not None and latest_at is not None:
        told = TimeRange((earliest_at - now).total_seconds(), (latest_at - now).total_seconds())
        if found.confirms(told):
            return before
    return (
        now + datetime.timedelta(seconds=found.earliest_s),
        now + datetime.timedelta(seconds=found.latest_s),
    )
