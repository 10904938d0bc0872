"""Wake-ups over Redis: waiting processes are notified of changes at once.

A lost wake-up only delays: every waiter checks again after its own timeout, and the cycle also runs
periodically. So a failure of Redis is logged, never raised.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import redis
import redis.asyncio
from celery import current_app
from django.conf import settings
from django.db import transaction
from kombu.exceptions import OperationalError

#: Channel of visible changes; the message is {"jobs": [ids], "cluster": bool}.
CHANGES = "virtualflow:changes"
#: Channel of possible changes of the agents' desired state.
ORDERS = "virtualflow:orders"
#: Queue of long-running work, separate from the tasks that operate the cluster.
REPLAYS = "replays"
#: Queue of what talks to hosts of users, which may be slow.
NOTIFICATIONS = "notifications"
_CYCLE_ASKED = "virtualflow:cycle-asked"
_CYCLE_LOCK = "virtualflow:cycle-lock"
_FALLBACK_POLL_S = 0.5
_SUBSCRIBE_LIMIT_S = 5.0
#: Upper bound of the clock difference between machines of a control plane.
_CLOCK_SLACK_S = 0.05

logger = logging.getLogger(__name__)


@cache
def client() -> redis.Redis:
    """Return the connections of this process to Redis.

    Two threads at once may make two clients, of which one is dropped while it is in use: a pool of
    its own stays open then.
    """
    pool = redis.ConnectionPool.from_url(
        settings.REDIS_URL, socket_connect_timeout=2, socket_timeout=5, max_connections=256
    )
    return redis.Redis(connection_pool=pool)


def jobs_changed(
    job_ids: Iterable[int] = (),
    *,
    orders: bool = False,
    cluster: bool = False,
    cycle: bool | None = None,
) -> None:
    """Wake all waiters affected by a change, after the transaction commits.

    Args:
        job_ids: jobs with a visible change.
        orders: the agents' desired state may have changed.
        cluster: nodes, accelerators or the policy changed.
        cycle: a cycle may be useful; by default whenever `orders` or `cluster`.
    """
    ids = sorted(set(job_ids))
    if not settings.REDIS_URL or not (ids or orders or cluster):
        return
    message = json.dumps({"jobs": ids, "cluster": cluster or orders})
    transaction.on_commit(lambda: _publish(message, orders=orders))
    if orders or cluster if cycle is None else cycle:
        transaction.on_commit(_cycle_enqueue_now)


def recovery_enqueue(job_ids: Iterable[int]) -> None:
    """Enqueue recovery checks of jobs, due after the grace period of their stalled trainers.

    If one is lost, the next run of `expire_generations` makes up for it.
    """
    for job_id in job_ids if settings.REDIS_URL else ():
        countdown = settings.STALL_GRACE_S + _CLOCK_SLACK_S
        _send("recover_stalled", args=[job_id], countdown=countdown, expires=60)


def replay_enqueue() -> None:
    """Enqueue a start of new replays after commit; if it is lost, the periodic task starts them."""
    if settings.REDIS_URL:
        transaction.on_commit(lambda: _send("answer_replay", queue=REPLAYS, expires=600))


def deliveries_enqueue(count: int) -> None:
    """Enqueue `count` deliveries after commit; if they are lost, the periodic task makes them."""
    if settings.REDIS_URL and count:
        transaction.on_commit(lambda: deliveries_enqueue_now(count))


def deliveries_enqueue_now(count: int) -> None:
    """Enqueue `count` deliveries, each of the message whose turn it is then."""
    for _ in range(count):
        if not _send("deliver_notification", queue=NOTIFICATIONS, expires=60):
            return  # nor would the others be


def _cycle_enqueue_now() -> None:
    """Enqueue a cycle, unless one is queued already, which will include this change."""
    try:
        if client().set(_CYCLE_ASKED, "1", nx=True, px=2000):
            _send("allocate_cluster", expires=60)
    except redis.RedisError as error:
        logger.warning("the cycle waits for its beat: %s", error)


def _send(task: str, **options: Any) -> bool:
    """Enqueue a task; return False if that fails, and it waits for a periodic one."""
    try:
        current_app.send_task(f"jobs.tasks.{task}", retry=False, **options)
    except (redis.RedisError, OperationalError) as error:
        logger.warning("%s waits for its beat: %s", task, error)
        return False
    return True


def _publish(message: str, *, orders: bool) -> None:
    try:
        with client().pipeline(transaction=False) as pipeline:
            pipeline.publish(CHANGES, message)
            if orders:
                pipeline.publish(ORDERS, "1")
            pipeline.execute()
    except redis.RedisError as error:
        logger.warning("nobody was woken up: %s", error)


def redis_answers() -> bool:
    """Return whether Redis responds; true in a debug run without Redis."""
    if not settings.REDIS_URL:
        return True
    try:
        return bool(client().ping())
    except redis.RedisError:
        return False


def queue_lengths() -> dict[str, int]:
    """Return how many tasks wait in each queue of Celery.

    Raises:
        RedisError: Redis does not respond.
    """
    if not settings.REDIS_URL:
        return {}
    return {queue: client().llen(queue) for queue in ("celery", REPLAYS, NOTIFICATIONS)}


@contextmanager
def cycle_turn() -> Iterator[bool]:
    """Hold the lock for running a cycle; yield False if another process kept it too long.

    The lock only avoids wasted work; correctness follows from compare-and-set of the plans.
    """
    if not settings.REDIS_URL:
        yield True
        return
    lock = client().lock(_CYCLE_LOCK, timeout=30, blocking_timeout=10, sleep=0.02)
    has_turn = lock.acquire()
    try:
        # From here on a new nudge enqueues another cycle: this one may have read the state already.
        client().delete(_CYCLE_ASKED)
        yield has_turn
    finally:
        if has_turn and lock.owned():
            lock.release()


class Listener:
    """Waits for the next wake-up on a channel, for a limited time."""

    def __init__(self, pubsub: redis.client.PubSub | None) -> None:
        self._pubsub = pubsub

    def wait(self, timeout_s: float, job_id: int | None = None) -> bool:
        """Return True at a wake-up (about `job_id`, if given), False when the time is over."""
        if self._pubsub is None:
            time.sleep(min(timeout_s, _FALLBACK_POLL_S))
            return timeout_s > _FALLBACK_POLL_S
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                message = self._pubsub.get_message(
                    ignore_subscribe_messages=True, timeout=min(left_s, 4)
                )
            except redis.RedisError:
                time.sleep(min(left_s, _FALLBACK_POLL_S))
                return True
            if message is not None and (
                job_id is None or job_id in json.loads(message["data"])["jobs"]
            ):
                return True
        return False


@contextmanager
def listening(channel: str) -> Iterator[Listener]:
    """Subscribe to a channel; read the state only inside, so that no change is missed."""
    if not settings.REDIS_URL:
        yield Listener(None)
        return
    with client().pubsub() as pubsub:
        try:
            pubsub.subscribe(channel)
            pubsub.get_message(timeout=1)  # the confirmation: from here on no message is missed
        except redis.RedisError as error:
            logger.warning("waiting without wake-ups: %s", error)
            yield Listener(None)
            return
        yield Listener(pubsub)


async def messages(channel: str, timeout_s: float) -> AsyncIterator[Any]:
    """Yield each message of a channel; None once subscribed, and after `timeout_s` without one."""
    # No `socket_timeout`: the client enforces it with `asyncio.wait_for`, which in Python 3.11
    # loses a cancellation at the moment the awaited call completes. The reader would never end.
    client = redis.asyncio.Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=2, socket_timeout=None
    )
    try:
        async with client.pubsub() as pubsub:
            async with asyncio.timeout(_SUBSCRIBE_LIMIT_S):
                await pubsub.subscribe(channel)
                await pubsub.get_message(timeout=_SUBSCRIBE_LIMIT_S)  # the confirmation
            yield None
            while True:
                message = await pubsub.get_message(
                    ignore_subscribe_messages=True, timeout=timeout_s
                )
                yield None if message is None else json.loads(message["data"])
    finally:
        await client.aclose()


class SharedTasks:
    """Endless tasks of an event loop that serve all requests which wait on it."""

    def __init__(self, *works: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._works = works
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def are_running(self) -> bool:
        """True if all of them run."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    def start(self) -> None:
        """Start them anew, each in a context of its own: that of a request ends with it."""
        self.stop()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(work(), context=contextvars.Context()) for work in self._works
        ]

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []
