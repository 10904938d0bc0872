"""Additions to drf-spectacular's OpenAPI document; imported by the routes."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from typing import Any

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer, extend_schema
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer

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


_SUMMARY_END = re.compile(r"[;:(]|\.(?:\s|$)")

#: Years of `jobs.selectors.filter_fields`; JSON Schema has no bounds for times.
TIME_PATTERN = "^(19|2[0-9])[0-9]{2}-"


def fields_param(names: Iterable[str]) -> OpenApiParameter:
    """Return the parameter by which `chosen_fields` reads some of the output fields."""
    one = {"type": "string", "enum": [*names]}
    return OpenApiParameter(
        "fields",
        {"type": "array", "items": one, "minItems": 1},
        explode=False,
        description="Only these fields, with commas between them.",
    )


def number_parameter(
    name: str, low: float, high: float, description: str, type_: str = "number"
) -> OpenApiParameter:
    """Return a parameter that `number_param` reads."""
    schema = {"type": type_, "minimum": low, "maximum": high}
    return OpenApiParameter(name, schema, description=description)


def one_of(name: str, *serializers: type[Serializer]) -> PolymorphicProxySerializer:
    """Return a response that is one of several, under a name of its own."""
    return PolymorphicProxySerializer(
        component_name=name, serializers=[*serializers], resource_type_field_name=None
    )


def if_match_param(tag: re.Pattern[str]) -> OpenApiParameter:
    """Return the header for changes of what has an ETag of this pattern."""
    schema = {"type": "string", "pattern": rf"^(\*|{tag.pattern})$"}
    return OpenApiParameter("If-Match", schema, OpenApiParameter.HEADER)


def download_schema() -> dict[str, Any]:
    """Return the responses and headers of `downloads.file_response`, for `extend_schema`."""
    told = {"ETag": "Of the file, for `If-Range`.", "X-Sha256": "Digest of the whole file."}
    headers = [
        OpenApiParameter(name, str, OpenApiParameter.HEADER, description=text, response=[200, 206])
        for name, text in told.items()
    ]
    asked = [
        OpenApiParameter("Range", str, OpenApiParameter.HEADER, description="As in `bytes=5-9`."),
        OpenApiParameter("If-Range", str, OpenApiParameter.HEADER),
        OpenApiParameter("If-None-Match", str, OpenApiParameter.HEADER),
    ]
    content = {(code, "application/octet-stream"): OpenApiTypes.BINARY for code in (200, 206)}
    return {"responses": {**content, 304: None}, "parameters": [*asked, *headers]}


def requests_bounded(result: dict[str, Any], **_more: Any) -> dict[str, Any]:
    """Say in a document what all requests have in common.

    Bodies have no unknown fields, texts no NUL, and times in queries a year that databases know.
    """
    for name, component in result["components"]["schemas"].items():
        if name.endswith("Request") and "properties" in component:
            component["additionalProperties"] = False
            for schema in component["properties"].values():
                _text_bounded(schema)
    operations = [one for path in result["paths"].values() for one in path.values()]
    for parameter in (one for each in operations for one in each.get("parameters", ())):
        _text_bounded(parameter["schema"])
        if parameter["schema"].get("format") == "date-time":
            parameter["schema"]["pattern"] = TIME_PATTERN
    return result


def _text_bounded(schema: dict[str, Any]) -> None:
    text = schema.get("items", schema)
    if text.get("type") == "string" and not {"enum", "format", "pattern"} & text.keys():
        text["pattern"] = r"^[^\x00]*$"


def problems_documented(result: dict[str, Any], **_more: Any) -> dict[str, Any]:
    """Describe in a document what every operation answers besides its success: a problem."""
    result["components"]["schemas"]["Problem"] = _PROBLEM
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for operations in result["paths"].values():
        for operation in operations.values():
            problem = {"description": "The request was refused, or failed.", "content": content}
            operation["responses"]["default"] = problem
    return result


def etags_documented(result: dict[str, Any], **_more: Any) -> dict[str, Any]:
    """Say in a document that reads of what `If-Match` is for have an ETag."""
    for operations in result["paths"].values():
        names = {each["name"] for one in operations.values() for each in one.get("parameters", ())}
        if "If-Match" in names and "get" in operations:
            headers = operations["get"]["responses"]["200"].setdefault("headers", {})
            headers["ETag"] = {"schema": {"type": "string"}, "description": "For `If-Match`."}
    return result


def values_required(result: dict[str, Any], **_more: Any) -> dict[str, Any]:
    """Say in a document that texts in a query are not empty; see `QueryParametersMiddleware`."""
    for operations in result["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                schema = parameter["schema"].get("items", parameter["schema"])
                is_text = schema.get("type") == "string" and not {"enum", "format"} & schema.keys()
                if parameter["in"] == "query" and is_text:
                    schema["minLength"] = 1
    return result


def submissions_optional(result: dict[str, Any], **_more: Any) -> dict[str, Any]:
    """Say in a document that no field of a submission is required, or has a default by itself.

    A template, a spec or the job that is cloned may give each of them; a generated client that
    sent defaults would replace those values.
    """
    for name in ("SubmissionRequest", "SweepSubmissionRequest"):
        component = result["components"]["schemas"][name]
        component.pop("required")
        for schema in component["properties"].values():
            default = schema.pop("default", None)
            if default not in (None, "", [], {}):
                text = f"Without template: {json.dumps(default)}."
                schema["description"] = f"{schema.get('description', '')}\n\n{text}".strip()
    return result


def summaries_added(result: dict[str, Any], **_more: Any) -> dict[str, Any]:
    """Give operations a summary: the beginning of their description, up to a colon or the like."""
    for operations in result["paths"].values():
        for operation in operations.values():
            sentence = _SUMMARY_END.split(operation.get("description", ""), maxsplit=1)[0]
            operation["summary"] = sentence.strip()
    return result


@functools.cache
def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document, to be read only.

    Generating it takes half a second, once per process. The first call must be that of a single
    thread: the generator changes its classes while it loads them.
    """
    return SchemaGenerator().get_schema(request=None, public=True)


class DocumentGenerator(SchemaGenerator):
    """Gives the view of the document the one that this process has generated."""

    def get_schema(self, request: Request | None = None, public: bool = False) -> Any:  # noqa: ARG002
        return openapi_document()


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
