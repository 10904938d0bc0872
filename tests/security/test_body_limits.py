"""Request bodies are refused before they are read, and slow ones do not stop the site."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from controlplane import request_bodies
from controlplane.core.values.lifecycle import JobStatus
from controlplane.request_bodies import ANONYMOUS_LIMIT_BYTES, bounded_asgi, bounded_wsgi
from jobs.api import throttles
from jobs.api.agent import views
from jobs.exceptions import RETRY_S
from jobs.models import Job
from jobs.places import WAITING_LIMIT
from tests.support.builders import api_token_make, job_make, logged_in, node_make
from tests.support.rows import PREDICTION, allocation_make

pytestmark = pytest.mark.django_db

SMALL = ANONYMOUS_LIMIT_BYTES
FORM = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
SUBMISSION = settings.CODE_LIMIT_BYTES + FORM
COOKIE = settings.SESSION_COOKIE_NAME
BATCH = settings.AGENT_BATCH_LIMIT_BYTES
FILE = settings.ARTIFACT_LIMIT_BYTES
AGENT = "/api/v1/agent/"
FILES = f"{AGENT}jobs/1/files/predictions-0-1.npz/?slot=0&generation=1"
#: Path, kind of caller -> largest body.
LIMITS = {
    ("/login/", "nobody"): SMALL,
    ("/nowhere", "nobody"): SMALL,
    ("/jobs/new/", "nobody"): SMALL,
    ("/jobs/new/", "wrong token"): SMALL,
    ("/api/v1/jobs/", "wrong token"): SMALL,
    (f"{AGENT}enrol/", "agent"): SMALL,
    (FILES, "nobody"): SMALL,
    (FILES, "wrong agent"): SMALL,
    (FILES, "person"): SMALL,
    (FILES, "program"): SMALL,
    (FILES, "agent"): SMALL,
    (f"{AGENT}reports/", "program"): SMALL,
    ("/nowhere", "program"): FORM,
    ("/account/", "person"): FORM,
    ("/jobs/new/", "person"): SUBMISSION,
    ("/api/v1/jobs/", "program"): SUBMISSION,
    ("/api/v1/validations/", "program"): SUBMISSION,
    ("/api/v1/sweeps/", "program"): SUBMISSION,
    (f"{AGENT}reports/", "agent"): BATCH,
    (f"{AGENT}jobs/1/files/a/b/", "agent"): BATCH,
    (FILES, "agent of the job"): FILE,
}
#: Others get 413.
STATUSES = {
    (FILES, "nobody"): 401,
    (FILES, "wrong agent"): 401,
    (FILES, "person"): 401,
    (FILES, "program"): 401,
    (FILES, "agent"): 404,
    (f"{AGENT}reports/", "program"): 401,
}


class Unreadable(io.RawIOBase):
    """A body of which nobody may read a byte."""

    def read(self, size: int = -1) -> bytes:
        raise AssertionError("the body was read")


def uploading_agent_make(owner: User, slot: int = 0) -> str:
    """Give the token of an agent that may upload to FILES, for a trainer of `slot`."""
    node, token = node_make(now=timezone.now())
    job = Job.objects.filter(id=1).first()
    job = job or job_make(owner, id=1, status=JobStatus.RUNNING, **PREDICTION)
    allocation_make(job, node.accelerators.all()[0], slot=slot, granted_at=timezone.now())
    return token


@pytest.fixture
def headers_of(ada: User) -> Callable[[str], dict[str, str]]:
    def headers(caller: str) -> dict[str, str]:
        if caller == "agent of the job":
            return {"authorization": f"Agent {uploading_agent_make(ada)}"}
        if caller == "person":
            client = logged_in(ada)
            return {"cookie": f"{COOKIE}={client.cookies[COOKIE].value}"}
        if caller == "program":
            return {"authorization": f"Bearer {api_token_make(ada)}"}
        if caller == "agent":
            return {"authorization": f"Agent {node_make(now=timezone.now())[1]}"}
        wrong = {"wrong token": "Bearer vft_x", "wrong agent": "Agent vfa_x"}
        return {"authorization": wrong[caller], "cookie": f"{COOKIE}=x"} if caller in wrong else {}

    return headers


def by_wsgi(path: str, headers: dict[str, str], body: Any = None) -> tuple[int, bool]:
    """Return the status of a POST request, and whether it reached the application."""
    reached = []
    statuses: list[str] = []

    def application(environ: Any, start_response: Any) -> list[bytes]:
        reached.append(environ["wsgi.input"].read())
        start_response("200 OK", [])
        return []

    environ = {f"HTTP_{name.upper().replace('-', '_')}": text for name, text in headers.items()}
    environ["CONTENT_LENGTH"] = environ.pop("HTTP_CONTENT_LENGTH", "")
    path, _, query = path.partition("?")
    environ |= {"REQUEST_METHOD": "POST", "PATH_INFO": path, "QUERY_STRING": query,
                "SERVER_NAME": "x", "SERVER_PORT": "1",
                "wsgi.input": body or Unreadable()}  # fmt: skip
    bounded_wsgi(application)(environ, lambda status, _headers: statuses.append(status))
    return int(statuses[0][:3]), bool(reached)


def by_asgi(path: str, headers: dict[str, str], *messages: Any) -> tuple[int, list[Any]]:
    """Return the status of a POST request, and what the application received."""
    received: list[Any] = []
    sent: list[Any] = []
    waiting = list(messages)

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        while not received or received[-1].get("more_body"):
            received.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        if not waiting:
            await asyncio.sleep(60)
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path.partition("?")[0],
        "query_string": path.partition("?")[2].encode(),
        "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
    }
    asyncio.run(bounded_asgi(application)(scope, receive, send))
    return sent[0]["status"], received


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("path", "caller"), LIMITS)
def test_a_body_above_the_limit_of_its_path_is_refused_unread(
    path: str, caller: str, headers_of: Callable[[str], dict[str, str]]
) -> None:
    limit = LIMITS[path, caller]
    headers = headers_of(caller)
    above = headers | {"content-length": str(limit + 1)}
    status = STATUSES.get((path, caller), 413)
    assert by_wsgi(path, above) == (status, False)
    assert by_asgi(path, above) == (status, [])
    within = headers | {"content-length": str(limit)}
    with pytest.raises(AssertionError, match="the body was read"):
        by_wsgi(path, within)
    whole = {"type": "http.request", "body": b"", "more_body": False}
    assert by_asgi(path, within, whole) == (200, [whole])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", [f"{AGENT}reports/", f"{AGENT}hello/", FILES])
def test_a_body_of_a_node_that_sent_too_many_requests_is_refused_unread(
    path: str, headers_of: Callable[[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_NODE_REQUESTS_LIMIT", 2)
    monkeypatch.setattr(throttles.time, "time", lambda: 1_000_000.0)
    headers = headers_of("agent of the job")
    large = headers | {"content-length": str(SMALL + 1)}
    client = Client(headers=headers)
    whole = {"type": "http.request", "body": b"", "more_body": False}
    for _ in range(2):
        for _ in range(3):  # a body that comes is counted once, by the view
            assert by_asgi(path, large, whole) == (200, [whole])
        with pytest.raises(AssertionError, match="the body was read"):
            by_wsgi(path, large)
        assert client.get(f"{AGENT}wanted/").status_code == 200
    assert by_wsgi(path, large) == (429, False)
    assert by_asgi(path, large) == (429, [])
    unknown = large | {"authorization": "Agent vfa_x"}
    assert by_wsgi(path, unknown) == (401, False)


def test_a_refused_form_is_told_in_a_page() -> None:
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/jobs/new/", "CONTENT_LENGTH": "99999",
               "SERVER_NAME": "x", "SERVER_PORT": "1",
               "wsgi.input": Unreadable(), "HTTP_ACCEPT": "text/html,*/*;q=0.8"}  # fmt: skip
    heads: list[tuple[str, dict[str, str]]] = []
    (page,) = bounded_wsgi(lambda *_: [])(
        environ, lambda status, headers: heads.append((status[:3], dict(headers)))
    )
    ((status, headers),) = heads
    assert (status, headers["Content-Type"].partition(";")[0]) == ("413", "text/html")
    assert b"Log in, or send a token" in page
    assert b"Nothing was changed" in page


@pytest.mark.django_db(transaction=True)
def test_files_of_agents_are_received_a_few_at_a_time(
    ada: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent of another node has a place when one node has taken all of its own."""
    monkeypatch.setattr(request_bodies, "NODE_UPLOADS_LIMIT", 1)
    settings.UPLOADS_LIMIT = 2
    tokens = [uploading_agent_make(ada, slot) for slot in range(3)]
    body = b"x" * (SMALL + 1)
    path, _, query = FILES.partition("?")
    orders: list[int] = []
    told: list[tuple[int, int, str | None]] = []

    def told_add(slot: int, status: int, headers: Any) -> None:
        names = {str(name).lower(): text for name, text in headers}
        told.append((slot, status, names.get("retry-after")))

    def by_wsgi_application(_environ: Any, start_response: Any) -> list[bytes]:
        while orders:  # while this request is being answered
            wsgi_send(orders.pop(0))
        start_response("204 No Content", [])
        return []

    wsgi = bounded_wsgi(by_wsgi_application)

    def wsgi_send(slot: int) -> None:
        environ = {"REQUEST_METHOD": "PUT", "PATH_INFO": path, "SERVER_NAME": "x",
                   "SERVER_PORT": "1", "QUERY_STRING": query.replace("slot=0", f"slot={slot}"),
                   "HTTP_AUTHORIZATION": f"Agent {tokens[slot]}", "wsgi.input": io.BytesIO(body),
                   "CONTENT_LENGTH": str(len(body))}  # fmt: skip
        wsgi(environ, lambda status, headers: told_add(slot, int(status[:3]), headers))

    async def by_asgi_application(_scope: Any, _receive: Any, send: Any) -> None:
        while orders:
            await asgi_send(orders.pop(0))
        await send({"type": "http.response.start", "status": 204, "headers": []})

    asgi = bounded_asgi(by_asgi_application)

    async def asgi_send(slot: int) -> None:
        headers = {"authorization": f"Agent {tokens[slot]}", "content-length": str(len(body))}
        scope = {"type": "http", "method": "PUT", "path": path,
                 "query_string": query.replace("slot=0", f"slot={slot}").encode(),
                 "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
                 }  # fmt: skip

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                decoded = [(name.decode(), text.decode()) for name, text in message["headers"]]
                told_add(slot, message["status"], decoded)

        await asgi(scope, cast(Any, None), send)

    refusal = (503, str(RETRY_S))
    for send in (wsgi_send, lambda slot: asyncio.run(asgi_send(slot))):
        orders[:], told[:] = [0, 1, 2], []
        send(0)
        assert told == [(0, *refusal), (2, *refusal), (1, 204, None), (0, 204, None)]
        send(2)
        assert told[-1] == (2, 204, None)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"transfer-encoding": "chunked"}, 411),
        ({"content-length": "-1"}, 400),
        ({"content-length": "1e3"}, 400),
        ({"content-length": "9" * 30}, 400),
    ],
)
def test_a_body_needs_a_length(headers: dict[str, str], status: int) -> None:
    assert by_wsgi("/login/", headers) == (status, False)
    assert by_asgi("/login/", headers) == (status, [])


def test_a_body_that_ends_early_is_refused() -> None:
    headers = {"content-length": "5"}
    assert by_wsgi("/login/", headers, io.BytesIO(b"1234")) == (400, False)
    assert by_wsgi("/login/", headers, io.BytesIO(b"12345")) == (200, True)


def test_under_asgi_a_body_longer_than_declared_is_a_disconnect() -> None:
    part = {"type": "http.request", "body": b"123", "more_body": True}
    _, received = by_asgi("/login/", {"content-length": "5"}, part, part)
    assert received == [part, {"type": "http.disconnect"}]


def test_under_asgi_a_slow_body_is_a_disconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "BODY_S", 0.01)
    _, received = by_asgi("/login/", {"content-length": "5"})
    assert received == [{"type": "http.disconnect"}]


def test_under_wsgi_slow_bodies_hold_some_threads_and_never_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While as many senders as may be slow are slow, requests without a body are answered.

    One address never takes the last turn.
    """
    monkeypatch.setattr(request_bodies, "TURN_S", 0.05)
    is_read, may_end = threading.Semaphore(0), threading.Event()

    class Slow(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            is_read.release()
            may_end.wait(60)
            return b"x" * size

    statuses: list[str] = []

    def application(_environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return []

    bounded = bounded_wsgi(application)

    numbers = count(1)

    def send(length: str, body: Any, address: str = "") -> str:
        said: list[str] = []
        address = address or f"192.0.2.{next(numbers)}"
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/login/", "CONTENT_LENGTH": length,
                   "REMOTE_ADDR": address, "SERVER_NAME": "x", "SERVER_PORT": "1",
                   "wsgi.input": body}  # fmt: skip
        bounded(environ, lambda status, _headers: said.append(status))
        statuses.extend(said)
        return said[0]

    attacker = "198.51.100.1"
    addresses = [attacker] * (settings.BODIES_LIMIT - 1) + [""]
    senders = [threading.Thread(target=send, args=("5", Slow(), each)) for each in addresses]
    waiting: list[threading.Thread] = []
    try:
        for sender in senders[:-1]:
            sender.start()
            assert is_read.acquire(timeout=60)
        assert send("5", io.BytesIO(b"12345"), attacker) == "503 Service Unavailable"
        assert send("5", io.BytesIO(b"12345")) == "200 OK"
        senders[-1].start()
        assert is_read.acquire(timeout=60)
        assert send("5", io.BytesIO(b"12345")) == "503 Service Unavailable"
        assert send("", Unreadable()) == "200 OK"
        monkeypatch.setattr(request_bodies, "TURN_S", 600.0)
        waiting = [
            threading.Thread(target=send, args=("5", io.BytesIO(b"12345")))
            for _ in range(WAITING_LIMIT + 1)
        ]
        for sender in waiting:
            sender.start()
        # One is refused at once: no more than the limit may hold a thread to wait for a turn.
        deadline = time.monotonic() + 60
        while statuses.count("503 Service Unavailable") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert statuses.count("503 Service Unavailable") == 3
    finally:
        may_end.set()
        for sender in [*senders, *waiting]:
            sender.join(60)
    assert send("5", io.BytesIO(b"12345")) == "200 OK"
    assert statuses.count("200 OK") == settings.BODIES_LIMIT + WAITING_LIMIT + 3
