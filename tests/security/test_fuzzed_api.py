"""Every operation of the OpenAPI document, with drawn requests: taken, and answered, as it says."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from hypothesis import HealthCheck, given, settings

from controlplane.core.values.lifecycle import JobStatus
from controlplane.wsgi import handler
from jobs.api import downloads
from jobs.api.openapi import openapi_document
from jobs.models import Job, Node
from tests.support.builders import api_token_make, job_make, node_make
from tests.support.connections import connection_kept

PROJECT_QUOTAS: set[str] = {"guaranteed", "guaranteed_by_kind", "limit_by_kind"}
#: Fields by which requests of an operation are refused though the document allows their values: by
#: rules between fields, or by what is in the database or the request's time. None: any field.
DEPENDENT: dict[str, set[str] | None] = {
    # A submission's rules are those of its task, template, source and project.
    "POST /api/v1/jobs/": None,
    "POST /api/v1/validations/": None,
    "POST /api/v1/sweeps/": None,
    "GET /api/v1/jobs/": {"metric", "order"},
    "POST /api/v1/jobs/{job_id}/clone/": None,
    "POST /api/v1/jobs/{job_id}/fork/": None,
    # Of a search it is another one than of the log itself; a download takes none of them.
    "GET /api/v1/jobs/{job_id}/logs/": {"cursor", "context", "search", "level"},
    "GET /api/v1/nodes/{node_id}/utilisation/": {"since"},  # not too many bins until now
    "POST /api/v1/jobs/{job_id}/reprioritise/": {"priority", "reason"},
    # Fields are those of the action, and of jobs or changes.
    "POST /api/v1/jobs/actions/": {
        "jobs",
        "changes",
        "all_or_none",
        "priority",
        "tier",
        "tag",
        "reason",
    },
    "POST /api/v1/jobs/actions/preview/": {
        "jobs",
        "changes",
        "all_or_none",
        "priority",
        "tag",
        "reason",
    },
    # Each kind has addresses of its own; some events are for admins' channels.
    "POST /api/v1/channels/": {"address", "events", "name"},
    "POST /api/v1/maintenance-windows/": {"starts_at", "ends_at", "nodes", "reason"},
    "POST /api/v1/saved-filters/": {"query", "name"},
    "PUT /api/v1/prices/": {"per_hour"},
    # Limits are not below guarantees, and kinds are those of enrolled nodes.
    "POST /api/v1/projects/": PROJECT_QUOTAS,
    "PATCH /api/v1/projects/{project_id}/": PROJECT_QUOTAS,
    "POST /api/v1/replays/": {"accelerators", "scenarios", "policy"},
    "PUT /api/v1/secrets/{name}/": {"name"},  # variables of the system
    "GET /api/v1/usage/": {"since", "until", "project"},
}
NUM_REQUESTS = 500 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 2

OPERATIONS = [
    f"{method.upper()} {path}"
    for path, operations in openapi_document()["paths"].items()
    for method in operations
]


@functools.cache
def schemathesis_operations() -> tuple[dict[str, Any], list[Any]]:
    """Return the operations by name, and the checks of their answers, the one of bodies last.

    Schemathesis is imported where these tests run: each worker would spend a second on it.
    """
    from schemathesis import checks, openapi
    from schemathesis.specs.openapi import checks as of_openapi

    schema = openapi.from_dict(copy.deepcopy(openapi_document()))
    schema.app = handler
    operations = [found.ok() for found in schema.get_all_operations()]
    return {operation.label: operation for operation in operations}, [
        checks.not_a_server_error,
        of_openapi.status_code_conformance,
        of_openapi.content_type_conformance,
        of_openapi.response_schema_conformance,
    ]


@pytest.fixture
def token(admin: User) -> Iterator[str]:
    """Make a site with a node and jobs in several states; return a token that may do all."""
    node_make()
    for status in (JobStatus.PENDING, JobStatus.FINISHED, JobStatus.CANCELLED):
        job_make(admin, status=status)
    with connection_kept():
        yield api_token_make(admin, ("jobs:read", "jobs:write", "admin"))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.django_db
def test_operation(name: str, token: str) -> None:
    operations, checks = schemathesis_operations()
    headers = {"Authorization": f"Bearer {token}", "Host": "localhost"}
    numbers = {
        "job_id": list(Job.objects.values_list("pk", flat=True)),
        "node_id": list(Node.objects.values_list("pk", flat=True)),
    }

    @settings(
        suppress_health_check=list(HealthCheck),
        max_examples=NUM_REQUESTS,
        derandomize=NUM_REQUESTS == 2,
    )
    @given(case=operations[name].as_strategy())
    def requests(case: Any) -> None:
        # Most numbers are of what is there.
        for part in numbers.keys() & (case.path_parameters or {}).keys():
            drawn = case.path_parameters[part]
            choices = [*numbers[part], drawn]
            case.path_parameters[part] = choices[drawn % len(choices)]
        if "wait" in (case.query or {}):
            case.query["wait"] = 0  # each would take half a minute
        # `fields` leaves out others, which the document does not say.
        fitting = checks[:-1] if "fields" in (case.query or {}) else checks
        response = case.call(headers=headers)
        downloads.places.cache_clear()  # of answers that this client does not read to their end
        case.validate_response(response, checks=fitting)
        if response.status_code in (400, 415, 422):
            errors = response.json().get("errors", {"body": ""})
            refused = {field.partition(".")[0] for field in errors}
            allowed = DEPENDENT.get(name, set())
            assert allowed is None or refused <= allowed, response.text

    requests()
