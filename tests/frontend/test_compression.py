"""Compression of answers to browsers."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.http import HttpRequest, HttpResponse
from django.templatetags.static import static
from django.test import Client, RequestFactory
from pytest_django import Settings
from whitenoise.middleware import WhiteNoiseMiddleware

from controlplane.middleware import PagesGZipMiddleware
from tests.frontend.world import make_person

LONG = b"the same words again and again " * 100


def _answer(path: str, response: HttpResponse) -> HttpResponse:
    def get_response(_request: HttpRequest) -> HttpResponse:
        return response

    request = RequestFactory(headers={"Accept-Encoding": "gzip, br"}).get(path)
    return PagesGZipMiddleware(get_response)(request)


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-8", "application/json"])
def test_a_page_is_compressed(content_type: str) -> None:
    answer = _answer("/jobs/", HttpResponse(LONG, content_type=content_type))
    assert answer.headers["Content-Encoding"] == "gzip"
    assert len(answer.content) < len(LONG) / 5


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/api/v1/jobs/", "application/json"),
        ("/stream/", "text/event-stream"),
        ("/jobs/1/files/model.keras/", "application/octet-stream"),
    ],
)
def test_nothing_else_is(path: str, content_type: str) -> None:
    answer = _answer(path, HttpResponse(LONG, content_type=content_type))
    assert "Content-Encoding" not in answer.headers
    assert answer.content == LONG


@pytest.mark.django_db
def test_pages_and_static_files_of_the_site_are(client: Client) -> None:
    client.force_login(make_person("ada"))
    for path in ("/", static("frontend/app.css")):
        answer = client.get(path, headers={"Accept-Encoding": "gzip"})
        assert answer.headers["Content-Encoding"] == "gzip", path


def test_prepared_static_files_are_sent_as_they_were_compressed(
    tmp_path: Path, settings: Settings
) -> None:
    (tmp_path / "app.css").write_bytes(LONG)
    (tmp_path / "app.css.br").write_bytes(b"compressed before")
    settings.STATIC_ROOT, settings.WHITENOISE_USE_FINDERS = tmp_path, False
    middleware = PagesGZipMiddleware(WhiteNoiseMiddleware(HttpResponse))  # type: ignore[arg-type]
    request = RequestFactory(headers={"Accept-Encoding": "gzip, br"}).get(static("app.css"))
    answer = middleware(request)
    assert answer.headers["Content-Encoding"] == "br"
    assert b"".join(answer) == b"compressed before"
