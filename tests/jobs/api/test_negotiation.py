"""The short negotiation chooses as DRF's does, whatever a client accepts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import Http404
from django.test import Client
from rest_framework.exceptions import NotAcceptable
from rest_framework.negotiation import BaseContentNegotiation, DefaultContentNegotiation
from rest_framework.renderers import JSONOpenAPIRenderer, JSONRenderer, TemplateHTMLRenderer
from rest_framework.request import Request
from rest_framework.test import APIRequestFactory

from jobs.api.negotiation import ShortNegotiation
from tests.support.builders import job_make, logged_in

JSON, HTML, OPENAPI = JSONRenderer(), TemplateHTMLRenderer(), JSONOpenAPIRenderer()


def chosen(of: BaseContentNegotiation, request: Request, renderers: Any, suffix: Any) -> Any:
    try:
        return of.select_renderer(request, renderers, suffix)
    except (NotAcceptable, Http404) as error:
        return type(error)


@pytest.mark.parametrize("accept", [
    None, "", "*/*", "application/json", "Application/JSON", "application/json; indent=4",
    "text/html", "text/html, */*;q=0.1", "application/*", "application/xml", "nonsense", "*/*;q=0",
])  # fmt: skip
def test_it_chooses_as_the_default(accept: str | None) -> None:
    headers = {} if accept is None else {"HTTP_ACCEPT": accept}
    for path, suffix, renderers in itertools.product(
        ["/", "/?fields=status", "/?format=json", "/?format=none"],
        [None, "json", "html"],
        [[JSON], [JSON, HTML], [HTML, JSON], [OPENAPI, JSON]],
    ):
        request = Request(APIRequestFactory().get(path, **headers))
        expected = chosen(DefaultContentNegotiation(), request, renderers, suffix)
        assert chosen(ShortNegotiation(), request, renderers, suffix) == expected


@pytest.mark.django_db
def test_downloads_are_answered_to_clients_that_accept_their_type_alone(ada: User) -> None:
    client, job = logged_in(ada), job_make(ada)
    for path, accepted, status in (
        (f"jobs/{job.pk}/code/", "application/octet-stream", 200),
        (f"jobs/{job.pk}/files/model.keras/", "application/octet-stream", 404),
        (f"jobs/{job.pk}/examples/1/image/", "image/png", 404),
        (f"jobs/{job.pk}/logs/?download=1", "text/plain", 200),
        ("usage/?csv=1", "text/csv", 200),
    ):
        answer = client.get(f"/api/v1/{path}", headers={"Accept": accepted})
        answer.getvalue()  # to its end, which gives its file back
        assert answer.status_code == status, path
    assert Client().get("/api/v1/schema/").json()["code"] == "not_authenticated"  # not as YAML


@pytest.mark.django_db
@pytest.mark.parametrize("route", ["policy/", "docs/", "schema/"])
def test_a_type_that_nobody_can_send_is_refused(ada: User, route: str) -> None:
    client = logged_in(ada)
    answer = client.get(f"/api/v1/{route}", headers={"Accept": "image/png"})
    assert (answer.status_code, answer.json()["code"]) == (406, "not_acceptable")
