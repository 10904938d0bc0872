"""Wake-ups over a real Redis."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from typing import Any

import pytest
import redis
from django.db import connections, transaction
from django.utils import timezone

from jobs import nudges
from jobs.models import Job
from jobs.services.submission.job_actions import job_cancel
from jobs.tasks import allocate_cluster
from tests.support.builders import agent_client, job_make, node_make
from tests.support.waiting import DEADLINE_S

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]
#: As long as a request may wait here; an answer that comes before was woken up.
WAIT_S = 20


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note which tasks would be sent."""
    sent: list[str] = []
    monkeypatch.setattr(
        "celery.current_app.send_task", lambda name, **_: sent.append(name), raising=True
    )
    return sent


def test_a_reader_ends_at_whichever_moment_it_is_cancelled(broker: redis.Redis) -> None:
    async def read() -> None:
        # Not for ever, so that one that goes on regardless fails the test and does not hold it up.
        num_read = 0
        async for _ in nudges.messages(nudges.CHANGES, 0.1):
            num_read += 1
            if num_read > 3:
                return

    async def cancel_after(num_turns: int) -> bool:
        reader = asyncio.create_task(read())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait([reader], timeout=DEADLINE_S)
        return reader.cancelled()

    async def never_ended() -> list[int]:
        return [turns for turns in range(40) if not await cancel_after(turns)]

    assert asyncio.run(never_ended()) == []


def test_a_waiter_hears_of_the_change_it_waits_for(broker: redis.Redis, asked: list[str]) -> None:
    with nudges.listening(nudges.CHANGES) as listener:
        nudges.jobs_changed([5])
        assert listener.wait(DEADLINE_S, 5)
        nudges.jobs_changed([6])
        assert not listener.wait(0.05, 5)
    assert asked == []


def test_nothing_is_told_before_the_transaction_is_in(
    broker: redis.Redis, asked: list[str]
) -> None:
    with nudges.listening(nudges.CHANGES) as listener:
        with transaction.atomic():
            nudges.jobs_changed([5], orders=True)
            assert not listener.wait(0.05)
            assert asked == []
        assert listener.wait(DEADLINE_S)
    assert asked == ["jobs.tasks.allocate_cluster"]


def test_a_transaction_that_fails_tells_nothing(broker: redis.Redis, asked: list[str]) -> None:
    with nudges.listening(nudges.ORDERS) as listener:
        with pytest.raises(ZeroDivisionError):
            _change_and_fail()
        assert not listener.wait(0.05)
    assert asked == []


def _change_and_fail() -> None:
    with transaction.atomic():
        nudges.jobs_changed(orders=True)
        raise ZeroDivisionError


def test_many_changes_ask_for_one_cycle_until_it_starts(
    broker: redis.Redis, asked: list[str]
) -> None:
    for number in range(20):
        nudges.jobs_changed([number], orders=True)
    assert len(asked) == 1
    with nudges.cycle_turn() as has_turn:
        assert has_turn
        nudges.jobs_changed([99], orders=True)  # it may have read the state already
    assert len(asked) == 2


def test_one_cycle_runs_at_a_time(broker: redis.Redis) -> None:
    order: list[str] = []
    is_inside = threading.Event()
    may_leave = threading.Event()

    def first() -> None:
        with nudges.cycle_turn():
            is_inside.set()
            may_leave.wait(DEADLINE_S)
            order.append("first")

    def second() -> None:
        with nudges.cycle_turn():
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert is_inside.wait(DEADLINE_S)
    threads[1].start()
    assert order == []
    may_leave.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert order == ["first", "second"]


def test_the_cycle_takes_what_waits(broker: redis.Redis) -> None:
    node_make(now=timezone.now())
    job = job_make()
    assert allocate_cluster() == [job.pk]
    assert Job.objects.get().status == "starting"


def test_an_agents_wait_ends_with_new_orders(broker: redis.Redis) -> None:
    _, token = node_make(now=timezone.now())
    client = agent_client(token)
    url = "/api/v1/agent/wanted/"
    version = client.get(url).json()["version"]
    job_make()

    def decide_when_somebody_waits() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if dict(broker.pubsub_numsub(nudges.ORDERS)).get(nudges.ORDERS.encode()):
                allocate_cluster()
                return
            time.sleep(0.01)

    # The test client runs its requests in this thread; the change comes from another one.
    thread = threading.Thread(target=_closing(decide_when_somebody_waits))
    thread.start()
    started = time.monotonic()
    state = client.get(url, {"version": version, "wait": WAIT_S}).json()
    thread.join(DEADLINE_S)
    assert len(state["trainers"]) == 2
    assert time.monotonic() - started < WAIT_S


def _closing(run: Any) -> Any:
    """Close a thread's database connection behind it."""

    def closed() -> None:
        try:
            run()
        finally:
            connections.close_all()

    return closed


def test_messages_name_the_jobs(broker: redis.Redis, asked: list[str]) -> None:
    pubsub = broker.pubsub()
    pubsub.subscribe(nudges.CHANGES)
    pubsub.get_message(timeout=DEADLINE_S)
    nudges.jobs_changed([3, 1, 3], cluster=True)
    message = pubsub.get_message(timeout=DEADLINE_S)
    assert json.loads(message["data"]) == {"jobs": [1, 3], "cluster": True}
    pubsub.close()


def test_a_client_that_is_dropped_leaves_connections_in_use_alone(broker: redis.Redis) -> None:
    """Two threads may make two clients, of which one is dropped while a pipeline uses its pool."""
    pool = nudges.client().pipeline().connection_pool
    connection = pool.get_connection()

    def number() -> int:
        connection.send_command("CLIENT", "ID")
        return connection.read_response()

    before = number()
    nudges.client.cache_clear()
    gc.collect()
    assert number() == before
    pool.disconnect()


def test_a_redis_that_is_away_stops_nothing(settings: Any) -> None:
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    nudges.client.cache_clear()
    job = job_make()
    job_cancel(job.pk, timezone.now(), actor="user:x")
    nudges.jobs_changed([job.pk], orders=True)
    with nudges.listening(nudges.CHANGES) as listener:
        assert not listener.wait(0.01)
    assert not nudges.redis_answers()
    nudges.client.cache_clear()
