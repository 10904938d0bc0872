"""Changes that people make to locked jobs: their end, priority, tier, tags and note.

Each function changes those of its jobs that allow it, and returns the refusals of the others. The
number of its queries does not grow with that of the jobs.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from jobs.exceptions import (
    ConflictError,
    ControlPlaneError,
    InvalidInputError,
    StaleVersionError,
)
from jobs.models import AuditAction, Event, Job, Validation
from jobs.services.lifecycle.audit import audit_add_each
from jobs.services.lifecycle.events import events_add, jobs_event_add, user_actor
from jobs.services.lifecycle.search_rows import search_tags_write
from jobs.services.lifecycle.transitions import jobs_end, jobs_unchanged
from jobs.services.lifecycle.usage_days import jobs_usage_changed
from jobs.services.submission.standing import Standing
from jobs.services.submission.validations import validations_cancel
from jobs.submission import TAGS_LIMIT

#: Refusals by job.
Refusals = dict[int, ControlPlaneError]


def standings_stale(jobs: Iterable[Job], expected: Mapping[int, Standing]) -> Refusals:
    """Refuse jobs whose priority or tier is not the expected one any more."""
    refused: Refusals = {}
    for job in jobs:
        for name, value in expected[job.pk].changes(job).items():
            text = f"Its {name} is {getattr(job, name)} now, not {value}: it stays."
            refused.setdefault(job.pk, StaleVersionError(text))
    return refused


def jobs_cancel(
    jobs: Sequence[Job], now: datetime.datetime, *, actor: str, reason: str = ""
) -> Refusals:
    """Cancel jobs that have not ended; those that ended another way are refused."""
    live = [job for job in jobs if job.status not in ENDED_JOB_STATUSES]
    text = f"Cancelled by {actor}" + (f": {reason}" if reason else "")
    jobs_end(live, JobStatus.CANCELLED, now, code="cancelled", reason=text)
    own = Validation.objects.filter(job__in=live)
    validations_cancel(own, now, code="cancelled", reason=text)
    jobs_event_add("cancelled", text, live, now=now, actor=actor, data={"reason": reason})
    jobs_audit(AuditAction.JOB_CANCELLED, actor, [(job, {"reason": reason}) for job in live])
    jobs_unchanged([job for job in jobs if job not in live])
    return {
        job.pk: not_possible(job, "cancelled") for job in jobs if job.status != JobStatus.CANCELLED
    }


def jobs_reprioritise(
    jobs: Sequence[Job],
    standings: Mapping[int, Standing],
    now: datetime.datetime,
    *,
    actor: str,
    reason: str = "",
) -> Refusals:
    """Change priority and tier of jobs, effective from the next cycle; ended ones are refused.

    Args:
        standings: by job.
    """
    live = [job for job in jobs if job.status not in ENDED_JOB_STATUSES]
    changes: list[tuple[Job, dict[str, Any]]] = []
    events = []
    for job in live:
        for name, after in standings[job.pk].changes(job).items():
            data = {"before": getattr(job, name), "after": after, "reason": reason}
            text = f"{name.capitalize()} {data['before']} → {after}"
            text += f": {reason}" if reason else ""
            events.append(_event("reprioritised", text, job, now, actor, data))
            changes.append((job, data))
            setattr(job, name, after)
            job.revision += 1
    changed = {job for job, _ in changes}
    Job.objects.bulk_update(changed, ["priority", "tier", "revision"])
    jobs_unchanged([job for job in jobs if job not in changed])
    events_add(events)
    jobs_audit(AuditAction.PRIORITY_CHANGED, actor, changes)
    return {job.pk: not_possible(job, "reprioritised") for job in jobs if job not in live}


def jobs_describe(
    jobs: Sequence[Job],
    now: datetime.datetime,
    *,
    actor: str,
    tags: Sequence[str] | None = None,
    note: str | None = None,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    reason: str = "",
) -> Refusals:
    """Change tags and note of jobs in any status; jobs that would have too many are refused.

    Args:
        tags: replace the tags of all; `add` and `remove` change single ones.
    """
    refused: Refusals = {}
    changes: list[tuple[Job, dict[str, Any]]] = []
    events, retagged = [], []
    for job in jobs:
        before: dict[str, Any] = {"tags": job.tags, "note": job.note}
        kept = [tag for tag in (job.tags if tags is None else tags) if tag not in remove]
        after: dict[str, Any] = {
            "tags": list(dict.fromkeys([*kept, *add])),
            "note": job.note if note is None else note,
        }
        if len(after["tags"]) > TAGS_LIMIT:
            refused[job.pk] = InvalidInputError.of(tags=f"A job has at most {TAGS_LIMIT} tags.")
            continue
        if after == before:
            continue
        text = "Note changed"
        if after["tags"] != before["tags"]:
            text = f"Tags: {', '.join(after['tags']) or 'none'}"
            retagged.append(job)
        data = {"before": before, "after": after, "reason": reason}
        text += f": {reason}" if reason else ""
        events.append(_event("described", text, job, now, actor, data))
        changes.append((job, data))
        job.tags, job.note = after["tags"], after["note"]
        job.revision += 1
    changed = {job for job, _ in changes}
    Job.objects.bulk_update(changed, ["tags", "note", "revision"])
    jobs_unchanged([job for job in jobs if job not in changed])
    search_tags_write(retagged)
    jobs_usage_changed(retagged, now)
    events_add(events)
    jobs_audit(AuditAction.JOB_DESCRIBED, actor, changes)
    return refused


def not_possible(job: Job, verb: str) -> ConflictError:
    """Return the refusal of a change that the job's status does not allow."""
    return ConflictError(f"A job that is {job.status} cannot be {verb}.", code="wrong_status")


def _event(
    kind: str, text: str, job: Job, now: datetime.datetime, actor: str, data: dict[str, Any]
) -> Event:
    return Event(job=job, kind=kind, actor=actor, message=text, data=data, at=now)


def jobs_audit(
    action: AuditAction, actor: str, changes: Sequence[tuple[Job, Mapping[str, Any]]]
) -> None:
    """Note the changes of other people's jobs."""
    others = [(job, data) for job, data in changes if actor != user_actor(job.owner)]
    audit_add_each(action, [(f"job:{job.pk}", data) for job, data in others], actor=actor)
