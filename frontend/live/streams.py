"""Server-sent events: notify open pages and programs of changes, with the ids of changed jobs.

One subscription to Redis per event loop feeds every stream, and one read of the database tells
whose sessions and tokens are still valid: an open stream costs neither a thread nor a query. A slow
reader loses no change: changes accumulate until its stream takes them. Only ids of jobs visible to
the reader are sent, who then requests their data; so the stream cannot leak anything else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.views.decorators.csrf import csrf_exempt
from redis.exceptions import RedisError
from rest_framework.exceptions import AuthenticationFailed

from frontend.live.identities import Credential, Identity, identities_of
from jobs import counters, nudges
from jobs.api.authentication import TokenAuthentication
from jobs.exceptions import PROBLEM_TYPE, problem_body
from jobs.models import Job

#: Most open streams of one process; further pages receive 429 and poll.
MAX_STREAMS = 2_000
#: Most open streams of one user.
MAX_STREAMS_PER_PERSON = 20
#: Seconds between two signs of life of a stream, and between two looks at the sessions of all.
KEEP_ALIVE_S = 15.0
#: Least seconds between two events of one stream; changes in between are sent together.
MIN_GAP_S = 0.25
RECONNECT_S = 2.0
TELL_S = 5.0
#: Most jobs named in one event; an event with more reports a change of the cluster instead.
MAX_NAMED_JOBS = 100
_MAX_KNOWN_OWNERS = 10_000

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Subscriber:
    """One open stream and its pending changes; it ends once `is_over`."""

    identity: Identity
    credential: Credential
    job_ids: set[int] = field(default_factory=set)
    is_cluster_changed: bool = False
    is_over: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, job_ids: Iterable[int], *, is_cluster_changed: bool) -> None:
        """Add a change, and wake the stream if there is anything to send."""
        self.job_ids.update(job_ids)
        self.is_cluster_changed |= is_cluster_changed
        if len(self.job_ids) > MAX_NAMED_JOBS:
            self.job_ids.clear()
            self.is_cluster_changed = True
        if self.job_ids or self.is_cluster_changed:
            self.wake.set()

    def end(self) -> None:
        """End the stream, whatever is pending."""
        self.is_over = True
        self.wake.set()

    def take(self) -> bytes:
        """Return the pending changes as an event, and clear them."""
        data = json.dumps({"jobs": sorted(self.job_ids), "cluster": self.is_cluster_changed})
        self.job_ids.clear()
        self.is_cluster_changed = False
        self.wake.clear()
        return f"event: changed\ndata: {data}\n\n".encode()


class Hub:
    """The streams of one event loop, and the tasks that feed and check all of them."""

    def __init__(self) -> None:
        self.subscribers: set[Subscriber] = set()
        self._tasks = nudges.SharedTasks(self._feed, self._check)
        self._owners: OrderedDict[int, tuple[int, int | None]] = OrderedDict()
        self._tell_after = 0.0

    def has_room_for(self, person_id: int) -> bool:
        """Return whether one more stream of a user may be opened."""
        of_person = sum(s.identity.person_id == person_id for s in self.subscribers)
        return len(self.subscribers) < MAX_STREAMS and of_person < MAX_STREAMS_PER_PERSON

    def join(self, subscriber: Subscriber) -> None:
        """Add a stream; the first one starts the tasks."""
        self.subscribers.add(subscriber)
        if not self._tasks.are_running:
            self._tasks.start()

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a stream; the last one ends the tasks."""
        self.subscribers.discard(subscriber)
        if not self.subscribers:
            self._tasks.stop()

    async def _check(self) -> None:
        """End the streams whose session or token is over, or whose user sees other jobs now."""
        read = sync_to_async(identities_of, thread_sensitive=False)
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            watched = list(self.subscribers)
            try:
                found = await read({one.credential for one in watched})
            except Exception:
                # A stream whose rights are unknown ends.
                logger.exception("event streams cannot read who may read on")
                found = {}
            for subscriber in watched:
                if found.get(subscriber.credential) != subscriber.identity:
                    subscriber.end()

    async def _feed(self) -> None:
        """Distribute changes while there are streams; reconnect to Redis indefinitely."""
        while True:
            try:
                async for change in nudges.messages(nudges.CHANGES, KEEP_ALIVE_S):
                    if change is not None:
                        await self._send(change)
                    await self._tell_number()
            except (RedisError, OSError) as error:
                logger.warning("event streams have lost Redis: %s", error)
            except Exception:
                # A single faulty change must not cut off all pages.
                logger.exception("event streams stumbled over a change")
            await asyncio.sleep(RECONNECT_S)
            # Changes during the gap are unknown: every page refreshes once.
            for subscriber in self.subscribers:
                subscriber.add((), is_cluster_changed=True)

    async def _tell_number(self) -> None:
        """Tell the number of streams for the metrics, at most once in `TELL_S`."""
        if time.monotonic() >= self._tell_after:
            self._tell_after = time.monotonic() + TELL_S
            tell = sync_to_async(counters.share_tell, thread_sensitive=False)
            await tell("watchers", len(self.subscribers))

    async def _send(self, change: dict[str, object]) -> None:
        named = change.get("jobs")
        job_ids = [i for i in named if isinstance(i, int)] if isinstance(named, list) else []
        is_cluster_changed = bool(change.get("cluster"))
        if not all(subscriber.identity.sees_all for subscriber in self.subscribers):
            await self._learn_owners(job_ids)
        for subscriber in list(self.subscribers):
            own = [
                job_id for job_id in job_ids if subscriber.identity.sees(self._owners.get(job_id))
            ]
            subscriber.add(own, is_cluster_changed=is_cluster_changed)

    async def _learn_owners(self, job_ids: list[int]) -> None:
        """Look up the owners and projects of jobs, which never change."""
        unknown = [job_id for job_id in job_ids if job_id not in self._owners]
        if unknown:
            self._owners.update(await sync_to_async(_owners_of, thread_sensitive=False)(unknown))
        while len(self._owners) > _MAX_KNOWN_OWNERS:
            self._owners.popitem(last=False)


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = weakref.WeakKeyDictionary()


def hub() -> Hub:
    """Return the hub of the running event loop."""
    return _hubs.setdefault(asyncio.get_running_loop(), Hub())


@csrf_exempt  # nothing is changed here: another method than GET is refused as a problem
async def stream(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Open a stream for the user of a session or API token; 401 without, 429 with too many.

    404 from a WSGI server, of which every stream would hold a thread for good.
    """
    if request.method != "GET":
        text = f'Method "{request.method}" not allowed.'
        return _refusal(request, 405, "method_not_allowed", text, {"Allow": "GET"})
    if not _is_origin_allowed(request):
        return HttpResponse("This origin may not read the stream.", status=403)
    if not settings.REDIS_URL or not isinstance(request, ASGIRequest):
        return _refusal(request, 404, "not_found", "No streams are served here.")
    credential, identity = await sync_to_async(_identified)(request)
    if credential is None or identity is None:
        text = "Log in, or send a token that may read jobs."
        return _refusal(request, 401, "not_authenticated", text)
    subscriber = Subscriber(identity, credential)
    if not hub().has_room_for(identity.person_id):
        later = {"Retry-After": "30"}
        return _refusal(request, 429, "too_many_streams", "Too many open streams.", later)
    response_stream = StreamingHttpResponse(
        EventContent(subscriber), content_type="text/event-stream"
    )
    response_stream.headers["Cache-Control"] = "no-store"
    response_stream.headers["X-Accel-Buffering"] = "no"
    return _answer(request, response_stream)


class EventContent:
    """Content of a stream, until its reader disconnects or loses access."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        # Scripts of pages do not hear comments; programs expect no other event than `changed`.
        is_page = subscriber.credential.kind == "session"
        self._still_here = b"event: alive\ndata: {}\n\n" if is_page else b": still here\n\n"
        self._hub = hub()
        self._loop = asyncio.get_running_loop()
        self._hub.join(subscriber)

    def close(self) -> None:
        """Remove the stream from the hub; called by Django at the end of the response."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hub.leave, self._subscriber)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"retry: 3000\n\n"
        while not self._subscriber.is_over:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await self._subscriber.wake.wait()
            except TimeoutError:
                yield self._still_here
                continue
            if not self._subscriber.is_over:
                yield self._subscriber.take()
                await asyncio.sleep(MIN_GAP_S)


def _identified(request: HttpRequest) -> tuple[Credential | None, Identity | None]:
    """Return what a request identifies itself with, and its user; a token goes before a session."""
    try:
        found = TokenAuthentication().authenticate(request)
    except AuthenticationFailed:
        return None, None
    if found is not None:
        credential = Credential("token", found[1].digest)
    else:
        credential = Credential("session", str(request.session.session_key or ""))
    return credential, identities_of([credential]).get(credential)


def _owners_of(job_ids: list[int]) -> dict[int, tuple[int, int | None]]:
    try:
        rows = Job.objects.filter(pk__in=job_ids).values_list("pk", "owner_id", "project_id")
        return {job_id: (owner, project) for job_id, owner, project in rows}
    finally:
        close_old_connections()


def _is_origin_allowed(request: HttpRequest) -> bool:
    """Return whether the origin may read with credentials: this server's or a trusted one."""
    origin = request.headers.get("Origin")
    if origin is None:
        return True
    own = f"{request.scheme}://{request.get_host()}"
    return origin in (own, *settings.CSRF_TRUSTED_ORIGINS)


def _refusal(
    request: HttpRequest,
    status: int,
    code: str,
    detail: str,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> HttpResponse | StreamingHttpResponse:
    body = problem_body(status, code, detail)
    refused = JsonResponse(body, status=status, content_type=PROBLEM_TYPE, headers=headers)
    return _answer(request, refused)


def _answer(
    request: HttpRequest, response: HttpResponse | StreamingHttpResponse
) -> HttpResponse | StreamingHttpResponse:
    """Allow exactly the requesting origin to read the response, with its session."""
    if origin := request.headers.get("Origin"):
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Allow-Credentials"] = "true"
        response.headers["Vary"] = "Origin"
    return response
