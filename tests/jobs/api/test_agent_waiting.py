"""Long-polls of agents on the ASGI server, over a real Redis: when they end, and what they hold."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.conf import settings as settings_of
from django.db import OperationalError, connection
from django.utils import timezone

from controlplane.asgi import handler
from jobs import nudges
from jobs.api.agent import waiting
from jobs.models import Node
from jobs.tasks import allocate_cluster
from tests.support.builders import job_make, node_make
from tests.support.waiting import DEADLINE_S

# The handler reads the database in threads of its own, so what tests write has to be committed.
pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]

LONG_S = 30


@pytest.fixture(autouse=True)
def _connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads of the handler keep no connection that outlives the test."""
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 0)


@pytest.fixture
def agents() -> list[tuple[Node, str]]:
    """Enrol three nodes."""
    return [node_make(now=timezone.now()) for _ in range(3)]


class Poll:
    """A request of an agent for its wanted state."""

    def __init__(self, token: str, query: str) -> None:
        self._communicator = ApplicationCommunicator(handler, {
            "type": "http", "method": "GET", "path": waiting.WANTED_PATH,
            "query_string": query.encode(), "client": ("127.0.0.1", 1),
            "headers": [(b"host", b"testserver"), (b"authorization", f"Agent {token}".encode())],
            "server": ("testserver", 80),
        })  # fmt: skip

    async def sent(self) -> Poll:
        await self._communicator.send_input({"type": "http.request", "body": b""})
        return self

    async def answer(self) -> tuple[int, Any]:
        """Wait for the status and the content."""
        start = await self._communicator.receive_output(DEADLINE_S)
        body = (await self._communicator.receive_output(DEADLINE_S))["body"]
        await self._communicator.wait(DEADLINE_S)
        return start["status"], json.loads(body) if body else None

    async def leave(self) -> None:
        await self._communicator.send_input({"type": "http.disconnect"})
        await self._communicator.wait(DEADLINE_S)


async def version_of(token: str) -> str:
    status, state = await (await Poll(token, "version=").sent()).answer()
    assert status == 200
    return str(state["version"])


async def waiting_poll(token: str, wait_s: float = LONG_S) -> Poll:
    """Send a poll with the version that is known, and wait until it waits."""
    query = f"version={await version_of(token)}&wait={wait_s}"
    before = num_waiting()
    poll = await Poll(token, query).sent()
    await until(lambda: num_waiting() > before)
    return poll


def waits() -> Any:
    return waiting._polls.get(asyncio.get_running_loop())


def num_waiting() -> int:
    found = waits()
    return len(found._waiting) if found else 0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def done(work: Callable[[], Any]) -> Any:
    return await sync_to_async(work, thread_sensitive=True)()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario; in the end nobody waits, and nothing runs on."""

    async def checked() -> None:
        await scenario()
        await until(lambda: num_waiting() == 0)
        assert waits() is None or not waits()._tasks.are_running

    async_to_sync(checked)()


def test_new_orders_end_the_wait_of_their_node_alone(
    broker: redis.Redis, agents: list[tuple[Node, str]]
) -> None:
    async def scenario() -> None:
        polls = [await waiting_poll(token) for _, token in agents]
        began_at = time.monotonic()
        await done(lambda: job_make(max_accelerators=2))
        await done(allocate_cluster)
        answers = [asyncio.create_task(poll.answer()) for poll in polls]
        ended, others = await asyncio.wait(
            answers, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED
        )
        (first,) = ended
        status, state = first.result()
        assert (status, len(state["trainers"])) == (200, 2)
        assert time.monotonic() - began_at < LONG_S
        assert len(others) == num_waiting() == 2
        for poll, answer in zip(polls, answers, strict=True):
            if answer is not first:
                answer.cancel()
                await poll.leave()

    run(scenario)


def test_many_wait_with_neither_threads_nor_connections(
    broker: redis.Redis, agents: list[tuple[Node, str]]
) -> None:
    more = [node_make(now=timezone.now()) for _ in range(8)]

    def num_subscriptions() -> int:
        return dict(broker.pubsub_numsub(nudges.ORDERS))[nudges.ORDERS.encode()]

    async def scenario() -> None:
        known = await version_of(more[0][1])
        polls = [await waiting_poll(agents[0][1])]
        threads = threading.active_count()
        polls += [await waiting_poll(token) for _, token in more for _ in range(waiting.NODE_LIMIT)]
        # A thread of the pool may begin for an answer; one for each would be 32.
        assert threading.active_count() - threads <= settings_of.UPLOADS_LIMIT
        assert num_subscriptions() == 1
        status, _ = await (await Poll(more[0][1], f"version={known}&wait={LONG_S}").sent()).answer()
        assert (status, num_waiting()) == (304, 33)  # its node has as many as may wait
        for poll in polls:
            await poll.leave()

    run(scenario)


def test_a_wait_ends_with_its_time(broker: redis.Redis, agents: list[tuple[Node, str]]) -> None:
    async def scenario() -> None:
        began_at = time.monotonic()
        poll = await waiting_poll(agents[0][1], 0.2)
        broker.publish(nudges.ORDERS, "1")  # nothing has changed
        assert await poll.answer() == (304, None)
        assert time.monotonic() - began_at >= 0.2

    run(scenario)


def test_an_agent_learns_at_once_that_its_node_is_removed(
    broker: redis.Redis, agents: list[tuple[Node, str]]
) -> None:
    node, token = agents[0]

    async def scenario() -> None:
        poll = await waiting_poll(token)
        await done(lambda: Node.objects.filter(pk=node.pk).update(removed_at=timezone.now()))
        broker.publish(nudges.ORDERS, "1")
        status, problem = await poll.answer()
        assert (status, problem["code"]) == (410, "node_removed")

    run(scenario)


@pytest.mark.parametrize(("token", "query", "status"), [
    (None, "version=a&wait=5", 200), (None, "version=&wait=nan", 200),
    (None, "version=&wait=soon", 400), ("wrong", "version=&wait=5", 401), ("", "wait=5", 401),
])  # fmt: skip
def test_what_need_not_wait_is_answered_at_once(
    broker: redis.Redis, agents: list[tuple[Node, str]], token: str | None, query: str, status: int
) -> None:
    async def scenario() -> None:
        sent = agents[0][1] if token is None else token
        found, _ = await (await Poll(sent, query).sent()).answer()
        assert found == status

    run(scenario)


def test_who_cannot_be_told_of_changes_looks_for_them(
    broker: redis.Redis, agents: list[tuple[Node, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis is away: no agent waits for longer than until the next try to reach it."""
    tries: list[int] = []

    async def lost(*_: Any) -> AsyncIterator[None]:
        tries.append(1)
        raise redis.ConnectionError("connection refused")
        yield

    monkeypatch.setattr(nudges, "messages", lost)
    monkeypatch.setattr(waiting, "RECONNECT_S", 0.05)

    async def scenario() -> None:
        poll = await waiting_poll(agents[0][1])
        began_at = time.monotonic()
        await until(lambda: len(tries) > 1)
        await done(lambda: [job_make(max_accelerators=2) for _ in agents])
        await done(allocate_cluster)
        status, state = await poll.answer()
        assert (status, len(state["trainers"])) == (200, 2)
        assert time.monotonic() - began_at < LONG_S

    run(scenario)


def test_a_database_that_is_away_ends_the_wait(
    broker: redis.Redis, agents: list[tuple[Node, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise OperationalError("connection refused")

    async def scenario() -> None:
        poll = await waiting_poll(agents[0][1])
        with monkeypatch.context() as patched:
            patched.setattr(waiting, "orders_by_node", away)
            patched.setattr("jobs.api.agent.views.wanted_orders", away)
            broker.publish(nudges.ORDERS, "1")
            status, _ = await poll.answer()
        assert status == 503
        again = await waiting_poll(agents[0][1])
        await again.leave()

    run(scenario)


@pytest.fixture(autouse=True)
def _no_waits_are_left() -> Iterator[None]:
    yield
    assert not [found for found in waiting._polls.values() if found._waiting]
