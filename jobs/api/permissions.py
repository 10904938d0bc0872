"""Permissions: token scopes for all users, further rights for admins.

A token without the scope `admin` acts as an ordinary user: `TokenAuthentication` takes its user's
admin rights away. So the views and selectors ask for `is_staff` alone, with a token or without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from jobs.models import ApiToken

if TYPE_CHECKING:
    # rest_framework.views imports this module through the settings.
    from rest_framework.views import APIView


class ScopePermission(BasePermission):
    """Admit authenticated users; with a token only what its scopes allow."""

    message = "The token's scopes do not allow this."

    def has_permission(self, request: Request, _view: APIView) -> bool:
        if not request.user or not request.user.is_authenticated:
            return False
        if not isinstance(request.auth, ApiToken):
            return True
        scope = "jobs:read" if request.method in SAFE_METHODS else "jobs:write"
        return scope in request.auth.scopes


class SessionPermission(BasePermission):
    """Admit people in a session: no token may make, see or revoke credentials."""

    message = "Tokens cannot do this; log in and use the account page."

    def has_permission(self, request: Request, _view: APIView) -> bool:
        return bool(request.user and request.user.is_authenticated) and request.auth is None


class AdminPermission(BasePermission):
    """Admit admins only; a token needs the scope `admin`."""

    message = "Only admins may do this, and a token needs the scope `admin`."

    def has_permission(self, request: Request, _view: APIView) -> bool:
        return bool(getattr(request.user, "is_staff", False))


class AdminToWritePermission(ScopePermission):
    """Admit all users to read, admins to write; a token needs the scope `admin` to write."""

    message = AdminPermission.message

    def has_permission(self, request: Request, view: APIView) -> bool:
        if request.method in SAFE_METHODS:
            return super().has_permission(request, view)
        return bool(getattr(request.user, "is_staff", False))
