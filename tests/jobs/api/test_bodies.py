"""Bodies of requests: unknown fields, and the messages about nested ones."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from jobs.api import urls
from jobs.api.openapi import openapi_document
from jobs.api.requests import BodySerializer, checked
from jobs.exceptions import MESSAGES_LIMIT, InvalidInputError, messages_by_field
from jobs.models import Project
from tests.support.builders import job_make, logged_in, node_make


def _bodies(kind: type[BodySerializer] = BodySerializer) -> list[type[BodySerializer]]:
    assert urls.urlpatterns  # all views are loaded
    below = kind.__subclasses__()
    return [*below, *(found for each in below for found in _bodies(each))]


# Workers import in orders of their own, and have to see the same tests.
@pytest.mark.parametrize(
    "body", sorted(_bodies(), key=lambda body: body.__name__), ids=lambda body: body.__name__
)
def test_an_unknown_field_is_refused_with_the_known_ones(body: type[BodySerializer]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        checked(body, {"tgas": 1})
    ((name, messages),) = caught.value.fields.items()
    assert name == "tgas"
    assert all(field in messages[0] for field in body().fields)


def test_messages_tell_the_place_of_what_they_are_about() -> None:
    errors = {
        "jobs": {1: ["Give a number."]},
        "changes": {0: {"tier": ["Choose one."]}},
        "per_hour": {"a100": ["Give a number."]},
        "name": ["Too long.", "Not printable."],
        "many": [{}, {"x": ["Wrong."]}],
        "plain": "One text.",
    }
    assert messages_by_field(errors) == {
        "jobs": ["Item 2: Give a number."],
        "changes": ["Item 1: tier: Choose one."],
        "per_hour": ["a100: Give a number."],
        "name": ["Too long.", "Not printable."],
        "many": ["x: Wrong."],
        "plain": ["One text."],
    }


def test_a_long_list_of_errors_is_cut() -> None:
    errors = {"jobs": {place: ["Give a number."] for place in range(500)}}
    assert len(messages_by_field(errors)["jobs"]) == MESSAGES_LIMIT


def _operations_with_a_body(owner: User) -> list[tuple[str, str]]:
    """Return method and address of each, of things that exist where there are numbers of them."""
    job, (node, _) = job_make(owner), node_make()
    project = Project.objects.create(name="vision", created_at=timezone.now())
    numbers = {"job_id": job.pk, "node_id": node.pk, "project_id": project.pk}
    return [
        (method, re.sub(r"\{(\w+)\}", lambda part: str(numbers.get(part[1], 1)), address))
        for address, operations in openapi_document()["paths"].items()
        for method, operation in operations.items()
        if "application/json" in operation.get("requestBody", {}).get("content", ())
    ]


@pytest.mark.django_db
def test_every_operation_with_a_body_refuses_an_unknown_field(ada: User, admin: User) -> None:
    """Of what does not exist it is said that it does not."""
    client = logged_in(admin)
    refused = set()
    for method, path in _operations_with_a_body(ada):
        answer = getattr(client, method)(path, {"bogus": 1}, content_type="application/json")
        if answer.status_code != 404:
            assert answer.status_code == 400, (method, path)
            assert "bogus" in answer.json()["errors"], (method, path, answer.json())
            refused.add((method, path))
    assert len(refused) > 25


@pytest.mark.django_db
def test_no_operation_takes_a_number_beyond_all_floats(ada: User, admin: User) -> None:
    """Python reads it as infinite, which fields of text would take as "inf"."""
    client = logged_in(admin)
    refused = set()
    for method, path in _operations_with_a_body(ada):
        answer = getattr(client, method)(path, '{"name": -1e400}', content_type="application/json")
        if answer.status_code != 404:
            assert (answer.status_code, answer.json()["code"]) == (400, "parse_error"), path
            assert "the number -1e400, which is too large" in answer.json()["detail"], path
            refused.add((method, path))
    assert len(refused) > 25
