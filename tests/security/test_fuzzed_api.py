"""Every operation of the OpenAPI document, with drawn requests: taken, and answered, as it says."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from django.contrib.auth.models import User
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from controlplane.core.values.lifecycle import JobStatus
from controlplane.wsgi import handler
from jobs.api import downloads
from jobs.models import Job, Node
from tests.support.builders import api_token_make, job_make, node_make
from tests.support.connections import connection_kept
from tests.support.documented import openapi_document

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
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
NUM_REQUESTS = 500 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 2

schema = schemathesis.openapi.from_dict(copy.deepcopy(openapi_document()))
schema.app = handler
OPERATIONS = [found.ok() for found in schema.get_all_operations()]


@pytest.fixture
def token(admin: User) -> Iterator[str]:
    """Make a site with a node and jobs in several states; return a token that may do all."""
    node_make()
    for status in (JobStatus.PENDING, JobStatus.FINISHED, JobStatus.CANCELLED):
        job_make(admin, status=status)
    with connection_kept():
        yield api_token_make(admin, ("jobs:read", "jobs:write", "admin"))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
@pytest.mark.django_db
def test_operation(operation: Any, token: str) -> None:
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
    @given(case=operation.as_strategy())
    def requests(case: schemathesis.Case) -> None:
        # Most numbers are of what is there.
        for name in numbers.keys() & (case.path_parameters or {}).keys():
            drawn = case.path_parameters[name]
            choices = [*numbers[name], drawn]
            case.path_parameters[name] = choices[drawn % len(choices)]
        if "wait" in (case.query or {}):
            case.query["wait"] = 0  # each would take half a minute
        # `fields` leaves out others, which the document does not say.
        checks = CHECKS[:-1] if "fields" in (case.query or {}) else CHECKS
        response = case.call(headers=headers)
        downloads.places.cache_clear()  # of answers that this client does not read to their end
        case.validate_response(response, checks=checks)
        if response.status_code in (400, 415, 422):
            errors = response.json().get("errors", {"body": ""})
            refused = {name.partition(".")[0] for name in errors}
            allowed = DEPENDENT.get(operation.label, set())
            assert allowed is None or refused <= allowed, response.text

    requests()
