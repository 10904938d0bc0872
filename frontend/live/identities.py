"""Identities of the users of sessions, read for many sessions at once by the event streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, load_backend
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import close_old_connections
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from jobs.models import ProjectMembership
from jobs.selectors.access import is_admin

#: Most values of one query; databases have limits.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Identity:
    """A user, whether the user sees all jobs, and the projects whose jobs are seen."""

    person_id: int
    sees_all: bool = False
    projects: frozenset[int] = frozenset()

    def sees(self, owner: tuple[int, int | None] | None) -> bool:
        """Return whether the user sees a job of this owner and project."""
        if self.sees_all:
            return True
        return owner is not None and (owner[0] == self.person_id or owner[1] in self.projects)


def identities_of(session_keys: Iterable[str]) -> dict[str, Identity]:
    """Return the users of the sessions that are valid now, by session.

    The conditions are those of `django.contrib.auth.get_user`. Three queries for every 500
    sessions; the database connection is not kept.
    """
    keys = sorted(set(session_keys))
    try:
        found: dict[str, Identity] = {}
        for start in range(0, len(keys), _AT_ONCE):
            found |= _identities(keys[start : start + _AT_ONCE])
        return found
    finally:
        close_old_connections()


def _identities(keys: list[str]) -> dict[str, Identity]:
    sessions = Session.objects.filter(session_key__in=keys, expire_date__gt=timezone.now())
    contents = {session.session_key: session.get_decoded() for session in sessions}
    user_ids = {key: _user_id(content) for key, content in contents.items()}
    users = User.objects.in_bulk({user_id for user_id in user_ids.values() if user_id is not None})
    projects: dict[int, set[int]] = defaultdict(set)
    memberships = ProjectMembership.objects.filter(user__in=users).order_by()
    for member_id, project_id in memberships.values_list("user_id", "project_id"):
        projects[member_id].add(project_id)
    found = {}
    for key, user_id in user_ids.items():
        user = users.get(user_id or 0)
        if user is not None and _is_valid(contents[key], user):
            found[key] = Identity(user.pk, is_admin(user), frozenset(projects[user.pk]))
    return found


def _user_id(content: Mapping[str, Any]) -> int | None:
    text = str(content.get(SESSION_KEY, ""))
    return int(text) if text.isascii() and text.isdecimal() else None


def _is_valid(content: Mapping[str, Any], user: User) -> bool:
    """Return whether a login is that of the user as the user is now."""
    path = content.get(BACKEND_SESSION_KEY)
    if path not in settings.AUTHENTICATION_BACKENDS:
        return False
    backend = load_backend(path)
    if not (isinstance(backend, ModelBackend) and backend.user_can_authenticate(user)):
        return False
    given = content.get(HASH_SESSION_KEY) or ""
    hashes = (user.get_session_auth_hash(), *user.get_session_auth_fallback_hash())
    return any(constant_time_compare(given, each) for each in hashes)
