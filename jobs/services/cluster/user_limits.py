"""Changes of users' limits by admins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q

from jobs.exceptions import ForbiddenError, InvalidInputError, NotFoundError, StaleVersionError
from jobs.models import AuditAction, UserLimits
from jobs.services.cluster.tokens import values_digest
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import user_actor

#: Columns of `UserLimits` that admins change.
LIMITS = (
    *("priority_ceiling", "tier_ceiling"),
    *("share_factor", "live_jobs_limit", "storage_limit_bytes"),
)


def user_version(user: User) -> str:
    """Return a digest of all that `user_change` changes."""
    return values_digest(_values(user, UserLimits.objects.filter(user_id=user.pk).first()))


@transaction.atomic
def user_change(
    name: str, changes: Mapping[str, Any], *, by: User, seen_version: str | None = None
) -> None:
    """Change limits of a user, or whether the account is active; the audit log has the values.

    Args:
        changes: columns of `LIMITS`, where None stands for the site's own limit, and `is_active`.

    Raises:
        NotFoundError: no user has this name.
        StaleVersionError: the user was changed since `seen_version`.
        InvalidInputError: the admin would deactivate the own account.
        ForbiddenError: only superusers change accounts of superusers, and `by` was deactivated just
            now.
    """
    # Both rows, in one order: of two admins who deactivate each other at once, one is left.
    rows = User.objects.select_for_update(no_key=True).filter(Q(username=name) | Q(pk=by.pk))
    users = list(rows.order_by("pk"))
    user = next((one for one in users if one.get_username() == name), None)
    if user is None:
        raise NotFoundError("There is no user of this name.")
    if not any(one.is_active for one in users if one.pk == by.pk):
        raise ForbiddenError("Your account was deactivated just now.")
    if seen_version is not None and seen_version != user_version(user):
        raise StaleVersionError("The user was changed in the meantime; read it again.")
    if user.is_superuser and not by.is_superuser:
        raise ForbiddenError("Only superusers may change the account of a superuser.")
    if user.pk == by.pk and changes.get("is_active") is False:
        raise InvalidInputError.of(is_active="Another admin has to deactivate your account.")
    row = UserLimits.objects.filter(user_id=user.pk).first() or UserLimits(user=user)
    before = _values(user, row)
    after = before | dict(changes)
    if after == before:
        return
    values = {column: after[column] for column in LIMITS}
    UserLimits.objects.update_or_create(user=user, defaults=values)
    User.objects.filter(pk=user.pk).update(is_active=after["is_active"])
    changed = {column: after[column] for column in after if after[column] != before[column]}
    audit_add(AuditAction.USER_CHANGED, user_actor(user), actor=user_actor(by), **changed)


def _values(user: User, row: UserLimits | None) -> dict[str, Any]:
    row = row or UserLimits(user=user)
    return {column: getattr(row, column) for column in LIMITS} | {"is_active": user.is_active}
