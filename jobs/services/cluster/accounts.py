"""User accounts: confirmation and change of passwords."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils import timezone

from jobs.exceptions import InvalidInputError
from jobs.models import AuditAction, AuditEntry
from jobs.origins import client_address
from jobs.services.cluster.api_tokens import api_tokens_revoke
from jobs.services.lifecycle.audit import ANONYMOUS, audit_add
from jobs.services.lifecycle.events import user_actor


class TokenRevocation:
    """An entry of AUTH_PASSWORD_VALIDATORS that refuses nothing.

    Django tells it of every changed password, whether a page, the admin site or a command changed
    it. Sessions need nothing: Django ends them by the digest of the password that they carry.
    """

    def validate(self, password: str, user: User | None = None) -> None:
        """Accept any password."""

    def get_help_text(self) -> str:
        """Describe what else a new password does."""
        return "A new password ends your other sessions and all your API tokens."

    def password_changed(self, _password: str, user: User) -> None:
        """Revoke the user's API tokens."""
        num_revoked = api_tokens_revoke(user, timezone.now())
        audit_add(AuditAction.PASSWORD_CHANGED, user_actor(user), tokens_revoked=num_revoked)


def password_confirm(request: HttpRequest, user: User, password: str) -> None:
    """Check the password of a logged-in user; failures count like those of a login.

    Raises:
        InvalidInputError: it is not the user's password.
    """
    name = user.get_username()
    if not password or authenticate(request, username=name, password=password) is None:
        failure_audit(request, name)
        raise InvalidInputError.of(password="This is not your password.")  # noqa: S106


def login_audit(name: str) -> None:
    """Note a login."""
    audit_add(AuditAction.LOGIN, f"user:{name}", actor=f"user:{name}")


def failure_audit(request: HttpRequest, name: str) -> None:
    """Note a wrong password; one that met a lock once for each client and lock."""
    action = AuditAction.LOGIN_FAILED
    if getattr(request, "axes_locked_out", False):
        action = AuditAction.LOGIN_LOCKED
        since = timezone.now() - settings.AXES_COOLOFF_TIME
        known = AuditEntry.objects.filter(action=action, address=client_address(request))
        if known.filter(at__gt=since).exists():
            return
    audit_add(action, f"user:{name}", actor=ANONYMOUS if request.user.is_anonymous else "")
