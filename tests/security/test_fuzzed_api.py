"""Every operation of the OpenAPI document, with drawn requests: never a 500, as documented."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from django.contrib.auth.models import User
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from controlplane.core.values.lifecycle import JobStatus
from controlplane.wsgi import handler
from tests.support.builders import api_token_make, job_make, node_make
from tests.support.connections import connection_kept

# Schema-valid requests can break rules between fields, which are refused by name: no check of that.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
NUM_REQUESTS = 500 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 3

document = SchemaGenerator().get_schema(request=None, public=True)
schema = schemathesis.openapi.from_dict(document)
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

    @settings(
        suppress_health_check=list(HealthCheck),
        max_examples=NUM_REQUESTS,
        derandomize=NUM_REQUESTS == 3,
    )
    @given(case=operation.as_strategy())
    def requests(case: schemathesis.Case) -> None:
        # `fields` leaves out others, which the document does not say.
        checks = CHECKS[:-1] if "fields" in (case.query or {}) else CHECKS
        case.validate_response(case.call(headers=headers), checks=checks)

    requests()
