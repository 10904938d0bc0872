"""A web server that answers what a test wrote down, and remembers what it was asked."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """An answer; with `is_cut` the connection ends in the middle of its body."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def problem(status: int, code: str = "wrong", **other: Any) -> Answer:
    """Return a problem as the site words it."""
    body = {"status": status, "code": code, "detail": "It is wrong.", **other}
    return Answer(status, body)


def file_of(content: bytes, sent: bytes | None = None, **other: Any) -> Answer:
    """Return the answer with a file, or only with the bytes of it that are sent."""
    digest = hashlib.sha256(content).hexdigest()
    headers = {"X-Sha256": digest, "ETag": f'"{digest}"'}
    return Answer(body=content if sent is None else sent, headers=headers, **other)


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ScriptedSite:
    """Answers in order, the last one for ever."""

    address: str
    answers: list[Answer]
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def scripted_site(*answers: Answer) -> Iterator[ScriptedSite]:
    """Serve answers on a port of this machine."""
    site = ScriptedSite("", list(answers))

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            site.asked.append(Asked(self.command, self.path, dict(self.headers), body))
            answer = site.answers.pop(0) if len(site.answers) > 1 else site.answers[0]
            content = answer.content()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content) + 10 * answer.is_cut))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815

        def log_message(self, *_arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    site.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
