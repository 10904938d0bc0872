"""Server-sent events: notify open pages of changes, with the ids of changed jobs.

One subscription to Redis per event loop feeds every open page. A slow page loses no change: changes
accumulate until its stream takes them. Only ids of jobs visible to the reader are sent; the page
then requests the data it shows, so the stream cannot leak anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from redis.exceptions import RedisError

from jobs import counters, nudges
from jobs.models import Job
from jobs.selectors.access import is_admin

#: Most open streams of one process; further pages receive 429 and poll.
MAX_STREAMS = 2_000
#: Most open streams of one user.
MAX_STREAMS_PER_PERSON = 20
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
    """One open stream and its pending changes."""

    person_id: int
    sees_all: bool
    job_ids: set[int] = field(default_factory=set)
    is_cluster_changed: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def identity(self) -> tuple[int, bool]:
        """The user id, and whether the user sees all jobs."""
        return self.person_id, self.sees_all

    def add(self, job_ids: Iterable[int], *, is_cluster_changed: bool) -> None:
        """Add a change, and wake the stream if there is anything to send."""
        self.job_ids.update(job_ids)
        self.is_cluster_changed |= is_cluster_changed
        if len(self.job_ids) > MAX_NAMED_JOBS:
            self.job_ids.clear()
            self.is_cluster_changed = True
        if self.job_ids or self.is_cluster_changed:
            self.wake.set()

    def take(self) -> bytes:
        """Return the pending changes as an event, and clear them."""
        data = json.dumps({"jobs": sorted(self.job_ids), "cluster": self.is_cluster_changed})
        self.job_ids.clear()
        self.is_cluster_changed = False
        self.wake.clear()
        return f"event: changed\ndata: {data}\n\n".encode()


class Hub:
    """The streams of one event loop, and the one subscription that feeds them."""

    def __init__(self) -> None:
        self.subscribers: set[Subscriber] = set()
        self._feeder: asyncio.Task[None] | None = None
        self._owners: OrderedDict[int, int] = OrderedDict()
        self._tell_after = 0.0

    def has_room_for(self, person_id: int) -> bool:
        """Return whether one more stream of a user may be opened."""
        of_person = sum(s.person_id == person_id for s in self.subscribers)
        return len(self.subscribers) < MAX_STREAMS and of_person < MAX_STREAMS_PER_PERSON

    def join(self, subscriber: Subscriber) -> None:
        """Add a stream; the first one starts the subscription."""
        self.subscribers.add(subscriber)
        if self._feeder is None or self._feeder.done():
            # A context of its own: the request's context would tie the task to the request's
            # thread, which ends with the request.
            self._feeder = asyncio.get_running_loop().create_task(
                self._feed(), context=contextvars.Context()
            )

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a stream; the last one ends the subscription."""
        self.subscribers.discard(subscriber)
        if not self.subscribers and self._feeder is not None:
            self._feeder.cancel()
            self._feeder = None

    async def _feed(self) -> None:
        """Distribute changes while there are streams; reconnect to Redis indefinitely."""
        while True:
            try:
                async for change in nudges.changes(KEEP_ALIVE_S):
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
        if not all(subscriber.sees_all for subscriber in self.subscribers):
            await self._learn_owners(job_ids)
        for subscriber in list(self.subscribers):
            own = [
                job_id
                for job_id in job_ids
                if subscriber.sees_all or self._owners.get(job_id) == subscriber.person_id
            ]
            subscriber.add(own, is_cluster_changed=is_cluster_changed)

    async def _learn_owners(self, job_ids: list[int]) -> None:
        """Look up the owners of jobs; a job's owner never changes."""
        unknown = [job_id for job_id in job_ids if job_id not in self._owners]
        if unknown:
            self._owners.update(await sync_to_async(_owners_of, thread_sensitive=False)(unknown))
        while len(self._owners) > _MAX_KNOWN_OWNERS:
            self._owners.popitem(last=False)


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = weakref.WeakKeyDictionary()


def hub() -> Hub:
    """Return the hub of the running event loop."""
    return _hubs.setdefault(asyncio.get_running_loop(), Hub())


async def stream(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Open a stream for the session's user; 401 without session, 429 with too many streams."""
    if request.method != "GET":
        return _answer(request, HttpResponse(status=405, headers={"Allow": "GET"}))
    if not _is_origin_allowed(request):
        return HttpResponse("This origin may not read the stream.", status=403)
    if not settings.REDIS_URL:
        return _answer(request, HttpResponse("No streams are served here.", status=404))
    found = await sync_to_async(_identify)(request)
    if found is None:
        return _answer(request, HttpResponse("Log in first.", status=401))
    subscriber = Subscriber(*found)
    if not hub().has_room_for(subscriber.person_id):
        response = HttpResponse("Too many open streams.", status=429, headers={"Retry-After": "30"})
        return _answer(request, response)
    response_stream = StreamingHttpResponse(
        EventContent(request, subscriber), content_type="text/event-stream"
    )
    response_stream.headers["Cache-Control"] = "no-store"
    response_stream.headers["X-Accel-Buffering"] = "no"
    return _answer(request, response_stream)


class EventContent:
    """Content of a stream, until its reader disconnects or loses access."""

    def __init__(self, request: HttpRequest, subscriber: Subscriber) -> None:
        self._request = request
        self._subscriber = subscriber
        self._hub = hub()
        self._loop = asyncio.get_running_loop()
        self._hub.join(subscriber)

    def close(self) -> None:
        """Remove the stream from the hub; called by Django at the end of the response."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hub.leave, self._subscriber)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"retry: 3000\n\n"
        look_at = time.monotonic() + KEEP_ALIVE_S
        while True:
            # The session is checked repeatedly, however many events there are: a logout or a
            # revoked right ends the stream.
            if time.monotonic() >= look_at:
                if await sync_to_async(_identify)(self._request) != self._subscriber.identity:
                    return
                yield b": still here\n\n"
                look_at = time.monotonic() + KEEP_ALIVE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(look_at - time.monotonic()):
                    await self._subscriber.wake.wait()
                yield self._subscriber.take()
                await asyncio.sleep(MIN_GAP_S)


def _identify(request: HttpRequest) -> tuple[int, bool] | None:
    """Read the session again: (user id, whether the user sees all jobs); None without one."""
    try:
        # Not the request's session object: that one is read once and cached.
        request.session = type(request.session)(request.session.session_key)
        person = get_user(request)
        if not person.is_authenticated or person.pk is None:
            return None
        return person.pk, is_admin(person)
    finally:
        # A stream stays open for hours; it must not hold a database connection that long.
        close_old_connections()


def _owners_of(job_ids: list[int]) -> dict[int, int]:
    try:
        return dict(Job.objects.filter(pk__in=job_ids).values_list("pk", "owner_id"))
    finally:
        close_old_connections()


def _is_origin_allowed(request: HttpRequest) -> bool:
    """Return whether the origin may read with credentials: this server's or a trusted one."""
    origin = request.headers.get("Origin")
    if origin is None:
        return True
    parts = urlsplit(origin)
    own = parts.scheme == request.scheme and parts.netloc == request.get_host()
    return own or origin in settings.CSRF_TRUSTED_ORIGINS


def _answer(
    request: HttpRequest, response: HttpResponse | StreamingHttpResponse
) -> HttpResponse | StreamingHttpResponse:
    """Allow exactly the requesting origin to read the response, with its session."""
    if origin := request.headers.get("Origin"):
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Allow-Credentials"] = "true"
        response.headers["Vary"] = "Origin"
    return response
