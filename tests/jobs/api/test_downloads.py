"""Files leave in pieces, from a WSGI and from an ASGI server."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.test import AsyncClient, Client

from jobs.api import downloads
from tests.support.builders import CODE, api_token_make, job_make, logged_in
from tests.support.rows import artifact_make


def answer_of(ada: User, server: str, headers: dict[str, str]) -> tuple[Any, bytes]:
    """Download the code of a job from a kind of server; return the answer and all it sends."""
    url = f"/api/v1/jobs/{job_make(ada).pk}/code/"
    sent = {"Authorization": f"Bearer {api_token_make(ada)}", **headers}

    async def fetch() -> tuple[Any, bytes]:
        response = await AsyncClient().get(url, headers=sent)
        if not response.streaming:
            return response, response.content
        assert response.is_async
        return response, b"".join([piece async for piece in response.streaming_content])

    if server == "asgi":
        return async_to_sync(fetch)()
    response = Client(headers=sent).get(url)
    return response, b"".join(response) if response.streaming else response.content


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("server", ["wsgi", "asgi"])
def test_the_bytes_and_their_digest(ada: User, server: str) -> None:
    response, content = answer_of(ada, server, {})
    assert content == CODE
    assert response.headers["X-Sha256"] == hashlib.sha256(CODE).hexdigest()
    assert response.headers["Content-Length"] == str(len(CODE))
    assert response.headers["Content-Disposition"] == 'attachment; filename="job.py"'


@pytest.mark.django_db
def test_a_file_that_the_site_lacks_is_told(ada: User) -> None:
    job = job_make(ada)
    artifact_make(job, "model.keras")
    reader = Client(headers={"Authorization": f"Bearer {api_token_make(ada)}"})
    answer = reader.get(f"/api/v1/jobs/{job.pk}/files/model.keras/")
    assert (answer.status_code, answer.json()["code"]) == (404, "file_missing")


@pytest.fixture
def few_places(settings: Any) -> Iterator[int]:
    settings.DOWNLOADS_LIMIT = 3
    downloads.places.cache_clear()
    yield settings.DOWNLOADS_LIMIT
    downloads.places.cache_clear()


PATHS = (
    "/api/v1/jobs/{job}/code/",
    "/api/v1/jobs/{job}/files/model.keras/",
    "/api/v1/jobs/{job}/logs/?download=true",
    "/jobs/{job}/code/",
    "/jobs/{job}/files/model.keras/",
    "/jobs/{job}/log/file/",
)


@pytest.mark.django_db
@pytest.mark.parametrize("path", PATHS)
def test_slow_readers_hold_a_few_threads_and_leave_one_to_others(
    ada: User, path: str, few_places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "TURN_S", 0.0)
    job = job_make(ada)
    content = ContentFile(b"m" * 10, name="model.keras")
    artifact_make(job, "model.keras", file=content, size_bytes=10)
    client = logged_in(ada)

    def ask(address: str, path: str = path) -> Any:
        return client.get(path.format(job=job.pk), REMOTE_ADDR=address)

    held = [ask("192.0.2.1") for _ in range(few_places - 1)]
    refused = ask("192.0.2.1")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert "try again" in refused.content.decode()
    assert path.startswith("/jobs/") == refused.headers["Content-Type"].startswith("text/html")
    held.append(ask("192.0.2.2"))
    assert [response.status_code for response in held] == [200] * few_places
    assert {ask("192.0.2.3", other).status_code for other in PATHS} == {503}
    assert ask("192.0.2.1", "/jobs/{job}/").status_code == 200
    for response in held[1:]:
        list(response.streaming_content)  # at its end a response is closed
    assert ask("192.0.2.3").status_code == 200
    del held, response
    gc.collect()  # what nobody has closed is forgotten
    with ExitStack() as all_places:
        for number in range(few_places):
            all_places.enter_context(downloads.places().held(number))


SIZE = len(CODE)
#: Ranges of the file, and where they begin and stop.
RANGES = {
    "bytes=5-9": (5, 10),
    "bytes=7-": (7, SIZE),
    "bytes=-4": (SIZE - 4, SIZE),
    "bytes=0-999999": (0, SIZE),
    "bytes=-999999": (0, SIZE),
    f"bytes={SIZE - 1}-": (SIZE - 1, SIZE),
}
NO_RANGES: tuple[dict[str, str], ...] = (
    {"Range": "bytes=0-1,3-4"},
    {"Range": "bytes=9-5"},
    {"Range": "bytes=-"},
    {"Range": "lines=1-2"},
    {"Range": "bytes=\xb2-"},
    {"Range": "bytes=1-" + "9" * 30},
    {"Range": "bytes=5-9", "If-Range": '"of another version"'},
    {"Range": "bytes=5-9", "If-Range": "Sat, 28 Nov 2026 00:00:00 GMT"},
)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("server", ["wsgi", "asgi"])
def test_ranges(ada: User, server: str) -> None:
    whole, _ = answer_of(ada, server, {})
    assert whole.headers["Accept-Ranges"] == "bytes"
    known = {"If-None-Match": f'"x", W/{whole.headers["ETag"]}'}
    same, content = answer_of(ada, server, known)
    assert (same.status_code, content, same.headers["ETag"]) == (304, b"", whole.headers["ETag"])
    for wanted, (first, stop) in RANGES.items():
        headers = {"Range": wanted, "If-Range": whole.headers["ETag"]}
        response, content = answer_of(ada, server, headers)
        assert (response.status_code, content) == (206, CODE[first:stop]), wanted
        assert response.headers["Content-Range"] == f"bytes {first}-{stop - 1}/{SIZE}"
        assert response.headers["Content-Length"] == str(stop - first)
        assert response.headers["X-Sha256"] == hashlib.sha256(CODE).hexdigest()
    for headers in NO_RANGES:
        response, content = answer_of(ada, server, headers)
        assert (response.status_code, content) == (200, CODE), headers
        assert response.headers["Content-Length"] == str(SIZE)
        assert "Content-Range" not in response.headers
    for wanted in (f"bytes={SIZE}-", "bytes=999999-", "bytes=-0"):
        response, content = answer_of(ada, server, {"Range": wanted})
        assert (response.status_code, response.headers["Content-Range"]) == (416, f"bytes */{SIZE}")
        assert json.loads(content)["code"] == "range_not_satisfiable"
