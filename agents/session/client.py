"""Client of the control plane's HTTP interface; size and time of each request are bounded."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from agents.trainer.contract.plain_files import plain_file_open
from controlplane.core.protocol.node_messages import (
    BatchReply,
    EnrolReply,
    EnrolRequest,
    HelloRequest,
    ReportBatch,
    WantedState,
)
from controlplane.core.protocol.wire import Message, decode, encode

MAX_REPLY_BYTES = 32 * 1024 * 1024
MAX_CODE_BYTES = 256 * 1024 * 1024
#: Of a trainer's file; the control plane takes no larger one (ARTIFACT_LIMIT_BYTES).
MAX_UPLOAD_BYTES = 4 * 1024 * 1024 * 1024
MAX_FILE_BYTES = 64 * 1024 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
#: Least speed at which the control plane stores a file that it has received; it answers after that.
STORED_BYTES_A_SECOND = 8 * 1024 * 1024
_RETRIED_STATUSES = frozenset({408, 425, 429})
#: Statuses that cost trainers or reports, if they are the control plane's own word: a proxy on the
#: way knows nothing of these, and does not say it in the form of a problem.
_JUDGEMENTS, _PROBLEM_TYPE = frozenset({400, 401, 403, 409, 410, 422}), "application/problem+json"
_MESSAGE_CHARACTERS = 500


class ControlPlaneAwayError(Exception):
    """No answer, or a temporary error: retry.

    Attributes:
        retry_after_s: the server's Retry-After.
        status: HTTP status of the answer; 0 without one.
    """

    def __init__(self, message: str, retry_after_s: float = 0.0, status: int = 0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status


class RequestRefusedError(Exception):
    """A permanent error: a retry gets the same answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class NotAuthorisedError(RequestRefusedError):
    """401 or 403: the control plane rejects the token."""


class ConflictResponseError(RequestRefusedError):
    """409: used token, another live agent, or a stale generation."""


class NodeRemovedError(RequestRefusedError):
    """410: the node was removed; all its trainers have to stop."""


class ConnectionSettingsError(Exception):
    """Environment variables for proxies or certificates that are wrong; the message names them."""


def is_passing(error: BaseException | None) -> bool:
    """Return whether a transfer should be retried without counting the failure.

    An unknown token and a removed node count as passing: the heartbeat handles these errors.
    """
    return isinstance(error, ControlPlaneAwayError | NotAuthorisedError | NodeRemovedError)


def wished_wait_s(error: BaseException | None) -> float:
    """Return the delay, in seconds, that the control plane requested (Retry-After); 0 if none."""
    return error.retry_after_s if isinstance(error, ControlPlaneAwayError) else 0.0


class DigestMismatchError(Exception):
    """A download does not have the announced digest, or exceeds the size limit."""


class ControlPlaneClient:
    """Sends the messages of docs/protocol.md; safe to use from several threads.

    All methods raise `ControlPlaneAwayError`, or `RequestRefusedError` and its subclasses.
    """

    def __init__(self, server: str, timeout_s: float) -> None:
        """Prepare only.

        Raises:
            ConnectionSettingsError: of a proxy that is not supported, or of missing certificates.
        """
        self._timeout_s = timeout_s
        self._headers: dict[str, str] = {}
        try:
            self._http = httpx.Client(
                base_url=f"{server}/api/v1/agent/",
                timeout=httpx.Timeout(timeout_s),
                limits=httpx.Limits(max_connections=8, max_keepalive_connections=4),
                follow_redirects=False,
            )
        except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
            raise ConnectionSettingsError(
                "correct HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY or SSL_CERT_FILE, which tell "
                f"how to connect: {error}"
            ) from None

    def close(self) -> None:
        self._http.close()

    def authorise(self, agent_token: str) -> None:
        """Send `agent_token` with every request from now on."""
        self._headers = {"Authorization": f"Agent {agent_token}"}

    def enrol(self, request: EnrolRequest) -> EnrolReply:
        """Exchange the one-time token for the agent's own credentials."""
        return _understood(EnrolReply, self._post("enrol/", encode(request)))

    def hello(self, request: HelloRequest) -> EnrolReply:
        """Register the node's present host, ports and accelerators."""
        return _understood(EnrolReply, self._post("hello/", encode(request)))

    def send_reports(self, batch: ReportBatch) -> BatchReply:
        """Send a batch; an answer acknowledges all of it."""
        return _understood(BatchReply, self._post("reports/", encode(batch)))

    def wanted(self, version: str, wait_s: float) -> WantedState | None:
        """Long-poll up to `wait_s` for a desired state other than `version`; None if unchanged."""
        status, body = self._exchange(
            "GET",
            "wanted/",
            params={"wait": f"{wait_s:g}"} | ({"version": version} if version else {}),
            timeout=httpx.Timeout(self._timeout_s, read=wait_s + self._timeout_s),
        )
        if status == httpx.codes.NOT_MODIFIED:
            return None
        return _understood(WantedState, _parsed(body))

    def fetch(self, resource: str, part: str, sha256: str, target: BinaryIO) -> None:
        """Write a file that a job or a validation needs to `target`.

        Args:
            resource: "jobs/7", or "validations/7".
            part: its uploaded "code"; its newest durable "checkpoint", or of a validation the state
                that it starts from; the "adopted" state that it goes on with; the "source", the
                model with which it predicts.

        Raises:
            DigestMismatchError: the bytes do not have the announced SHA-256.
        """
        max_bytes = MAX_CODE_BYTES if part == "code" else MAX_FILE_BYTES
        self._download(f"{resource}/{part}/", sha256, target, max_bytes)

    def upload(
        self, job_id: int, slot: int, generation: int, name: str, path: Path, below: Path
    ) -> None:
        """Send one file of a trainer's outputs.

        Args:
            below: the run directory; see `plain_file_open`.

        Raises:
            OSError: the file cannot be read, is no regular file, or is too large.
        """
        with plain_file_open(path, below) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > MAX_UPLOAD_BYTES:
                raise OSError(f"{path.name} is larger than {MAX_UPLOAD_BYTES} bytes")
            # A file that its job makes longer meanwhile is read as far as it was.
            digest = hashlib.sha256()
            for chunk in _chunks(file, size_bytes):
                digest.update(chunk)
            headers = {
                "X-Sha256": digest.hexdigest(),
                "Content-Length": str(file.tell()),
                "Content-Type": "application/octet-stream",
            }
            size_bytes = file.tell()
            file.seek(0)
            stored_s = self._timeout_s + size_bytes / STORED_BYTES_A_SECOND
            self._exchange(
                "PUT",
                f"jobs/{job_id}/files/{name}/",
                params={"slot": str(slot), "generation": str(generation)},
                headers=headers,
                content=_chunks(file, size_bytes),
                timeout=httpx.Timeout(self._timeout_s, read=stored_s),
            )

    def _post(self, path: str, body: Any) -> Any:
        text = json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        headers = {"Content-Type": "application/json"}
        _, answer = self._exchange("POST", path, headers=headers, content=text.encode())
        return _parsed(answer)

    @contextmanager
    def _answer(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """Yield the answer to a request, unless it is an error."""
        headers = {**self._headers, **options.pop("headers", {})}
        try:
            with self._http.stream(method, path, headers=headers, **options) as response:
                _raise_for_status(response)
                yield response
        except httpx.HTTPError as error:
            raise ControlPlaneAwayError(f"{type(error).__name__}: {error}") from error

    def _exchange(self, method: str, path: str, **options: Any) -> tuple[int, bytes]:
        with self._answer(method, path, **options) as response:
            return response.status_code, _bounded_body(response)

    def _download(self, path: str, sha256: str, target: BinaryIO, max_bytes: int) -> None:
        digest, size_bytes = hashlib.sha256(), 0
        with self._answer("GET", path) as response:
            for chunk in response.iter_bytes(CHUNK_BYTES):
                size_bytes += len(chunk)
                if size_bytes > max_bytes:
                    raise DigestMismatchError(f"{path} is larger than {max_bytes} bytes")
                digest.update(chunk)
                target.write(chunk)
        if digest.hexdigest() != sha256:
            raise DigestMismatchError(
                f"{path} has SHA-256 {digest.hexdigest()}, announced was {sha256}"
            )


def _chunks(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    """Yield the next bytes of a file, fewer if it ends before."""
    left = num_bytes
    while chunk := file.read(min(left, CHUNK_BYTES)):
        left -= len(chunk)
        yield chunk


def _bounded_body(response: httpx.Response) -> bytes:
    parts, size_bytes = [], 0
    for chunk in response.iter_bytes():
        size_bytes += len(chunk)
        if size_bytes > MAX_REPLY_BYTES:
            raise ControlPlaneAwayError(f"an answer of more than {MAX_REPLY_BYTES} bytes")
        parts.append(chunk)
    return b"".join(parts)


def _parsed(body: bytes) -> Any:
    """Parse an answer; one that is not JSON comes from an intermediary, not from the server."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise ControlPlaneAwayError(f"the answer is not JSON: {error}") from error


def _understood(expected: type[Message], value: Any) -> Message:
    """Decode an answer; a mismatch with the protocol is retried, as a server update may fix it."""
    try:
        return decode(expected, value)
    except ValueError as error:
        raise ControlPlaneAwayError(f"the answer is not understood: {error}") from error


def _raise_for_status(response: httpx.Response) -> None:
    status = response.status_code
    if status < 300 or status == httpx.codes.NOT_MODIFIED:
        return
    body = _bounded_body(response)
    text = body[: _MESSAGE_CHARACTERS * 4].decode(errors="replace")[:_MESSAGE_CHARACTERS]
    message = f"{response.request.method} {response.request.url.path} answered {status}: {text}"
    is_sites = response.headers.get("Content-Type", "").startswith(_PROBLEM_TYPE)
    is_of_proxy = status in _JUDGEMENTS and not is_sites
    if status >= 500 or status in _RETRIED_STATUSES or is_of_proxy:
        wish = response.headers.get("Retry-After", "")
        raise ControlPlaneAwayError(message, float(wish) if wish.isdecimal() else 0.0, status)
    kinds = {401: NotAuthorisedError, 403: NotAuthorisedError, 409: ConflictResponseError}
    raise (kinds | {410: NodeRemovedError}).get(status, RequestRefusedError)(message, status)
