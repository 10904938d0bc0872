"""Limits of request bodies, enforced around the WSGI and ASGI applications before a body is read.

Django's ASGI handler stores every body before it looks for a view, and a WSGI server gives a thread
to each body while it arrives; so views are too late to refuse one. It gives one to each answer in
pieces, too, while it leaves; so there are few of these.
"""

from __future__ import annotations

import asyncio
import io
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import nullcontext
from http import HTTPStatus
from importlib import import_module
from typing import Any, BinaryIO, NamedTuple, cast
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from rest_framework.exceptions import AuthenticationFailed

from jobs.api.agent.views import node_of, node_requests_check, upload_job
from jobs.api.authentication import TokenAuthentication
from jobs.api.downloads import ThreadResponse
from jobs.exceptions import (
    RETRY_S,
    BusyError,
    ControlPlaneError,
    DiskFullError,
    TooLargeError,
    passing_error,
    problem_response,
)
from jobs.origins import client_network
from jobs.places import Places

ANONYMOUS_LIMIT_BYTES = 64 * 1024
_SUBMISSION_LIMIT_BYTES = settings.CODE_LIMIT_BYTES + settings.DATA_UPLOAD_MAX_MEMORY_SIZE
_AGENT_PATHS = "/api/v1/agent/"
_FILE_PATH = re.compile(rf"{_AGENT_PATHS}jobs/(?P<job_id>[0-9]{{1,18}})/files/(?P<name>[^/]+)/\Z")
#: Largest body by path; the first match counts, others: DATA_UPLOAD_MAX_MEMORY_SIZE. A caller who
#: is not known has ANONYMOUS_LIMIT_BYTES everywhere.
LIMITS_BYTES = (
    (_FILE_PATH, settings.ARTIFACT_LIMIT_BYTES),
    (re.compile(r"/api/v1/agent/enrol/"), ANONYMOUS_LIMIT_BYTES),
    (re.compile(_AGENT_PATHS), settings.AGENT_BATCH_LIMIT_BYTES),
    (re.compile(r"/(api/v1/(jobs|sweeps|validations)|jobs/new)/"), _SUBMISSION_LIMIT_BYTES),
)
#: A body has so many seconds, and one more for each LEAST_BYTES_PER_S of its length (ASGI).
BODY_S, LEAST_BYTES_PER_S = 15.0, 64 * 1024
#: Seconds that a request waits for its turn to send a body (WSGI).
TURN_S = 1.0
#: Files of one node that are received at once.
NODE_UPLOADS_LIMIT = 4
#: A request without these has no body, and needs no check.
_BODY_HEADERS = frozenset((b"content-length", b"transfer-encoding"))
_BODY_VARIABLES = frozenset(("CONTENT_LENGTH", "HTTP_CONTENT_LENGTH", "HTTP_TRANSFER_ENCODING"))
_BUSY = "Too many requests are being sent at once; try again."
_GO_BACK = "Nothing was changed. Go back to the form, and send it again."
_CHUNK_BYTES = 64 * 1024
_IN_MEMORY_BYTES = 1024**2

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApplication = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class LengthRequiredError(ControlPlaneError):
    status = HTTPStatus.LENGTH_REQUIRED
    code = "length_required"


class Announcement(NamedTuple):
    """A body that has not been read: its length, and the node that uploads it as a job's file."""

    length: int
    node_id: int | None = None


def announced_body(request: HttpRequest) -> Announcement:
    """Return the declared length and kind of a request's body, checked against the limits.

    Raises:
        LengthRequiredError: the length is not declared.
        TooLargeError: the body is larger than this path and this caller may send.
        ControlPlaneError: the declared length is no number, or an agent may not send this here, or
            not this minute.
    """
    declared = request.headers.get("Content-Length") or "0"
    if "Transfer-Encoding" in request.headers:
        raise LengthRequiredError("Send a Content-Length; chunked bodies are not accepted.")
    if not re.fullmatch(r"[0-9]{1,18}", declared):
        raise ControlPlaneError("Content-Length must be a number of bytes.")
    length = int(declared)
    matching = (limit for path, limit in LIMITS_BYTES if path.match(request.path_info))
    limit = next(matching, settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
    if length > limit:
        raise TooLargeError(f"At most {limit} bytes here; this request has {length}.")
    if length <= ANONYMOUS_LIMIT_BYTES:
        return Announcement(length)
    if request.path_info.startswith(_AGENT_PATHS):
        node = node_of(request)
        node_requests_check(node, new=0)
        file = _FILE_PATH.match(request.path_info)
        if file is None:
            return Announcement(length)
        upload_job(request, node, int(file["job_id"]), file["name"])
        return Announcement(length, node.pk)
    if not is_known(request):
        raise TooLargeError(
            f"Log in, or send a token: without one, at most {ANONYMOUS_LIMIT_BYTES} bytes are "
            f"taken, and this request has {length}."
        )
    return Announcement(length)


def is_known(request: HttpRequest) -> bool:
    """Return whether a request has a valid API token or session."""
    try:
        if TokenAuthentication().authenticate(cast(Any, request)) is not None:
            return True
    except AuthenticationFailed:
        return False
    store = import_module(settings.SESSION_ENGINE).SessionStore
    request.session = store(request.COOKIES.get(settings.SESSION_COOKIE_NAME))
    return get_user(request).is_authenticated


def _uploads() -> Places:
    return Places(settings.UPLOADS_LIMIT, min(settings.UPLOADS_LIMIT, NODE_UPLOADS_LIMIT), _BUSY)


def _refusal(error: ControlPlaneError | OSError, accepted_types: str = "") -> HttpResponse:
    """Return the answer to a body that is not taken: a page for a browser, else a problem.

    Raises:
        OSError: it has not come, or could not be kept, for another reason than a full disk.
    """
    refused = error if isinstance(error, ControlPlaneError) else passing_error(error)
    if refused is None:
        raise error
    response = problem_response(refused)
    if "text/html" in accepted_types:
        told = {"title": "Not sent", "text": f"{refused.detail} {_GO_BACK}"}
        response = HttpResponse(render_to_string("503.html", told), status=refused.status)
    if isinstance(refused, BusyError | DiskFullError):
        response.headers["Retry-After"] = str(RETRY_S)
    return response


def bounded_wsgi(application: WSGIApplication) -> WSGIApplication:
    """Check the length of bodies, and read them before a request is handled, a few at a time.

    Slow senders then hold `VIRTUALFLOW_BODIES` threads of a process at most, and those who wait
    WAITING_LIMIT more. Further requests with a body are answered with 503, after TURN_S or at once;
    those without one as ever. One address leaves a turn to others. A turn has no deadline: Granian
    2.8 cannot end a read, and the whole process stands still if a request ends before its read.
    """
    turns = Places(settings.BODIES_LIMIT, max(settings.BODIES_LIMIT - 1, 1), _BUSY)
    uploads = _uploads()

    def body_of(request: WSGIRequest, source: Any, length: int) -> BinaryIO:
        with turns.held(client_network(request), TURN_S):
            return _body_read(source, length)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            if environ.keys().isdisjoint(_BODY_VARIABLES):
                return _sendable(application(environ, start_response))
            # A copy: the request decodes the path in it, which works only once.
            request = WSGIRequest(dict(environ))
            length, node_id = _checked(request)
            if not length:
                return _sendable(application(environ, start_response))
            place = nullcontext() if node_id is None else uploads.held(node_id)
            with place, body_of(request, environ["wsgi.input"], length) as body:
                return _sendable(application(environ | {"wsgi.input": body}, start_response))
        except (ControlPlaneError, OSError) as error:
            refusal = _refusal(error, environ.get("HTTP_ACCEPT", ""))
            status = f"{refusal.status_code} {refusal.reason_phrase}"
            start_response(status, [*refusal.items(), ("Connection", "close")])
            return [refusal.content]

    return answer


def _sendable(response: Iterable[bytes]) -> Iterable[bytes]:
    """Return an answer in one piece, which holds no thread while its reader is slow.

    Downloads stay in pieces; they have a bounded number of places (`jobs.api.downloads`).
    """
    if isinstance(response, ThreadResponse):
        return response
    try:
        return [b"".join(response)]
    finally:
        if hasattr(response, "close"):
            response.close()


def _body_read(source: Any, length: int) -> BinaryIO:
    body = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
    left = length
    while left and (chunk := source.read(min(left, _CHUNK_BYTES))):
        body.write(chunk)
        left -= len(chunk)
    if left:
        body.close()
        raise ControlPlaneError(f"The body ended {left} bytes before its declared length.")
    body.seek(0)
    return cast(BinaryIO, body)


def bounded_asgi(application: AsgiApplication) -> AsgiApplication:
    """Check the length of bodies, and end requests whose body is longer or slower than allowed."""
    uploads = _uploads()

    async def answer(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        try:
            if _BODY_HEADERS.isdisjoint(name for name, _ in scope["headers"]):
                await application(scope, _bounded_receive(receive, 0), send)
                return
            request = ASGIRequest(scope, io.BytesIO())
            length, node_id = await sync_to_async(_checked, thread_sensitive=False)(request)
            with nullcontext() if node_id is None else uploads.held(node_id):
                await application(scope, _bounded_receive(receive, length), send)
        except (ControlPlaneError, OSError) as error:
            await _respond(_refusal(error), send)

    return answer


def _checked(request: HttpRequest) -> Announcement:
    try:
        return announced_body(request)
    finally:
        close_old_connections()


def _bounded_receive(receive: Receive, length: int) -> Receive:
    """Return a `receive` that reports a disconnect once a body breaks its bounds."""
    ends_at = asyncio.get_running_loop().time() + BODY_S + length / LEAST_BYTES_PER_S
    left = length
    is_complete = False

    async def bounded() -> Message:
        nonlocal left, is_complete
        if is_complete:
            return await receive()
        try:
            async with asyncio.timeout_at(ends_at):
                message = await receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        left -= len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        return message if left >= 0 else {"type": "http.disconnect"}

    return bounded


async def _respond(response: HttpResponse, send: Send) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in response.items()]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": response.content})
