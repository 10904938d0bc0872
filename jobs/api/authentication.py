"""Authentication of programs by API token, and the answer to logins that are locked for a time.

Session authentication is DRF's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from jobs.exceptions import TooManyFailuresError, problem_response
from jobs.models import ApiToken
from jobs.selectors.access import token_user
from jobs.selectors.api_tokens import token_found, tokens_valid
from jobs.services.cluster.api_tokens import api_token_used
from jobs.services.cluster.tokens import token_digest


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer <token>`."""

    def authenticate(self, request: Request | HttpRequest) -> tuple[User, ApiToken] | None:
        """Return the user and the token; None when the request carries no such header."""
        scheme, _, text = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        now = timezone.now()
        token = token_found(token_digest(text.strip()), now)
        if token is None:
            raise AuthenticationFailed("The token is unknown, expired or revoked.")
        api_token_used(token, request, now)
        return token_user(token), token

    def authenticate_header(self, _request: Request) -> str:
        """Return the WWW-Authenticate header, so that DRF responds with 401."""
        return 'Bearer realm="api"'


def rights_renew(request: Request) -> None:
    """Give a request that has waited the rights that its user has now.

    Raises:
        AuthenticationFailed: its token, its session or its account has ended meanwhile.
    """
    token, user, session = request.auth, None, request.session
    if isinstance(token, ApiToken):
        valid = tokens_valid(timezone.now()).filter(pk=token.pk).first()
        user = None if valid is None else token_user(valid)
    elif session.session_key is None or session.exists(session.session_key):
        user = User.objects.filter(pk=request.user.pk or 0, is_active=True).first()
        if user is not None and session.get(HASH_SESSION_KEY) not in (None, *_hashes(user)):
            user = None
    if user is None:
        raise AuthenticationFailed("Your token or login has ended.")
    request.user = user


def _hashes(user: User) -> tuple[str, ...]:
    """Return what sessions of a user carry since the password was set."""
    return (user.get_session_auth_hash(), *user.get_session_auth_fallback_hash())


def lockout_response(
    request: HttpRequest, _response: HttpResponse, _credentials: Mapping[str, Any]
) -> HttpResponse:
    """Return status 429 with the time to wait: a page, or a problem for the REST API."""
    wait_s = int(settings.AXES_COOLOFF_TIME.total_seconds())
    if request.path.startswith("/api/"):
        text = f"Too many wrong passwords; try again in {wait_s} s."
        response = problem_response(TooManyFailuresError(text))
    else:
        status = HTTPStatus.TOO_MANY_REQUESTS
        response = render(request, "frontend/locked.html", {"wait_s": wait_s}, status=status)
    response.headers["Retry-After"] = str(wait_s)
    return response
