"""API tokens of programs: created by their owner, shown once, revocable."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import transaction
from django.http import HttpRequest

from jobs.exceptions import ConflictError, InvalidInputError, NotFoundError
from jobs.models import ApiToken, AuditAction, AuditEntry
from jobs.origins import client_network
from jobs.services.cluster.tokens import token_digest, token_make
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import user_actor
from jobs.submission import unprintable

#: `admin` is for admins only: with it a token sees and does what its user may in a session.
SCOPES = ("jobs:read", "jobs:write", "admin")
JOB_SCOPES = ("jobs:read", "jobs:write")
LIFETIME_DAYS_LIMIT = 366
TOKENS_LIMIT = 50
#: Resolution of a token's last use; a write for every request would cost too much.
LAST_USE_EVERY = datetime.timedelta(minutes=1)
#: Newest networks that a token was used from, as far as they are known ones.
NETWORKS_LIMIT = 16
NETWORKS_CACHED_S = 3600


@transaction.atomic
def api_token_create(
    user: User,
    name: str,
    now: datetime.datetime,
    *,
    scopes: Sequence[str] = JOB_SCOPES,
    lifetime_days: int = 90,
) -> tuple[ApiToken, str]:
    """Create a token that acts for `user`; only this call returns its text.

    Raises:
        InvalidInputError: a field is out of bounds.
        ConflictError: the user has too many tokens.
    """
    fields: dict[str, list[str]] = {}
    if not isinstance(name, str) or not 1 <= len(name.strip()) <= 60 or unprintable(name):
        fields["name"] = ["Give 1 to 60 printable characters."]
    if not isinstance(scopes, list | tuple) or not scopes or not {*map(str, scopes)} <= {*SCOPES}:
        fields["scopes"] = [f"Give one or more of {', '.join(SCOPES)}."]
    elif "admin" in scopes and not user.is_staff:
        fields["scopes"] = ["Only an admin's token can have the scope admin."]
    is_whole = isinstance(lifetime_days, int) and not isinstance(lifetime_days, bool)
    if not is_whole or not 1 <= lifetime_days <= LIFETIME_DAYS_LIMIT:
        fields["lifetime_days"] = [f"Give a whole number from 1 to {LIFETIME_DAYS_LIMIT}."]
    if fields:
        raise InvalidInputError("The token's description is not valid.", fields=fields)
    live = ApiToken.objects.filter(user=user, revoked_at=None, expires_at__gt=now)
    if live.count() >= TOKENS_LIMIT:
        raise ConflictError("Revoke a token first.", code="too_many_tokens")
    text = token_make("vfp")
    row = ApiToken.objects.create(
        user=user,
        name=name.strip(),
        digest=token_digest(text),
        scopes=sorted(set(scopes)),
        expires_at=now + datetime.timedelta(days=lifetime_days),
    )
    audit_add(
        AuditAction.TOKEN_MADE, f"token:{row.pk}", user=user.get_username(), scopes=row.scopes
    )
    return row, text


@transaction.atomic
def api_token_revoke(user: User, token_id: int, now: datetime.datetime) -> ApiToken:
    """Revoke one of the user's own tokens; a repeated call changes nothing.

    Raises:
        NotFoundError: the user has no such token.
    """
    row = ApiToken.objects.filter(user=user, id=token_id).first()
    if row is None:
        raise NotFoundError("You have no such token.")
    if ApiToken.objects.filter(id=row.pk, revoked_at=None).update(revoked_at=now):
        audit_add(AuditAction.TOKEN_REVOKED, f"token:{row.pk}", user=user.get_username())
    row.refresh_from_db()
    return row


def api_token_used(token: ApiToken, request: HttpRequest, now: datetime.datetime) -> None:
    """Note a token's use in its row, once a minute, and in the audit log per client network.

    The audit log remembers the last `NETWORKS_LIMIT` networks of a token, and gets one entry for
    each other one; the cache saves its query.
    """
    before = now - LAST_USE_EVERY
    if token.last_used_at is None or token.last_used_at < before:
        used = ApiToken.objects.filter(id=token.pk).exclude(last_used_at__gt=before)
        used.update(last_used_at=now)
    network = client_network(request)
    if network is None or not cache.add(f"token:{token.pk}:{network}", 1, NETWORKS_CACHED_S):
        return
    action, object_ = AuditAction.TOKEN_USED_ELSEWHERE, f"token:{token.pk}"
    actor = user_actor(token.user)
    entries = AuditEntry.objects.filter(action=action, actor=actor, object=object_)
    details = entries.values_list("details", flat=True)[:NETWORKS_LIMIT]
    if network not in {known.get("network") for known in details}:
        audit_add(action, object_, now=now, actor=actor, network=network)


def api_tokens_revoke(user: User, now: datetime.datetime) -> int:
    """Revoke all of a user's tokens; return their number."""
    return ApiToken.objects.filter(user=user, revoked_at=None).update(revoked_at=now)
