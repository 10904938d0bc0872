"""Permissions: token scopes for all users, further rights for admins."""

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
        return ("read" if request.method in SAFE_METHODS else "write") in request.auth.scopes


class AdminPermission(ScopePermission):
    """Admit admins only."""

    message = "Only admins may do this."

    def has_permission(self, request: Request, view: APIView) -> bool:
        return super().has_permission(request, view) and bool(request.user.is_staff)


class AdminToWritePermission(ScopePermission):
    """Admit all users to read, admins to write."""

    message = "Only admins may change this."

    def has_permission(self, request: Request, view: APIView) -> bool:
        is_allowed = request.method in SAFE_METHODS or bool(
            getattr(request.user, "is_staff", False)
        )
        return super().has_permission(request, view) and is_allowed
