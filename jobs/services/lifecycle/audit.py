"""Entries of the audit log; every entry is added by `audit_add` or `audit_add_each`."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.utils import timezone

from jobs.models import AuditAction, AuditEntry, Job, Sweep
from jobs.origins import client_address, current_request
from jobs.services.lifecycle.events import SYSTEM, user_actor

ANONYMOUS = "anonymous"
#: Reads of the same part of a job by the same person are one entry within this time.
READ_EVERY = datetime.timedelta(hours=1)


def audit_add(
    action: AuditAction,
    object_: str = "",
    *,
    now: datetime.datetime | None = None,
    actor: str = "",
    **details: Any,
) -> AuditEntry:
    """Append an entry, with address and user agent of the request that is being answered.

    Args:
        actor: by default the person of that request; `system` outside of requests.
        details: values that JSON can hold.
    """
    (entry,) = audit_add_each(action, [(object_, details)], now=now, actor=actor)
    return entry


def audit_add_each(
    action: AuditAction,
    details_of: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    now: datetime.datetime | None = None,
    actor: str = "",
) -> list[AuditEntry]:
    """Append an entry for each object with its details, as `audit_add`, in one query."""
    request = current_request()
    user = getattr(request, "user", None) or AnonymousUser()
    if not actor:
        known = user_actor(user) if user.is_authenticated else ANONYMOUS
        actor = SYSTEM if request is None else known
    token = getattr(request, "auth", None)
    used = {} if token is None else {"token": token.pk}
    values = {
        "at": now or timezone.now(),
        "actor": _text(actor, 160),
        "action": action.value,
        "address": "" if request is None else client_address(request),
        "user_agent": _text("" if request is None else request.headers.get("User-Agent", ""), 200),
    }
    return AuditEntry.objects.bulk_create(
        AuditEntry(object=_text(object_, 200), details={**details, **used}, **values)
        for object_, details in details_of
    )


def read_audit(user: Any, job: Job, part: str) -> None:
    """Note that somebody reads a part of another person's job: its page, code, log or a file."""
    reads_audit(user, [job], part)


def reads_audit(user: Any, rows: Iterable[Job | Sweep], part: str) -> None:
    """Note, as `read_audit`, reads of the same part of several jobs or sweeps, in two queries."""
    others = [row for row in rows if row.owner_id != user.pk]
    read = {_text(f"{type(row).__name__.lower()}:{row.pk}/{part}", 200): row for row in others}
    if not read:
        return
    act = {"action": AuditAction.JOB_READ.value, "actor": user_actor(user)}
    since = timezone.now() - READ_EVERY
    noted = AuditEntry.objects.filter(**act, object__in=read, at__gt=since).order_by()
    known = {*noted.values_list("object", flat=True)}
    new = [
        (object_, {"owner": row.owner.get_username()})
        for object_, row in read.items()
        if object_ not in known
    ]
    if new:
        audit_add_each(AuditAction.JOB_READ, new, actor=act["actor"])


def audit_expire(now: datetime.datetime) -> int:
    """Delete entries past their retention; return their number."""
    return AuditEntry.objects.expire(now - datetime.timedelta(days=settings.AUDIT_DAYS))


def _text(text: str, limit: int) -> str:
    return text.replace("\0", "").encode(errors="replace").decode()[:limit]
