"""A policy's explanation for each job: a sentence, and its expected start, or end with resizes."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from django.db import transaction
from django.db.models import F

from controlplane.core.expected_starts import ExpectedStart
from controlplane.core.play import TimeRange
from controlplane.core.values.lifecycle import SCHEDULABLE_JOB_STATUSES, JobStatus
from controlplane.core.values.types import JobId
from jobs.models import Job, JobForecast
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.transitions import job_rows_lock

#: Rows per UPDATE statement.
_BATCH = 500

_START = ("expected_start_earliest_at", "expected_start_latest_at")
_END = ("resized_end_earliest_at", "resized_end_latest_at")
_CHANGES = ("expected_start_changes", "expected_start_changed_at")
_FORECAST = (*_START, *_END, *_CHANGES)


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
    forecasts = []
    known = live.filter(id__in=list(reasons)).select_related("forecast")
    for job in known.only("id", "status", "policy_reason", "forecast"):
        forecast = JobForecast.of(job)
        before = (forecast.expected_start_earliest_at, forecast.expected_start_latest_at)
        bounds = _bounds(starts.get(job.pk), before, now)
        resized = (forecast.resized_end_earliest_at, forecast.resized_end_latest_at)
        resized = _bounds(ends.get(job.pk), resized, now)
        changes = (forecast.expected_start_changes, forecast.expected_start_changed_at)
        if job.status != JobStatus.PENDING:
            changes = (0, None)
        elif None not in before and None not in bounds and bounds != before:
            changes = (forecast.expected_start_changes + 1, now)
        values = dict(zip(_FORECAST, (*bounds, *resized, *changes), strict=True))
        is_new = any(getattr(forecast, name) != value for name, value in values.items())
        if is_new:
            forecasts.append(JobForecast(job_id=job.pk, **values))
        if is_new or job.policy_reason != reasons[job.pk]:
            job.policy_reason = reasons[job.pk]
            job.version = F("version") + 1
            changed.append(job)
    with transaction.atomic():
        # Jobs that have ended meanwhile keep the explanation of their end.
        ids = set(job_rows_lock(live.filter(id__in=[job.pk for job in changed])))
        changed = [job for job in changed if job.pk in ids]
        Job.objects.bulk_update(changed, ["policy_reason", "version"], batch_size=_BATCH)
        JobForecast.objects.bulk_create(
            [row for row in forecasts if row.job_id in ids],
            batch_size=_BATCH,
            update_conflicts=True,
            update_fields=_FORECAST,
            unique_fields=["job"],
        )
    return ids


def unreadable_note(errors: Mapping[JobId, str], now: datetime.datetime) -> set[int]:
    """Explain to jobs that the snapshot left out why they stay as they are; return the changed."""
    changed = set()
    for job_id, error in errors.items():
        text = (
            f"One of the job's values cannot be read ({error}). It keeps the accelerators that it "
            "holds and gets no others; cancel it and submit it again."
        )
        live = Job.objects.filter(id=job_id, status__in=[*SCHEDULABLE_JOB_STATUSES])
        with transaction.atomic():
            told = live.exclude(policy_reason=text)
            if told.update(policy_reason=text, version=F("version") + 1):
                JobForecast.objects.filter(job=job_id).update(**dict.fromkeys((*_START, *_END)))
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
