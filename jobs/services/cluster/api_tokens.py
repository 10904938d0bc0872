"""API tokens of programs: created by their owner, shown once, revocable."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from django.contrib.auth.models import User

from jobs.exceptions import ConflictError, InvalidInputError, NotFoundError
from jobs.models import ApiToken, AuditAction
from jobs.services.cluster.tokens import token_digest, token_make
from jobs.services.lifecycle.audit import audit_add

#: `admin` is for admins only: with it a token sees and does what its user may in a session.
SCOPES = ("jobs:read", "jobs:write", "admin")
JOB_SCOPES = ("jobs:read", "jobs:write")
LIFETIME_DAYS_LIMIT = 366
TOKENS_LIMIT = 50


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
    if not isinstance(name, str) or not 1 <= len(name.strip()) <= 60 or not name.isprintable():
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


def api_tokens_revoke(user: User, now: datetime.datetime) -> int:
    """Revoke all of a user's tokens; return their number."""
    return ApiToken.objects.filter(user=user, revoked_at=None).update(revoked_at=now)
