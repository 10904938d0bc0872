"""Index of the REST API: its routes, and on whose behalf the request comes."""

from __future__ import annotations

from typing import Any
from urllib.parse import urljoin

from django.conf import settings
from django.urls import URLPattern, get_resolver
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.views import APIView

from jobs.api.requests import person
from jobs.models import ApiToken
from jobs.selectors.access import is_admin
from jobs.selectors.limits import limits_for


class IndexSerializer(serializers.Serializer):
    """Index of the API. Only for the OpenAPI document."""

    api_version = serializers.IntegerField()
    user = serializers.CharField(help_text="Name of the user for whom the request acts.")
    is_admin = serializers.BooleanField()
    priority_ceiling = serializers.IntegerField(help_text="Highest priority of the user's jobs.")
    tier_ceiling = serializers.CharField(help_text="Highest tier of the user's jobs.")
    scopes = serializers.ListField(
        child=serializers.CharField(), allow_null=True, help_text="Of the token; null in a session."
    )
    token_expires_at = serializers.DateTimeField(allow_null=True)
    stream = serializers.CharField(
        allow_null=True, help_text="Address of the event stream; null where none is served."
    )
    routes = serializers.DictField(
        child=serializers.CharField(), help_text="Address by name, of routes without parameters."
    )


class Index(APIView):
    """Routes of the API, and the user and token of the request."""

    @extend_schema(responses=IndexSerializer)
    def get(self, request: Request) -> Response:
        """Get the index."""
        own_limits = limits_for(request.user)
        token = request.auth if isinstance(request.auth, ApiToken) else None
        return Response(
            {
                "api_version": 1,
                "user": person(request).get_username(),
                "is_admin": is_admin(request.user),
                "priority_ceiling": own_limits.priority_ceiling,
                "tier_ceiling": own_limits.tier_ceiling,
                "scopes": None if token is None else token.scopes,
                "token_expires_at": None if token is None else token.expires_at,
                "stream": _stream(request),
                "routes": _routes(request),
            }
        )


def _stream(request: Request) -> str | None:
    if not settings.REDIS_URL:
        return None
    return urljoin(settings.STREAM_URL or request.build_absolute_uri("/"), "/stream/")


def _routes(request: Request) -> dict[str, Any]:
    # By name: jobs.api.urls imports this module.
    names = [
        row.name
        for row in get_resolver("jobs.api.urls").url_patterns
        if isinstance(row, URLPattern) and row.name and not row.pattern.regex.groups
    ]
    return {name: reverse(f"api:{name}", request=request) for name in names}
