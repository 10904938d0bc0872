"""Identities of the users of sessions and API tokens, read for many at once by event streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, load_backend
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import close_old_connections
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from jobs.models import ProjectMembership
from jobs.selectors.access import is_admin, token_user
from jobs.selectors.api_tokens import tokens_valid

#: Most values of one query; databases have limits.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True, order=True)
class Credential:
    """Credential of an event stream: the key of a session, or the digest of an API token."""

    kind: Literal["session", "token"]
    key: str


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


def identities_of(credentials: Iterable[Credential]) -> dict[Credential, Identity]:
    """Return the users of the sessions and tokens that are valid now.

    The conditions are those of `django.contrib.auth.get_user` and of the REST API. At most four
    queries for every 500 credentials; the database connection is not kept.
    """
    ordered = sorted(set(credentials))
    try:
        found: dict[Credential, Identity] = {}
        for start in range(0, len(ordered), _AT_ONCE):
            found |= _identities(ordered[start : start + _AT_ONCE])
        return found
    finally:
        close_old_connections()


def _identities(credentials: list[Credential]) -> dict[Credential, Identity]:
    users = _users_of_sessions([one.key for one in credentials if one.kind == "session"])
    digests = [one.key for one in credentials if one.kind == "token"]
    users |= _users_of_tokens(digests) if digests else {}
    projects: dict[int, set[int]] = defaultdict(set)
    memberships = ProjectMembership.objects.filter(user__in=set(users.values())).order_by()
    for member_id, project_id in memberships.values_list("user_id", "project_id"):
        projects[member_id].add(project_id)
    return {
        one: Identity(user.pk, is_admin(user), frozenset(projects[user.pk]))
        for one, user in users.items()
    }


def _users_of_sessions(keys: list[str]) -> dict[Credential, User]:
    sessions = Session.objects.filter(session_key__in=keys, expire_date__gt=timezone.now())
    contents = {session.session_key: session.get_decoded() for session in sessions}
    user_ids = {key: _user_id(content) for key, content in contents.items()}
    users = User.objects.in_bulk({user_id for user_id in user_ids.values() if user_id is not None})
    return {
        Credential("session", key): user
        for key, user_id in user_ids.items()
        if (user := users.get(user_id or 0)) is not None and _is_valid(contents[key], user)
    }


def _users_of_tokens(digests: list[str]) -> dict[Credential, User]:
    return {
        Credential("token", token.digest): token_user(token)
        for token in tokens_valid(timezone.now()).filter(digest__in=digests)
        if "jobs:read" in token.scopes
    }


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
