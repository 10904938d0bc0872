"""A small control plane for agent tests: the agent's half of docs/protocol.md on a real socket."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from controlplane.core.protocol.node_messages import (
    BatchReply,
    EnrolReply,
    EnrolRequest,
    HelloRequest,
    ReportBatch,
    TrainerState,
    WantedState,
    WantedTrainer,
    WantedValidation,
)
from controlplane.core.protocol.wire import (
    REPORT_EVERY_S,
    ReportKind,
    TrainerReport,
    decode,
    encode,
)

PREFIX = "/api/v1/agent/"
AGENT_TOKEN = "agent-token-of-the-tests"
ENROLMENT_TOKEN = "enrolment-token-of-the-tests"


class ControlPlane:
    """Takes what agents send and remembers all of it, in order.

    Attributes:
        calls: ("POST", "reports/") and so on, as they were answered with success.
        refuse_with: path prefix -> status; such requests are answered with that status, and with
            `retry_after`, if that is set.
        refused: the paths of these requests.
        refuse_report: batches with such a report are answered with `refusal`, 400 at first.
        held_up: paths that are not answered as long as this control plane lives.
        lost_answers: so many of the next batches are taken without an answer.
        token: the one agent token that is accepted.
        lease_holder: boot id of the one agent that is welcome; None: every agent is.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.lock = threading.Condition()
        self.calls: list[tuple[str, str]] = []
        self.refuse_with: dict[str, int] = {}
        self.retry_after = ""
        self.refused: list[str] = []
        self.refuse_report: Callable[[TrainerReport], bool] = lambda report: False
        self.refusal = 400
        self.enrolments: list[EnrolRequest] = []
        self.hellos: list[HelloRequest] = []
        self.batches: list[ReportBatch] = []
        self.uploads: dict[tuple[int, str], bytes] = {}
        self.files: dict[str, bytes] = {}
        self.stale: tuple[TrainerState, ...] = ()
        self.report_every_s = REPORT_EVERY_S
        self.lost_answers = 0
        self.held_up: set[str] = set()
        self._is_closing = threading.Event()
        self.reply = EnrolReply(node_id=7, agent_token=AGENT_TOKEN, heartbeat_s=0.3, lease_s=0.4)
        self.token = AGENT_TOKEN
        self.lease_holder: str | None = None
        self._wanted = WantedState(version="w0", trainers=(), validations=())
        self._versions = 0
        handler = type("Handler", (_Handler,), {"plane": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._scheme = "https" if tls else "http"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def address(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def hold_up(self) -> None:
        """Wait for the end of this control plane."""
        self._is_closing.wait(60)

    def close(self) -> None:
        self._is_closing.set()
        with self.lock:
            self._versions = -1
            self.lock.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def add_code(self, job_id: int, content: bytes) -> str:
        self.files[f"jobs/{job_id}/code/"] = content
        self.files[f"validations/{job_id}/code/"] = content
        return hashlib.sha256(content).hexdigest()

    def add_checkpoint(self, job_id: int, content: bytes) -> str:
        self.files[f"jobs/{job_id}/checkpoint/"] = content
        return hashlib.sha256(content).hexdigest()

    def want(self, *trainers: WantedTrainer, validations: Iterable[WantedValidation] = ()) -> str:
        """Change the wanted state and wake the long-polls; returns the new version."""
        with self.lock:
            self._versions += 1
            version = f"w{self._versions}"
            self._wanted = WantedState(
                version=version, trainers=trainers, validations=tuple(validations)
            )
            self.lock.notify_all()
        return version

    def wait_for_wanted(self, version: str, wait_s: float) -> WantedState | None:
        deadline = time.monotonic() + wait_s
        with self.lock:
            while self._wanted.version == version and self._versions >= 0:
                if not self.lock.wait(max(0.0, deadline - time.monotonic())):
                    return None
            return self._wanted if self._versions >= 0 else None

    def reports(self, job_id: int, slot: int) -> list[TrainerReport]:
        """Give the reports of a trainer without repeats, in the order they came."""
        seen: dict[int, TrainerReport] = {}
        with self.lock:
            for report in (report for batch in self.batches for report in batch.reports):
                if (report.job_id, report.slot) == (job_id, slot):
                    seen.setdefault(report.sequence, report)
        return list(seen.values())

    def kinds(self, job_id: int, slot: int) -> list[ReportKind]:
        return [report.kind for report in self.reports(job_id, slot)]

    def report(self, job_id: int, slot: int, kind: ReportKind) -> TrainerReport | None:
        found = (item for item in self.reports(job_id, slot) if item.kind is kind)
        return next(found, None)

    def told(self, job_id: int, slot: int, kind: ReportKind) -> TrainerReport:
        report = self.report(job_id, slot, kind)
        assert report is not None
        return report

    def sees(self, num: int) -> Callable[[], bool]:
        """Give a condition that holds once `num` more batches have come."""
        end = len(self.batches) + num
        return lambda: len(self.batches) >= end

    def log(self, job_id: int, slot: int) -> str:
        """Join a trainer's log by byte offsets, as the real control plane does."""
        text = b""
        with self.lock:
            chunks = [chunk for batch in self.batches for chunk in batch.logs]
        for chunk in chunks:
            if (chunk.job_id, chunk.slot) == (job_id, slot):
                assert chunk.offset <= len(text), "a gap in the log"
                text += chunk.text.encode()[len(text) - chunk.offset :]
        return text.decode()

    def log_end(self, job_id: int, slot: int) -> int:
        """Return where the last chunk of a trainer's log ends."""
        with self.lock:
            chunks = [chunk for batch in self.batches for chunk in batch.logs]
        own = [chunk for chunk in chunks if (chunk.job_id, chunk.slot) == (job_id, slot)]
        return max((chunk.offset + len(chunk.text.encode()) for chunk in own), default=0)

    def owned(self) -> list[TrainerState]:
        """Give the trainers of the newest heartbeat."""
        with self.lock:
            return list(self.batches[-1].trainers) if self.batches else []


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about agents that went away in mid-request; show everything else."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    plane: ControlPlane
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        """Keep the test output clean."""

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def do_PUT(self) -> None:
        self._handle("PUT")

    def _handle(self, method: str) -> None:
        parts = urlsplit(self.path)
        path = parts.path.removeprefix(PREFIX)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if path in self.plane.held_up:
            self.plane.hold_up()
            return
        for prefix, status in self.plane.refuse_with.items():
            if path.startswith(prefix):
                self.plane.refused.append(path)
                self._answer(status, b'{"detail": "refused by the test"}', self.plane.retry_after)
                return
        if path != "enrol/" and self.headers.get("Authorization") != f"Agent {self.plane.token}":
            self._answer(401, b"{}")
            return
        status, answer = self._respond(method, path, query, body)
        with self.plane.lock:
            if status < 300:
                self.plane.calls.append((method, path))
            is_lost = path == "reports/" and status < 300 and self.plane.lost_answers > 0
            self.plane.lost_answers -= is_lost
        if is_lost:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._answer(status, answer)

    def _respond(
        self, method: str, path: str, query: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        if method == "PUT":
            return self._take_file(path, body)
        if path in ("enrol/", "hello/"):
            return self._welcome(path, json.loads(body))
        if path == "reports/":
            return self._take_batch(decode(ReportBatch, json.loads(body)))
        if path == "wanted/":
            wanted = self.plane.wait_for_wanted(query.get("version", ""), float(query["wait"]))
            return (200, json.dumps(encode(wanted)).encode()) if wanted else (304, b"")
        content = self.plane.files.get(path)
        return (404, b"{}") if content is None else (200, content)

    def _welcome(self, path: str, message: Any) -> tuple[int, bytes]:
        plane = self.plane
        with plane.lock:
            if path == "enrol/":
                request = decode(EnrolRequest, message)
                if request.token != ENROLMENT_TOKEN:
                    return 403, b'{"detail": "unknown token"}'
                plane.enrolments.append(request)
                return 201, json.dumps(encode(plane.reply)).encode()
            hello = decode(HelloRequest, message)
            if plane.lease_holder not in (None, hello.boot_id):
                return 409, b'{"detail": "another agent holds the lease"}'
            plane.hellos.append(hello)
            return 200, json.dumps(encode(plane.reply)).encode()

    def _take_batch(self, batch: ReportBatch) -> tuple[int, bytes]:
        plane = self.plane
        if any(plane.refuse_report(report) for report in batch.reports):
            return plane.refusal, b'{"detail": "a report that the test does not like"}'
        with plane.lock:
            if plane.lease_holder not in (None, batch.boot_id):
                return 409, b'{"detail": "another agent holds the lease"}'
            plane.batches.append(batch)
            reply = BatchReply(stale=plane.stale, report_every_s=plane.report_every_s)
            return 200, json.dumps(encode(reply)).encode()

    def _take_file(self, path: str, body: bytes) -> tuple[int, bytes]:
        if hashlib.sha256(body).hexdigest() != self.headers["X-Sha256"]:
            return 400, b'{"detail": "X-Sha256 does not match"}'
        _, job_id, _, name, _ = path.split("/")
        with self.plane.lock:
            self.plane.uploads[int(job_id), name] = body
        return 204, b""

    def _answer(self, status: int, body: bytes, retry_after: str = "") -> None:
        self.send_response(status)
        if retry_after:
            self.send_header("Retry-After", retry_after)
        if status >= 400:
            self.send_header("Content-Type", "application/problem+json")
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status not in (204, 304):
            self.wfile.write(body)
