"""Paths of any bytes through the applications that the servers load: found or not, never a 500."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from controlplane import asgi, wsgi

NAMES = [b"model.keras", "modèle".encode(), "模型".encode(), "🙂".encode(), b"\xff\xfe", b"%2e%2e",
         b"\x00", b"a" * 4000]  # fmt: skip
PLACES = [b"/%s/", b"/api/v1/jobs/1/files/%s/", b"/api/v1/jobs/%s/", b"/jobs/1/files/%s"]

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_a_page_or_a_refusal(place: bytes, name: bytes) -> None:
    path = place % name
    statuses: list[str] = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path.decode("latin-1"), "SERVER_NAME": "x",
               "SERVER_PORT": "80", "HTTP_HOST": "localhost", "wsgi.url_scheme": "http",
               "wsgi.input": io.BytesIO(), "wsgi.errors": io.StringIO()}  # fmt: skip
    wsgi.application(environ, lambda status, *_headers: statuses.append(status))
    assert int(statuses[0][:3]) in (301, 302, 400, 401, 404)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_the_same_by_asgi(name: bytes) -> None:
    sent: list[Any] = []
    messages = [{"type": "http.request", "body": b""}]

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()  # the visitor stays
        return messages.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    path = b"/api/v1/agent/" + name
    scope = {"type": "http", "method": "GET", "path": path.decode("utf-8", "replace"),
             "raw_path": path, "query_string": b"", "headers": [(b"host", b"localhost")],
             "scheme": "http", "http_version": "1.1"}  # fmt: skip
    asyncio.run(asgi.application(scope, receive, send))
    assert sent[0]["status"] in (301, 302, 400, 401, 404)
