"""The agent protocol over HTTP (docs/protocol.md).

Plain Django views: the messages of core.protocol validate themselves without serializers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    JsonResponse,
)
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from controlplane.core.protocol.node_messages import EnrolRequest, HelloRequest, ReportBatch
from controlplane.core.protocol.prediction_parts import PARTS_LIMIT, part_of
from controlplane.core.protocol.wire import Message, decode, encode
from controlplane.turns import turn_end
from jobs import nudges
from jobs.api.downloads import file_response
from jobs.api.throttles import seconds_to_next_minute, times_this_minute
from jobs.exceptions import (
    ControlPlaneError,
    ForbiddenError,
    GoneError,
    InvalidInputError,
    NotAuthenticatedError,
    ThrottledError,
    TooLargeError,
    TooManyFailuresError,
    problem_response,
)
from jobs.models import Job, Node
from jobs.origins import client_network
from jobs.selectors.desired_state.agent_files import (
    adopted_state,
    checkpoint_for_node,
    code_for_node,
    source_model,
    upload_target,
)
from jobs.selectors.desired_state.state import wanted_orders
from jobs.services.cluster.agent_tokens import node_by_token
from jobs.services.cluster.nodes import node_enrol, node_heartbeat, node_hello
from jobs.services.failures.unsendable import unsendable_end
from jobs.services.lifecycle.artifacts import artifact_store
from jobs.services.lifecycle.retention import storage_check
from jobs.services.reports.batches import batch_take

#: Body of an enrolment: 64 accelerators take 20 KB.
_ENROL_LIMIT_BYTES = 64 * 1024
#: Wrong enrolment tokens that one address may send to one process in a minute.
_WRONG_TOKENS_LIMIT = 30
#: Requests of one node that one process answers in a minute. An agent sends 20 batches a second at
#: most, and waits for orders besides; one that sends more was taken over.
_NODE_REQUESTS_LIMIT = 6000
#: Of a job that runs results and state are stored up to so many times its owner's limit.
_TIMES_THE_STORAGE = 2

View = Callable[..., HttpResponseBase]


def agent_view(method: str, *, is_open: bool = False) -> Callable[[View], View]:
    """Wrap a view: check the method and the agent's token (unless `is_open`), render errors."""

    def decorate(view: View) -> View:
        @csrf_exempt  # no cookies are used here
        @wraps(view)
        def checked(request: HttpRequest, **parts: Any) -> HttpResponseBase:
            if request.method != method:
                response = problem_response(
                    ControlPlaneError(f"Use {method}.", code="method_not_allowed")
                )
                response.status_code = 405
                response.headers["Allow"] = method
                return response
            try:
                return view(request, *(() if is_open else [_counted(request)]), **parts)
            except ControlPlaneError as error:
                return problem_response(error)

        return checked

    return decorate


def node_of(request: HttpRequest) -> Node:
    """Return the node of the requesting agent.

    Raises:
        NotAuthenticatedError: the agent token is missing or unknown.
        GoneError: the node was removed.
    """
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    node = None
    if scheme == "Agent" and token:
        node = node_by_token(token.strip(), timezone.now())
    if node is None:
        raise NotAuthenticatedError("Send the agent's token: Authorization: Agent <token>.")
    if node.removed_at is not None:
        raise GoneError("This node was removed; stop everything.", code="node_removed")
    return node


def _counted(request: HttpRequest) -> Node:
    node = node_of(request)
    node_requests_check(node, new=1)
    return node


def node_requests_check(node: Node, *, new: int) -> None:
    """Add 1 to a node's requests of this minute, or 0 before a request's body is read.

    Raises:
        ThrottledError: the node has had this minute's.
    """
    if times_this_minute(f"node:{node.pk}", new) + 1 - new > _NODE_REQUESTS_LIMIT:
        text = f"At most {_NODE_REQUESTS_LIMIT} requests of a node a minute."
        raise ThrottledError(text, seconds_to_next_minute())


def _message(
    request: HttpRequest,
    expected: type[Message],
    limit_bytes: int | None = None,
) -> Message:
    limit_bytes = settings.AGENT_BATCH_LIMIT_BYTES if limit_bytes is None else limit_bytes
    if int(request.headers.get("Content-Length") or 0) > limit_bytes:
        raise TooLargeError(f"At most {limit_bytes} bytes a request.")
    body = request.read(limit_bytes + 1)
    if len(body) > limit_bytes:
        raise TooLargeError(f"At most {limit_bytes} bytes a request.")
    try:
        return decode(expected, json.loads(body))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"The message is not understood: {error}") from None


@agent_view("POST", is_open=True)
def enrol(request: HttpRequest) -> HttpResponse:
    """Enrol a new node; callers with wrong tokens are limited by address."""
    counter = f"enrolments:{client_network(request)}"
    if times_this_minute(counter, 0) >= _WRONG_TOKENS_LIMIT:
        response = problem_response(TooManyFailuresError("Too many wrong tokens; wait a minute."))
        response.headers["Retry-After"] = str(int(seconds_to_next_minute()) + 1)
        return response
    try:
        reply = node_enrol(_message(request, EnrolRequest, _ENROL_LIMIT_BYTES), timezone.now())
    except ForbiddenError:
        times_this_minute(counter, 1)
        raise
    nudges.jobs_changed(orders=True, cluster=True)
    return JsonResponse(encode(reply), status=201)


@agent_view("POST")
def hello(request: HttpRequest, node: Node) -> HttpResponse:
    """Readmit a (re)started agent."""
    token = request.headers["Authorization"].partition(" ")[2].strip()
    reply = node_hello(node, _message(request, HelloRequest), token, timezone.now())
    nudges.jobs_changed(orders=True, cluster=True)
    return JsonResponse(encode(reply))


@agent_view("GET")
def wanted(request: HttpRequest, node: Node) -> HttpResponse:
    """Return the node's desired state once it differs from `version`; 304 after `wait` seconds.

    Of an ASGI server, the handler waits (`waiting`).
    """
    version = request.GET.get("version", "")
    longest_s = wait_s(request)
    may_wait = longest_s > 0 and not isinstance(request, ASGIRequest)
    deadline = time.monotonic() + longest_s
    with nudges.listening(nudges.ORDERS) if may_wait else nullcontext() as listener:
        while True:
            state, unsendable = wanted_orders(node)
            if unsendable:
                changed = unsendable_end(node, unsendable, timezone.now())
                nudges.jobs_changed(changed, orders=True)
            left_s = deadline - time.monotonic()
            if state.version != version:
                return JsonResponse(encode(state))
            if listener is None or left_s <= 0:
                return HttpResponse(status=304)
            turn_end()
            listener.wait(left_s)


def wait_s(request: HttpRequest) -> float:
    """Return how long an agent may wait for its wanted state.

    Raises:
        InvalidInputError: `wait` is no number.
    """
    try:
        asked_s = float(request.GET.get("wait", "0"))
    except ValueError:
        raise InvalidInputError.of(wait="Give seconds.") from None
    return min(max(asked_s, 0.0), settings.WAIT_LIMIT_S) if asked_s == asked_s else 0.0


@agent_view("POST")
def reports(request: HttpRequest, node: Node) -> HttpResponse:
    """Take a heartbeat with the reports since the last one."""
    batch = _message(request, ReportBatch)
    now = timezone.now()
    node_heartbeat(node, batch.boot_id, now)
    outcome = batch_take(node, batch, now)
    nudges.jobs_changed(outcome.changed_jobs, orders=outcome.is_order_change)
    nudges.recovery_enqueue(outcome.stalled_jobs)
    return JsonResponse(encode(outcome.reply))


@agent_view("GET")
def code(request: HttpRequest, node: Node, **identity: int) -> HttpResponseBase:
    """Send the uploaded code of a job or a validation."""
    job = code_for_node(node, **identity)
    return file_response(request, job.code, name=job.code_name, sha256=job.code_sha256)


@agent_view("GET")
def checkpoint(request: HttpRequest, node: Node, **identity: int) -> HttpResponseBase:
    """Send a job's newest durable checkpoint, or the state that a validated job starts from."""
    artifact = checkpoint_for_node(node, **identity)
    return file_response(request, artifact.file, name=artifact.name, sha256=artifact.sha256)


@agent_view("GET")
def adopted(request: HttpRequest, node: Node, job_id: int) -> HttpResponseBase:
    """Send the state of a trial that a job goes on with."""
    artifact = adopted_state(code_for_node(node, job_id=job_id))
    return file_response(request, artifact.file, name=artifact.name, sha256=artifact.sha256)


@agent_view("GET")
def source(request: HttpRequest, node: Node, **identity: int) -> HttpResponseBase:
    """Send the source job's model to a prediction job or its validation."""
    artifact = source_model(code_for_node(node, **identity))
    return file_response(request, artifact.file, name=artifact.name, sha256=artifact.sha256)


def upload_job(request: HttpRequest, node: Node, job_id: int, name: str) -> tuple[Job, int]:
    """Return the job and generation whose file `name` a request uploads; no body is read.

    Raises:
        InvalidInputError: slot or generation is not a number.
        NotFoundError, ConflictError: as of `upload_target`.
        TooLargeError: the files of the job's owner leave no room for this one, or the parts of its
            predictions are too many.
    """
    try:
        slot, generation = int(request.GET["slot"]), int(request.GET["generation"])
    except (KeyError, ValueError):
        raise InvalidInputError.of(slot="Give slot and generation as numbers.") from None
    job = upload_target(node, job_id, slot, generation, name)
    is_part = part_of(name) is not None
    if is_part and job.artifacts.count() >= PARTS_LIMIT:
        raise TooLargeError(f"A job may have {PARTS_LIMIT} files.")
    new_bytes = int(request.headers.get("Content-Length") or 0)
    storage_check(job.owner_id, new_bytes, times=1 if is_part else _TIMES_THE_STORAGE)
    return job, generation


@agent_view("PUT")
def files(request: HttpRequest, node: Node, job_id: int, name: str) -> HttpResponse:
    """Store a file produced by a trainer."""
    job, generation = upload_job(request, node, job_id, name)
    sha256 = request.headers.get("X-Sha256", "")
    artifact_store(job, name, generation, request, sha256, timezone.now())
    nudges.jobs_changed([job_id])
    return HttpResponse(status=204)
