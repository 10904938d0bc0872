"""User accounts: logins and their failures, confirmation and change of passwords."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from axes.handlers.proxy import AxesProxyHandler
from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_login_failed
from django.http import HttpRequest
from django.utils import timezone

from jobs.exceptions import InvalidInputError
from jobs.models import AuditAction, AuditEntry
from jobs.origins import client_address, client_network
from jobs.services.cluster.api_tokens import api_tokens_revoke
from jobs.services.lifecycle.audit import ANONYMOUS, audit_add
from jobs.services.lifecycle.events import user_actor

#: Key of a session: time of the password at the OpenID Connect provider, which confirms for so
#: long what the password here confirms for others.
OIDC_LOGIN_AT, CONFIRMED_S = "oidc_login_at", 600
#: Credentials of a login by OpenID Connect: nobody's name, so that strangers lock no name with it.
_NAMELESS = {"username": None}


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

    For users without a password a recent login by OpenID Connect takes its place.

    Raises:
        InvalidInputError: it is not the user's password, or the login is too old.
    """
    name = user.get_username()
    if not user.has_usable_password():
        if time.time() - request.session.get(OIDC_LOGIN_AT, 0) > CONFIRMED_S:
            text = f"Log in again with {settings.OIDC_TITLE}: that confirms it for 10 minutes."
            raise InvalidInputError.of(password=text)
        return
    if not password or authenticate(request, username=name, password=password) is None:
        failure_audit(request, name)
        raise InvalidInputError.of(password="This is not your password.")  # noqa: S106


def lockout_parameters(_request: Any, credentials: Mapping[str, Any] | None = None) -> list[str]:
    """Return what django-axes counts failures by: a name if there is one, and the address."""
    return ["username", "ip_address"] if (credentials or {}).get("username") else ["ip_address"]


def is_address_locked(request: HttpRequest) -> bool:
    """Tell whether logins from this address are locked; the answer is the lock's then."""
    if AxesProxyHandler.is_allowed(request, _NAMELESS):
        return False
    setattr(request, "axes_locked_out", True)  # noqa: B010 - read by the middleware of axes
    return True


def failure_count(request: HttpRequest) -> None:
    """Count a failed login that names nobody against its address."""
    user_login_failed.send(sender=__name__, credentials=dict(_NAMELESS), request=request)


def login_audit(name: str, **details: Any) -> None:
    audit_add(AuditAction.LOGIN, f"user:{name}", actor=f"user:{name}", **details)


def failure_audit(
    request: HttpRequest, name: str, *, is_once: bool = False, **details: Any
) -> None:
    """Note a failed login; one that met a lock, or `is_once`, once for each client and lock."""
    object_ = f"user:{name}" if name else ""
    action, address = AuditAction.LOGIN_FAILED, client_address(request)
    same: dict[str, Any] = {"address": address, "object": object_, "details": details}
    if getattr(request, "axes_locked_out", False):
        action, is_once = AuditAction.LOGIN_LOCKED, True
        details["network"] = client_network(request)  # in which an IPv6 client has many addresses
        same = {"details__network": details["network"]}
    since = timezone.now() - settings.AXES_COOLOFF_TIME
    known = AuditEntry.objects.filter(action=action, **same)
    if not is_once or not known.filter(at__gt=since).exists():
        audit_add(action, object_, actor=ANONYMOUS if request.user.is_anonymous else "", **details)
