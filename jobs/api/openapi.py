"""Additions to drf-spectacular's OpenAPI document; imported by the routes."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.exceptions import PROBLEM_TYPE

_PROBLEM = {
    "type": "object",
    "description": "RFC 9457; `code` is stable, `errors` has messages by field.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "errors": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": {"type": "string"}},
        },
    },
    "required": ["type", "title", "status", "code", "detail"],
}


def problems_documented(result: dict[str, Any], **_more: Any) -> dict[str, Any]:
    """Describe in a document what every operation answers besides its success: a problem."""
    result["components"]["schemas"]["Problem"] = _PROBLEM
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for operations in result["paths"].values():
        for operation in operations.values():
            problem = {"description": "The request was refused, or failed.", "content": content}
            operation["responses"]["default"] = problem
    return result


class ApiPages(SpectacularSwaggerSplitView):
    """Swagger UI from the package: inline styles, but scripts in files."""

    template_name = "frontend/api_docs.html"

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        response = super().get(request, *args, **kwargs)
        response.headers["Content-Security-Policy"] = (
            f"{settings.CONTENT_SECURITY_POLICY}; style-src 'self' 'unsafe-inline'"
        )
        return response


class TokenScheme(OpenApiAuthenticationExtension):
    """Describe API tokens in the OpenAPI document."""

    target_class = "jobs.api.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, _auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}
