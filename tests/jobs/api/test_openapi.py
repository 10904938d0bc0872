"""The OpenAPI document: what every operation has."""

from __future__ import annotations

from collections import Counter

import jsonschema_rs
import pytest
from django.http import HttpResponse, JsonResponse

from jobs.api.openapi import openapi_document
from tests.support.documented import undocumented


def test_every_operation_has_a_short_summary_of_its_own() -> None:
    paths = openapi_document()["paths"]
    summaries = {
        f"{method.upper()} {path}": operation["summary"]
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    assert len(summaries) > 50
    assert {name: text for name, text in summaries.items() if not 4 <= len(text) <= 60} == {}
    counts = Counter(summaries.values())
    assert {name: text for name, text in summaries.items() if counts[text] > 1} == {}
    assert summaries["POST /api/v1/nodes/{node_id}/drain/"] == "Drain a node"


def test_no_parameter_of_a_query_may_be_empty() -> None:
    """As the site refuses it."""
    document = openapi_document()
    empty = [
        f"{method.upper()} {path} {parameter['name']}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query"
        and jsonschema_rs.Draft202012Validator(
            parameter["schema"].get("items", parameter["schema"])
            | {"components": document["components"]},
            validate_formats=True,
        ).is_valid("")
    ]
    assert empty == []


def test_reads_have_the_headers_that_are_answered() -> None:
    paths = openapi_document()["paths"]
    has_etag = {
        path.removeprefix("/api/v1/")
        for path, operations in paths.items()
        if "ETag"
        in operations.get("get", {"responses": {}})["responses"].get("200", {}).get("headers", {})
    }
    files = {"jobs/{job_id}/code/", "jobs/{job_id}/files/{name}/"}
    rows = {"jobs/{job_id}/", "sweeps/{sweep_id}/", "projects/{project_id}/", "users/{name}/"}
    rows |= {"prices/", "policy/"}
    assert has_etag == files | rows
    schemas = openapi_document()["components"]["schemas"]
    fields = schemas["SubmissionRequest"]["properties"]
    for name, others in {"SubmissionRequest": set(), "SweepSubmissionRequest": {"sweep"}}.items():
        component = schemas[name]  # of whose fields clones, and jobs of a template, lack most
        assert not {"required"} & component.keys()
        assert not any("default" in field for field in component["properties"].values())
        assert component["properties"].keys() == fields.keys() | others
    assert fields["priority"]["description"].endswith("Without template: 100.")
    part = paths["/api/v1/jobs/{job_id}/files/{name}/"]["get"]["responses"]["206"]
    assert [*part["content"]] == ["application/octet-stream"]
    assert [*part["headers"]] == ["ETag", "X-Sha256"]


@pytest.mark.parametrize(
    ("response", "difference"),
    [
        (JsonResponse({}, status=202), "The status 202"),
        (HttpResponse("", content_type="text/html"), "The content type text/html"),
        (JsonResponse({"next": 3, "results": []}), "3 is not"),
        (JsonResponse({"next": "no address", "results": []}), '"no address" is not'),
        (JsonResponse({"type": "about:blank"}, status=400), "The content type application/json"),
    ],
)
def test_an_answer_that_differs_from_the_document_is_found(
    response: HttpResponse, difference: str
) -> None:
    assert difference in undocumented("GET", "/api/v1/jobs/", response)
    assert undocumented("GET", "/api/v1/agent/reports/", response) == ""
