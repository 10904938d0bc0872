"""Attacks by a visitor, with a login or without."""

from __future__ import annotations

import concurrent.futures
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import httpx

from benchmarks.intrusions.attempts import PASSWORD, Attempt, Site, accepted, broken

#: A site under attack has to answer a small question within this time.
ANSWER_LIMIT_S = 5.0
NUM_GUESSES = 12
NUM_SLOW_CONNECTIONS, RECEIVED_BYTES = 32, 2048
NESTED_FINALLY = 7


def attempts(site: Site, victim: int, waiting: int) -> Iterator[Attempt]:
    """Try all of it; `waiting` is a job of the victim's that no node has."""
    yield from _jobs_of_others(site, (victim, waiting))
    yield from _admin_acts(site)
    yield from _bodies(site)
    yield from _costly_requests(site)
    yield from _passwords(site)
    yield from _anonymous(site)


def _jobs_of_others(site: Site, jobs: tuple[int, ...]) -> Iterator[Attempt]:
    mallory = site.clients["mallory"]
    for job in jobs:
        for part in ("", "code/", "logs/", "events/", "metrics/", "files/model.keras/"):
            path = f"jobs/{job}/{part}"
            yield accepted(f"authorisation: GET {path}", mallory.get, path)
        for act in ("cancel", "pause", "resume", "reprioritise", "clone"):
            path = f"jobs/{job}/{act}/"
            body = {"priority": 1, "reason": "x"}
            yield accepted(f"authorisation: POST {path}", mallory.post, path, json=body)


def _admin_acts(site: Site) -> Iterator[Attempt]:
    mallory = site.clients["mallory"]
    node = site.stack.get("nodes/")["results"][0]["id"]
    acts: list[tuple[str, dict[str, str]]] = [
        ("enrolment-tokens/", {}),
        ("policy/", {"policy": "fifo"}),
        (f"nodes/{node}/cordon/", {"reason": "x"}),
        (f"nodes/{node}/drain/", {"reason": "x"}),
        (f"nodes/{node}/accept-shape/", {"digest": "x"}),
    ]
    for path, body in acts:
        yield accepted(f"authorisation: POST {path}", mallory.post, path, json=body)
    yield accepted("authorisation: DELETE a node", mallory.delete, f"nodes/{node}/")
    for scopes in (["jobs:read", "jobs:write"], ["read", "write"]):
        token = {"name": "stronger", "scopes": scopes, "password": PASSWORD}
        yield accepted("M1 a token makes a token", mallory.post, "tokens/", json=token)


def _bodies(site: Site) -> Iterator[Attempt]:
    """Bodies that once ended in an error of the site, or stopped a node."""
    mallory = site.clients["mallory"]
    job: dict[str, Any] = {
        "name": "odd",
        "code": "def build(settings): ...",
        "global_batch_size": 8,
        "num_virtual_nodes": 2,
        "stop": {"kind": "steps", "limit": 1},
    }
    deep: object = {}
    for _ in range(900):
        deep = {"a": deep}
    yield accepted("H3 deep settings", mallory.post, "jobs/", json={**job, "settings": deep})
    yield accepted(
        "M9 the greatest priority", mallory.post, "jobs/", json={**job, "priority": 1000}
    )
    odd = [
        {**job, "code": "\ud800"}, {**job, "name": "\0"}, {**job, "settings": "[" * 900},
        {**job, "stop": {"kind": "steps", "limit": 10**400}}, {**job, "seed": 10**400}, [], "x",
    ]  # fmt: skip
    for number, body in enumerate(odd):
        name = f"low: an error of the site by JSON {number}"
        yield broken(name, mallory.post, "jobs/", **_body(json.dumps(body), "json"))
    yaml = ("? {a: 1}\n: b", "a: !!timestamp foo", 'a: !!int ""', f"a: {'1:' * 9}1.5")
    for number, text in enumerate(yaml):
        name = f"low: an error of the site by YAML {number}"
        yield broken(name, mallory.post, "jobs/", **_body(text, "yaml"))
    for cursor in ("abc", "\0", "9" * 400):
        name = f"low: an error of the site by the cursor {cursor[:3]!r}"
        yield broken(name, mallory.get, "jobs/", params={"cursor": cursor})


def _costly_requests(site: Site) -> Iterator[Attempt]:
    """Cheap requests after which others wait for a small answer."""
    mallory = site.clients["mallory"]
    code = "def build(settings):\n"
    for level in range(NESTED_FINALLY):
        pad = "  " * (level + 1)
        code += f"{pad}try:\n{pad}  return 1\n{pad}finally:\n"
    code += "  " * (NESTED_FINALLY + 1) + "pass\n"
    body = {
        "name": "costly",
        "code": code,
        "global_batch_size": 8,
        "num_virtual_nodes": 2,
        "stop": {"kind": "steps", "limit": 1},
        "dry_run": True,
    }
    bodies = {
        "H4 nested finally": (json.dumps(body), "json"),
        "M4 YAML of many entries": (f"a: [{'x,' * 32_000}]", "yaml"),
        "M4 YAML of long numbers": (f"a: 1{':59' * 21_000}", "yaml"),
        "M4 JSON of many entries": (f"[{'[],' * 3_600_000}[]]", "json"),
    }
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, (content, kind) in bodies.items():
            sent = [pool.submit(mallory.post, "jobs/", **_body(content, kind)) for _ in range(2)]
            yield Attempt(f"{name}: others wait", not _answers(site))
            for each in sent:
                each.exception()
    posted = b"POST /api/v1/jobs/ HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json"
    with _slow_connections(site, posted + b"\r\nContent-Length: 1000\r\n\r\n{"):
        yield Attempt("H5 slow requests: others wait", not _answers(site))
    page = httpx.get(f"{site.url}/login/", timeout=ANSWER_LIMIT_S, trust_env=False).text
    (style,) = set(re.findall(r'"(/static/[^"]*/app\.css)"', page))
    script = style.replace("app.css", "vendor/plotly/plotly-basic.min.js")
    asked = f"GET {script} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    # Several times: a connection's buffers may hold the first answers.
    with _slow_connections(site, asked * 8):
        yield Attempt("slow readers of a script: others wait", not _answers(site))


@contextmanager
def _slow_connections(site: Site, sent: bytes) -> Iterator[None]:
    """Send the same on many connections, and read nothing of the answers."""
    address = httpx.URL(site.url)
    with ExitStack() as opened:
        for _ in range(NUM_SLOW_CONNECTIONS):
            caller = opened.enter_context(closing(socket.socket()))
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
            caller.settimeout(ANSWER_LIMIT_S)
            with suppress(OSError):
                caller.connect((address.host, address.port))
                caller.sendall(sent)
        yield


def _passwords(site: Site) -> Iterator[Attempt]:
    """Guess a password often, then log in with the right one from the same place."""
    with httpx.Client(base_url=site.url, timeout=30.0, trust_env=False) as visitor:
        answers = [_log_in(visitor, f"wrong-{number}") for number in range(NUM_GUESSES)]
        answers.append(_log_in(visitor, PASSWORD))
    yield Attempt("H6 guesses without limit", answers[-1].is_redirect)


def _log_in(visitor: httpx.Client, password: str) -> httpx.Response:
    page = visitor.get("/login/")
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    data = {"username": "ada", "password": password}
    data["csrfmiddlewaretoken"] = token[1] if token else ""
    return visitor.post("/login/", data=data, headers={"Referer": f"{page.url}"})


def _anonymous(site: Site) -> Iterator[Attempt]:
    with httpx.Client(base_url=site.url, timeout=30.0, trust_env=False) as visitor:
        for path in ("/", "/jobs/", "/nodes/", "/queue/", "/account/", "/metrics"):
            yield accepted(f"anonymous: {path}", visitor.get, path)
        for path in ("jobs/", "nodes/", "cluster/", "tokens/", "audit/"):
            yield accepted(f"anonymous: {path} of the API", visitor.get, f"/api/v1/{path}")
        answers = set()
        for kind in ("cpu", "no-such-kind"):
            body = {
                "token": "wrong",
                "name": "node-a",
                "host": "10.0.0.1",
                "first_port": 21000,
                "last_port": 21999,
                "boot_id": "x",
                "accelerators": [{"index": 0, "kind": kind, "name": "x", "memory_bytes": 1}],
            }
            answer = visitor.post(f"{site.stream_url}/api/v1/agent/enrol/", json=body)
            answers.add((answer.status_code, answer.text))
        yield Attempt("M8 learns kinds without a token", len(answers) > 1)


def _body(text: str, kind: str) -> dict[str, Any]:
    headers = {"Content-Type": f"application/{kind}"}
    return {"content": text.encode("utf-8", "replace"), "headers": headers}


def _answers(site: Site) -> bool:
    """Return whether the site answers a small question in time."""
    started_at = time.monotonic()
    try:
        answer = httpx.get(f"{site.url}/healthz", timeout=ANSWER_LIMIT_S, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.is_success and time.monotonic() - started_at < ANSWER_LIMIT_S
