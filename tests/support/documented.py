"""Answers of REST against the OpenAPI document: status, content type and body."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

import jsonschema_rs
from django.http import HttpResponse

from jobs.api.openapi import openapi_document
from jobs.exceptions import PROBLEM_TYPE

_JSON_TYPES = ("application/json", PROBLEM_TYPE)


@functools.cache
def _paths() -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    """Return the operations by a pattern of their path, paths without parameters first."""
    return [
        (re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), operations)
        for path, operations in sorted(
            openapi_document()["paths"].items(), key=lambda each: "{" in each[0]
        )
    ]


@functools.cache
def _validator(schema: str) -> jsonschema_rs.Validator:
    root = {"components": openapi_document()["components"], **json.loads(schema)}
    return jsonschema_rs.Draft202012Validator(_nullable_as_type(root), validate_formats=True)


def _nullable_as_type(schema: Any) -> Any:
    """Return a schema of OpenAPI 3.0 in the words of JSON Schema."""
    if isinstance(schema, list):
        return [_nullable_as_type(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    values = {key: _nullable_as_type(each) for key, each in schema.items() if key != "nullable"}
    return {"anyOf": [values, {"type": "null"}]} if schema.get("nullable") is True else values


def undocumented(method: str, path: str, response: HttpResponse) -> str:
    """Return in what an answer differs from the document; empty if in nothing.

    Paths that the document leaves out, such as those of agents, differ in nothing.
    """
    found = next((each for pattern, each in _paths() if pattern.fullmatch(path)), {})
    operation = found.get(method.lower())
    if operation is None:
        return ""
    responses: Mapping[str, Any] = operation["responses"]
    status = str(response.status_code)
    if status not in responses and response.status_code < 400:
        return f"The status {status} is not one of {', '.join(responses)}."
    content = responses.get(status, responses.get("default", {})).get("content", {})
    content_type = response.headers.get("Content-Type", "").partition(";")[0]
    is_streaming = getattr(response, "streaming", False)
    if not content:
        return "It has a body." if is_streaming or response.content else ""
    if content_type not in content:
        return f"The content type {content_type} is not one of {', '.join(content)}."
    if content_type not in _JSON_TYPES or is_streaming:
        return ""
    validator = _validator(json.dumps(content[content_type]["schema"]))
    errors = [*validator.iter_errors(json.loads(response.content))]
    return "; ".join(f"{'/'.join(map(str, one.instance_path))}: {one.message}" for one in errors)
