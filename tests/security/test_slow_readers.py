"""Answers leave the WSGI application in one piece, so that slow readers hold no thread of it."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.signals import request_finished

from controlplane.request_bodies import bounded_wsgi
from controlplane.wsgi import handler
from tests.support.builders import CODE, api_token_make, job_make

STATIC = f"/{settings.STATIC_URL.strip('/')}/frontend/app.css"
#: Addresses that anybody may ask for, with the status of the answer.
OPEN = {"/login/": "200", "/": "302", STATIC: "200", "/healthz": "200", "/api/v1/": "401",
        "/api/v1/nowhere/": "404", "/nowhere/": "404"}  # fmt: skip
OF_USERS = (
    "/api/v1/schema/",
    "/api/v1/jobs/",
    "/api/v1/usage/?csv=true",
    "/api/v1/jobs/{job}/logs/",
)


@pytest.fixture
def finished() -> Iterator[list[Any]]:
    """Collect the answers that have been closed."""
    closed: list[Any] = []

    def note(**_values: Any) -> None:
        closed.append(1)

    request_finished.connect(note)
    yield closed
    request_finished.disconnect(note)


def answer(path: str, token: str = "") -> tuple[str, dict[str, str], Any]:
    path, _, query = path.partition("?")
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": query,
               "SERVER_NAME": "testserver", "SERVER_PORT": "80", "REMOTE_ADDR": "192.0.2.1",
               "wsgi.input": io.BytesIO(), "wsgi.errors": sys.stderr, "wsgi.url_scheme": "http",
               "HTTP_HOST": "testserver"}  # fmt: skip
    if token:
        environ["HTTP_AUTHORIZATION"] = f"Bearer {token}"
    said: list[Any] = []
    body = bounded_wsgi(handler)(environ, lambda *head: said.append(head))
    return said[0][0], dict(said[0][1]), body


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", [*OPEN, *OF_USERS])
def test_an_answer_is_one_piece_and_closed(
    ada: User, path: str, settings: Any, finished: list[Any]
) -> None:
    settings.ALLOWED_HOSTS = ["testserver"]
    job = job_make(ada)
    token = api_token_make(ada) if path in OF_USERS else ""
    status, headers, body = answer(path.format(job=job.pk), token)
    assert isinstance(body, list)
    assert len(body) == 1
    assert len(finished) == 1
    assert status[:3] == OPEN.get(path, "200")
    if "Content-Length" in headers:
        assert int(headers["Content-Length"]) == len(body[0])


@pytest.mark.django_db(transaction=True)
def test_a_download_leaves_in_pieces(ada: User, settings: Any, finished: list[Any]) -> None:
    settings.ALLOWED_HOSTS = ["testserver"]
    job = job_make(ada)
    _, _, body = answer(f"/api/v1/jobs/{job.pk}/code/", api_token_make(ada))
    assert not isinstance(body, list)
    assert b"".join(body) == CODE
    assert not finished
    body.close()
    assert len(finished) == 1
