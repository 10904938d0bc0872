"""Query parameters that no operation of the API has, and addresses that do not exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError
from django.utils import timezone
from rest_framework.test import APIClient

from jobs.api.addresses import query_parameters
from jobs.api.jobs.submission_serializer import SubmissionSerializer
from jobs.api.requests import UNKNOWN_LIMIT
from jobs.models import Job, Project
from tests.support.builders import acting_as, submission_values

#: Fields that a submission by REST has as one object.
GROUPED = ("stop_", "selection_", "tuning_")

pytestmark = pytest.mark.django_db


def test_every_operation_and_field_is_on_the_page_about_rest() -> None:
    page = (Path(__file__).parents[3] / "docs/rest-api.md").read_text()
    missing = [
        f"{method.upper()} {address}"
        for address, method in query_parameters()
        if not re.search(
            rf"`{method.upper()} (/api/v1/)?"
            + re.sub(r"\{\w+\}", "[A-Z]+", address.removeprefix("/api/v1/"))
            + "[`?]",
            page,
        )
    ]
    fields = [name for name in SubmissionSerializer().fields if not name.startswith(GROUPED)]
    missing += [name for name in fields if f"`{name}`" not in page]
    assert missing == [], "each needs a row of a table in docs/rest-api.md"


def test_every_operation_refuses_an_unknown_parameter(ada: User) -> None:
    client = acting_as(ada)
    operations = query_parameters()
    assert ("/api/v1/jobs/", "get") in operations
    for address, method in operations:
        path = re.sub(r"\{(\w+_id|place)\}", "1", address).replace("{name}", "x")
        answer = getattr(client, method)(f"{path}?bogus=3")
        assert answer.status_code == 400, (method, path)
        assert list(answer.json()["errors"]) == ["bogus"], (method, path)


@pytest.mark.parametrize("offset", ["Z", "%2B23:59", "-23:59", ""])
def test_a_time_may_have_any_offset(ada: User, offset: str) -> None:
    answer = acting_as(ada).get(f"/api/v1/jobs/?submitted_after=2026-03-01T12:00:00{offset}")
    assert answer.status_code == 200


def test_every_parameter_of_every_operation_needs_a_value(ada: User) -> None:
    """As of `owner=$NAME` without the variable, which would list all, or of `POST ?dry_run`."""
    client = acting_as(ada)
    for (address, method), names in query_parameters().items():
        path = re.sub(r"\{(\w+_id|place)\}", "1", address).replace("{name}", "x")
        for name in names:
            for query in (name, f"{name}="):
                answer = getattr(client, method)(f"{path}?{query}")
                assert answer.status_code == 400, (method, path, query)
                empty = ["Give this a value, or leave it out."]
                assert answer.json()["errors"] == {name: empty}, (method, path, query)


def test_a_parameter_of_one_value_is_not_given_twice(ada: User) -> None:
    client = acting_as(ada)
    answer = client.get("/api/v1/jobs/?status=live&status=ended&owner=a&owner=b&fields=id&fields=q")
    once = ["Give this once."]
    assert (answer.status_code, answer.json()["errors"]) == (400, {"owner": once, "fields": once})


@pytest.mark.parametrize(
    ("method", "address"),
    [
        ("get", "/api/v1/jobs/?page_size=null"),
        ("get", "/api/v1/nodes/?page_size=0"),
        ("get", "/api/v1/nodes/?page_size=-1"),
        ("get", "/api/v1/jobs/?submitted_after=0298-07-24T12:20:31-22:09"),
        ("get", "/api/v1/jobs/?submitted_before=9999-12-31T23:59:59-23:59"),
        ("get", "/api/v1/jobs/?submitted_before=yesterday"),
        ("post", "/api/v1/jobs/?dry_run=maybe"),
    ],
)
def test_a_wrong_value_is_not_ignored(ada: User, method: str, address: str) -> None:
    client = acting_as(ada)
    body = {} if method == "get" else submission_values()
    answer = getattr(client, method)(address, body)
    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == [address.partition("?")[2].partition("=")[0]]
    assert not Job.objects.exists()


def test_a_mistyped_parameter_gets_a_hint(ada: User) -> None:
    errors = acting_as(ada).get("/api/v1/jobs/?statsu=running").json()["errors"]
    assert errors["statsu"][0].endswith("Did you mean status?")


def test_of_many_unknown_parameters_some_are_named(ada: User) -> None:
    many = "&".join(f"{'x' * 500}{number}=1" for number in range(900))
    answer = acting_as(ada).get(f"/api/v1/jobs/?{many}")
    assert answer.status_code == 400
    assert 1 <= len(answer.json()["errors"]) <= UNKNOWN_LIMIT
    assert len(answer.content) < 20_000


PARTS: dict[str, Callable[[APIClient], Any]] = {
    "1000 query": lambda client: client.get(
        "/api/v1/jobs/?" + "&".join(f"p{number}=1" for number in range(1001))
    ),
    "1000 query parameters or fields": lambda client: client.post(
        "/api/v1/jobs/",
        "&".join(f"p{number}=1" for number in range(1001)),
        content_type="application/x-www-form-urlencoded",
    ),
    "100 files": lambda client: client.post(
        "/api/v1/validations/",
        {f"f{number}": SimpleUploadedFile("a", b"x") for number in range(101)},
        format="multipart",
    ),
}


@pytest.mark.parametrize("limit", PARTS)
def test_too_many_parts_of_a_request_are_a_problem_that_names_the_limit(
    limit: str, ada: User
) -> None:
    client = acting_as(ada)
    answer = PARTS[limit](client)
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
    assert answer.json()["code"] == "invalid"
    assert f"At most {limit}" in answer.json()["detail"]


def test_other_bad_requests_are_problems(settings: Any) -> None:
    """Not with 400: agents would drop their reports while the site does not know its name."""
    settings.ALLOWED_HOSTS = ["site.example"]
    answer = APIClient().post("/api/v1/agent/reports/", HTTP_HOST="elsewhere.example")
    assert (answer.status_code, answer["Content-Type"]) == (421, "application/problem+json")
    assert answer.json()["code"] == "unknown_host"


@pytest.mark.parametrize("path", ["/api/v1/nothing/", "/api/v2/", "/api/v1/jobs/1/nothing/"])
def test_an_unknown_address_is_a_problem(path: str) -> None:
    answer = APIClient().get(path)
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")
    assert answer.json()["code"] == "not_found"


def test_a_write_to_an_address_without_its_slash_is_not_lost_in_a_redirect(ada: User) -> None:
    client = acting_as(ada)
    answer = client.post("/api/v1/jobs", submission_values(), format="json")
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")
    assert answer.json()["detail"].endswith("end it with a slash: /api/v1/jobs/")
    assert client.get("/api/v1/jobs")["Location"] == "/api/v1/jobs/"


def test_a_zero_byte_is_part_of_no_name(admin: User) -> None:
    client = acting_as(admin)
    project = Project.objects.create(name="vision", created_at=timezone.now())
    named = [(path, method) for path, method in query_parameters() if "{name}" in path]
    assert len({path for path, _ in named}) > 3
    for address, method in named:
        path = re.sub(r"\{\w+_id\}", str(project.pk), address).replace("{name}", "%00")
        assert getattr(client, method)(path, {}).status_code == 404, (method, path)


def test_an_unknown_page_is_a_page() -> None:
    answer = APIClient().get("/nothing/")
    assert (answer.status_code, answer["Content-Type"]) == (404, "text/html; charset=utf-8")


def test_a_failure_is_a_problem(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.api.jobs.views.JobList.get_queryset", lambda _view: 1 / 0)
    client = APIClient(raise_request_exception=False)
    client.force_authenticate(ada)
    answer = client.get("/api/v1/jobs/")
    assert (answer.status_code, answer["Content-Type"]) == (500, "application/problem+json")
    assert answer.json()["code"] == "server_error"


def test_a_busy_database_is_no_fault_of_the_site(
    ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(_view: object) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr("jobs.api.jobs.views.JobList.get_queryset", busy)
    client = APIClient(raise_request_exception=False)
    client.force_authenticate(ada)
    answer = client.get("/api/v1/jobs/")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert int(answer["Retry-After"]) > 0
