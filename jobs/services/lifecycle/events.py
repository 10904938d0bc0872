"""Creation of events; every event is added by `event_add`."""

from __future__ import annotations

import datetime
from typing import Any

from jobs.models import Event, Job, Node

SYSTEM = "system"


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
    """Append an event; `actor` is `user:NAME`, `policy:NAME`, `node:NAME` or `system`."""
    return Event.objects.create(
        job=job, node=node, kind=kind, actor=actor, message=message, data=data or {}, at=now
    )


def user_actor(user: Any) -> str:
    """Return the actor of a user."""
    return f"user:{user.get_username()}"
