"""Audit log: who did what of consequence, from where. Rows are added and never changed."""

from __future__ import annotations

import datetime
import re
from enum import StrEnum
from typing import Any, NoReturn

from django.db import models

#: A time as details have it; seconds are enough for readers.
_UTC_TIME = re.compile(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?\+00:00$")


class AuditAction(StrEnum):
    """Kinds of audit entries."""

    LOGIN = "login"
    LOGIN_FAILED = "login_failed"
    LOGIN_LOCKED = "login_locked"
    LOGOUT = "logout"
    IDENTITY_LINKED = "identity_linked"
    PASSWORD_CHANGED = "password_changed"  # noqa: S105 - no password
    TOKEN_MADE = "token_made"  # noqa: S105
    TOKEN_REVOKED = "token_revoked"  # noqa: S105
    TOKEN_USED_ELSEWHERE = "token_used_elsewhere"  # noqa: S105
    USER_MADE = "user_made"
    USER_CHANGED = "user_changed"
    USER_DELETED = "user_deleted"
    ENROLMENT_TOKEN_MADE = "enrolment_token_made"  # noqa: S105
    ENROLMENT_TOKEN_REVOKED = "enrolment_token_revoked"  # noqa: S105
    NODE_ENROLLED = "node_enrolled"
    NODE_REMOVED = "node_removed"
    NODE_SHAPE_ACCEPTED = "node_shape_accepted"
    NODE_CORDONED = "node_cordoned"
    NODE_DRAINED = "node_drained"
    NODE_UNCORDONED = "node_uncordoned"
    MAINTENANCE_PLANNED = "maintenance_planned"
    MAINTENANCE_CANCELLED = "maintenance_cancelled"
    NODE_UNQUARANTINED = "node_unquarantined"
    NODE_TOKEN_REPLACED = "node_token_replaced"  # noqa: S105
    SECRET_MADE = "secret_made"  # noqa: S105
    SECRET_REPLACED = "secret_replaced"  # noqa: S105
    SECRET_DELETED = "secret_deleted"  # noqa: S105
    CHANNEL_MADE = "channel_made"
    CHANNEL_CHANGED = "channel_changed"
    CHANNEL_DELETED = "channel_deleted"
    FILES_DELETED = "files_deleted"
    JOB_READ = "job_read"
    JOB_FORKED = "job_forked"
    JOB_CANCELLED = "job_cancelled"
    JOB_PAUSED = "job_paused"
    JOB_RESUMED = "job_resumed"
    JOB_DESCRIBED = "job_described"
    PRIORITY_CHANGED = "priority_changed"
    SWEEP_CHANGED = "sweep_changed"
    POLICY_CHANGED = "policy_changed"
    REPLAY_ASKED = "replay_asked"
    PROJECT_MADE = "project_made"
    PROJECT_CHANGED = "project_changed"
    PROJECT_DELETED = "project_deleted"
    MEMBER_SET = "member_set"
    MEMBER_REMOVED = "member_removed"
    PRICE_CHANGED = "price_changed"


def action_label(action: str) -> str:
    return action.replace("_", " ")


class AppendOnlyError(TypeError):
    """An audit entry was to be changed or deleted."""


class AuditQuerySet(models.QuerySet["AuditEntry"]):
    """Rows that cannot be changed, and be deleted by their age alone."""

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise AppendOnlyError("Audit entries are never changed.")

    update = bulk_update = update_or_create = delete = _refuse

    def expire(self, before: datetime.datetime) -> int:
        """Delete entries older than `before`; return their number."""
        return models.QuerySet.delete(self.filter(at__lt=before))[0]


class AuditEntry(models.Model):
    """One act.

    `actor` is `user:NAME`, `node:NAME`, `anonymous` or `system`; names are kept as text, so that
    an entry outlives its user. `object` is what it was done to, as `job:7/code` or `user:ada`.
    """

    at = models.DateTimeField()
    actor = models.CharField(max_length=160)
    action = models.CharField(max_length=40)
    object = models.CharField(max_length=200, blank=True)
    address = models.CharField(max_length=45, blank=True)
    user_agent = models.CharField(max_length=200, blank=True)
    details = models.JSONField(default=dict, blank=True)

    objects = AuditQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "audit entries"
        indexes = (
            models.Index(name="audit_entry_by_time", fields=("at",)),
            models.Index(name="audit_entry_by_act", fields=("action", "actor", "object")),
        )

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object}"

    @property
    def label(self) -> str:
        """The action in words, as "login failed"."""
        return action_label(self.action)

    @property
    def details_text(self) -> str:
        """The details in one line, lists with commas."""
        texts = (
            f"{name.replace('_', ' ')}: {_detail_text(value)}"
            for name, value in self.details.items()
        )
        return " · ".join(texts)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Add the entry.

        Raises:
            AppendOnlyError: it is stored already.
        """
        if not self._state.adding:
            raise AppendOnlyError("Audit entries are never changed.")
        super().save(*args, **{**kwargs, "force_insert": True})

    def delete(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refuse.

        Raises:
            AppendOnlyError: always.
        """
        raise AppendOnlyError("Audit entries are never deleted but by their age.")


def _detail_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_detail_text, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value in (None, "", {}):
        return "none"
    return _UTC_TIME.sub(r"\1 \2 UTC", str(value))
