"""Users of logins by OpenID Connect: found by issuer and subject, made, linked, given rights."""

from __future__ import annotations

import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from jobs.models import AuditAction, ExternalIdentity
from jobs.oidc import Answer, LoginRefusedError
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import SYSTEM, user_actor

#: Accounts that wait for an admin's consent.
WAITING_LIMIT = 100
NAME_CHARACTERS = 150
BY = "OpenID Connect"


def user_of_login(answer: Answer, now: datetime.datetime) -> User:
    """Return the user of an account of the provider, with the admin rights of its groups.

    A local account is found by issuer and subject alone, never by a name or an e-mail address.
    An unknown person is given an account as `settings.OIDC_USERS` says.

    Raises:
        LoginRefusedError: the person has no account, none that is active, or not the group.
    """
    name = claimed_name(answer.claims)
    groups = _groups(answer.claims)
    if settings.OIDC_USER_GROUP and not groups & {
        settings.OIDC_USER_GROUP, settings.OIDC_ADMIN_GROUP,
    }:  # fmt: skip
        raise LoginRefusedError("group", name=name, subject=answer.subject)
    row = _identity(answer)
    user = row.user if row is not None else _user_make(answer, name, now)
    if not user.is_active:
        reason = "waiting" if user.last_login is None else "inactive"
        raise LoginRefusedError(reason, name=user.get_username(), subject=answer.subject)
    _rights_set(user, groups)
    return user


def identity_link(user: User, answer: Answer, now: datetime.datetime) -> None:
    """Let an account of the provider log in as this user from now on.

    Raises:
        LoginRefusedError: it logs in another user, or the user has another one.
    """
    wanted = {"issuer": settings.OIDC_ISSUER, "subject": answer.subject, "user": user}
    try:
        with transaction.atomic():
            ExternalIdentity.objects.create(**wanted, created_at=now)
            audit_add(AuditAction.IDENTITY_LINKED, user_actor(user), subject=answer.subject, by=BY)
    except IntegrityError:
        if not ExternalIdentity.objects.filter(**wanted).exists():
            name = claimed_name(answer.claims)
            raise LoginRefusedError("linked", name=name, subject=answer.subject) from None


def identity_of(user: User) -> ExternalIdentity | None:
    """Return the account of the present provider that logs this user in."""
    return ExternalIdentity.objects.filter(user=user, issuer=settings.OIDC_ISSUER).first()


def claimed_name(claims: dict[str, Any]) -> str:
    """Return the name that the provider gives a person; empty if it is no short text."""
    value = claims.get(settings.OIDC_NAME_CLAIM)
    name = User.normalize_username(value) if isinstance(value, str) else ""
    return name if name.isprintable() and len(name) <= NAME_CHARACTERS else ""


def _identity(answer: Answer) -> ExternalIdentity | None:
    rows = ExternalIdentity.objects.select_related("user")
    return rows.filter(issuer=settings.OIDC_ISSUER, subject=answer.subject).first()


def _groups(claims: dict[str, Any]) -> set[str]:
    value = claims.get(settings.OIDC_GROUPS_CLAIM)
    words = value if isinstance(value, list) else [value]
    return {word for word in words if isinstance(word, str) and word}


def _user_make(answer: Answer, name: str, now: datetime.datetime) -> User:
    waits = settings.OIDC_USERS == "ask"
    reason = _reason_against(name, waits=waits)
    if reason:
        raise LoginRefusedError(reason, name=name, subject=answer.subject)
    user = User(username=name, is_active=not waits)
    user.set_unusable_password()
    try:
        with transaction.atomic():
            user.save()
            ExternalIdentity.objects.create(
                user=user, issuer=settings.OIDC_ISSUER, subject=answer.subject, created_at=now
            )
            audit_add(
                AuditAction.USER_MADE, user_actor(user), actor=SYSTEM, now=now,
                by=BY, subject=answer.subject, is_active=user.is_active,
            )  # fmt: skip
    except IntegrityError:
        # The same person in another window, or somebody of the same name, was first.
        row = _identity(answer)
        if row is None:
            raise LoginRefusedError("name_taken", name=name, subject=answer.subject) from None
        return row.user
    return user


def _reason_against(name: str, *, waits: bool) -> str:
    """Return why no account of this name is made; empty if one is."""
    if settings.OIDC_USERS == "known":
        return "unknown"
    try:
        User(username=name).clean_fields(exclude={"password"})
    except ValidationError:
        return "name_invalid"
    if User.objects.filter(username__iexact=name).exists():
        return "name_taken"
    waiting = User.objects.filter(
        is_active=False, last_login=None, external_identities__issuer=settings.OIDC_ISSUER
    )
    return "full" if waits and waiting.count() >= WAITING_LIMIT else ""


@transaction.atomic
def _rights_set(user: User, groups: set[str]) -> None:
    """Make the user an admin or not, if the provider decides that; superusers stay as they are."""
    if not settings.OIDC_ADMIN_GROUP or user.is_superuser:
        return
    is_staff = settings.OIDC_ADMIN_GROUP in groups
    if User.objects.filter(pk=user.pk, is_staff=not is_staff).update(is_staff=is_staff):
        user.is_staff = is_staff
        audit_add(
            AuditAction.USER_CHANGED, user_actor(user), actor=SYSTEM, is_staff=is_staff, by=BY
        )
