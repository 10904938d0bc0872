"""Long-polls of agents on an ASGI server: one that waits holds neither a thread nor a connection.

One subscription to Redis per event loop, and one look at the database after each change of orders,
serve all of them.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus

from asgiref.sync import sync_to_async
from django.db import Error as DatabaseProblem
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponseBase
from redis.exceptions import RedisError

from jobs import nudges
from jobs.api.agent.views import node_of, wait_s
from jobs.exceptions import ControlPlaneError
from jobs.models import Node
from jobs.selectors.desired_state.state import orders_by_node

WANTED_PATH = "/api/v1/agent/wanted/"
#: Most long-polls of a node that wait; an agent has one, and one more after its connection broke.
NODE_LIMIT = 4
RECONNECT_S = 2.0
#: An agent waits this long for the subscription; without it, orders that come first may be missed.
SUBSCRIBED_S = 5.0
_KEEP_ALIVE_S = 15.0

logger = logging.getLogger(__name__)

Answer = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@dataclass(eq=False, slots=True)
class LongPoll:
    """A long-poll that waits for another version of its node's wanted state."""

    node_id: int
    version: str
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class LongPolls:
    """The long-polls that wait on an event loop, and the tasks that wake them."""

    def __init__(self) -> None:
        self._waiting: set[LongPoll] = set()
        self._tasks = nudges.SharedTasks(self._feed, self._check)
        self._is_subscribed = asyncio.Event()
        self._is_due = asyncio.Event()

    def has_room_for(self, node_id: int) -> bool:
        """Return whether one more long-poll of a node may wait."""
        return sum(poll.node_id == node_id for poll in self._waiting) < NODE_LIMIT

    @asynccontextmanager
    async def joined(self, poll: LongPoll) -> AsyncIterator[None]:
        """Join for a time, in which no change of orders is missed; the last one ends the tasks."""
        self._waiting.add(poll)
        if not self._tasks.are_running:
            self._is_subscribed.clear()
            self._tasks.start()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(SUBSCRIBED_S):
                    await self._is_subscribed.wait()
            yield
        finally:
            self._waiting.discard(poll)
            if not self._waiting:
                self._tasks.stop()

    async def _feed(self) -> None:
        """Note each change of orders; reconnect to Redis indefinitely."""
        while True:
            try:
                async for change in nudges.messages(nudges.ORDERS, _KEEP_ALIVE_S):
                    self._is_subscribed.set()
                    if change is not None:
                        self._is_due.set()
            except (RedisError, OSError, ValueError) as error:  # the last one without an address
                logger.warning("agents wait without wake-ups: %s", error)
            self._is_subscribed.set()
            self._is_due.set()  # for changes that were missed
            await asyncio.sleep(RECONNECT_S)

    async def _check(self) -> None:
        """Wake the long-polls whose orders have changed; changes during a look are looked at once.

        All are woken where that cannot be told: each answer then says why.
        """
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            waiting = list(self._waiting)
            look = sync_to_async(_changed, thread_sensitive=False)
            try:
                changed = await look({(poll.node_id, poll.version) for poll in waiting})
            except Exception:
                logger.exception("the orders of agents that wait cannot be read")
                changed = {(poll.node_id, poll.version) for poll in waiting}
            for poll in waiting:
                if (poll.node_id, poll.version) in changed:
                    poll.wake.set()


def _changed(known: Collection[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return those pairs of a node and a version that are not its newest, or of a removed node."""
    close_old_connections()
    try:
        ids = {node_id for node_id, _ in known}
        there = Node.objects.filter(pk__in=ids, removed_at=None).values_list("pk", flat=True)
        orders = orders_by_node(set(there))
    finally:
        close_old_connections()
    unchanged = {
        (node_id, state.version) for node_id, (state, left_out) in orders.items() if not left_out
    }
    return set(known) - unchanged


_polls: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LongPolls] = (
    weakref.WeakKeyDictionary()
)


async def answer_once_changed(answer: Answer, request: HttpRequest) -> HttpResponseBase:
    """Answer a request for the wanted state once that differs from the version that it names.

    Or after the time that it may wait, or once the agent may not ask any more.
    """
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    try:
        node_id = await sync_to_async(_waiting_node, thread_sensitive=False)(request)
    except (ControlPlaneError, DatabaseProblem):
        node_id = None  # the answer says so
    polls = _polls.setdefault(loop, LongPolls())
    if node_id is None or not polls.has_room_for(node_id):
        return await answer(request)
    ends_at = began_at + wait_s(request)
    poll = LongPoll(node_id, request.GET.get("version", ""))
    async with polls.joined(poll):
        response = await answer(request)
        while response.status_code == HTTPStatus.NOT_MODIFIED and loop.time() < ends_at:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(ends_at):
                    await poll.wake.wait()
            poll.wake.clear()
            response = await answer(request)
    return response


def _waiting_node(request: HttpRequest) -> int | None:
    """Return the node of an agent that is willing to wait.

    Raises:
        ControlPlaneError: it may not ask.
    """
    if not wait_s(request):
        return None
    close_old_connections()
    try:
        return node_of(request).pk
    finally:
        close_old_connections()
