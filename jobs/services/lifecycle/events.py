"""Creation of events; every event is added by `events_add`."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db import transaction

from jobs.models import Event, Job, Node
from jobs.services.lifecycle.notifications import deliveries_add

SYSTEM = "system"
#: Most events of a kind that one job has of what its trainers can report as often as they like.
REPORTED_LIMIT = 100

logger = logging.getLogger("jobs.events")


def event_add(
    kind: str,
    message: str,
    *,
    now: datetime.datetime,
    job: Job | None = None,
    node: Node | None = None,
    actor: str = SYSTEM,
    data: dict[str, Any] | None = None,
) -> Event:
    """Append an event, queue the notifications about it, and log it.

    Args:
        actor: `user:NAME`, `policy:NAME`, `node:NAME` or `system`.
    """
    event = Event(
        job=job, node=node, kind=kind, actor=actor, message=message, data=data or {}, at=now
    )
    events_add([event])
    return event


def reported_event_add(
    kind: str,
    message: str,
    *,
    now: datetime.datetime,
    job: Job,
    actor: str = SYSTEM,
    data: dict[str, Any] | None = None,
) -> None:
    """Append an event that a trainer reported, unless the job has `REPORTED_LIMIT` of its kind."""
    number = job.events.filter(kind=kind).count()
    if number >= REPORTED_LIMIT:
        return
    if number == REPORTED_LIMIT - 1:
        message += ". Others like this are not listed"
    event_add(kind, message, now=now, job=job, actor=actor, data=data)


def jobs_event_add(
    kind: str,
    message: str,
    jobs: Sequence[Job],
    *,
    now: datetime.datetime,
    actor: str = SYSTEM,
    data: dict[str, Any] | None = None,
) -> None:
    """Append an event to each of `jobs`, as `event_add`, in few queries."""
    values = {"kind": kind, "actor": actor, "message": message, "data": data or {}, "at": now}
    events_add([Event(job=job, **values) for job in jobs])


def events_add(events: Sequence[Event]) -> None:
    """Append events, queue the notifications about them, and log them, in few queries."""
    deliveries_add(Event.objects.bulk_create(events))
    for event in events:
        transaction.on_commit(partial(_log, event))


def job_fields(job: Job) -> dict[str, Any]:
    """Return the fields of a log line about a job."""
    return {"job": job.pk, "generation": job.generation}


def _log(event: Event) -> None:
    """Log an event in one line, whatever its message has."""
    job, node = event.job, event.node
    fields = {"event": event.kind, **(job_fields(job) if job else {})}
    fields |= {"node": node.name} if node else {}
    about = " ".join(f"{name} {value}" for name, value in fields.items())
    logger.info("%s: %s", about, " ".join(event.message.split()), extra=fields)


def user_actor(user: Any) -> str:
    return f"user:{user.get_username()}"
