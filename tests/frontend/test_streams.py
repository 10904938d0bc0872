"""The event stream, over a real Redis: who is told what, and when a stream ends."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.conf import settings as settings_of
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import AsyncClient
from pytest_django import DjangoAssertNumQueries, Settings

from controlplane.asgi import stream_handler
from frontend.live import streams
from frontend.live.identities import Credential, Identity, identities_of
from frontend.live.streams import Hub, Subscriber
from jobs import counters, nudges
from jobs.models import ApiToken, Project
from jobs.services.cluster.api_tokens import JOB_SCOPES, SCOPES
from tests.frontend.stream_reader import Reader
from tests.frontend.world import World, make_job, make_person, make_world
from tests.support.builders import api_token_make, at, logged_in
from tests.support.servers import RunningServer
from tests.support.waiting import DEADLINE_S

# Streams read the database in threads of their own, so what tests write has to be committed.
pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]

ANYBODY = Credential("session", "")


@pytest.fixture
def world(db: None, settings: Settings, tmp_path: Path) -> World:
    """Make a world that other threads see."""
    settings.MEDIA_ROOT = str(tmp_path)
    return make_world()


@pytest.fixture
def broker(redis_server: RunningServer, settings: Settings) -> Iterator[redis.Redis]:
    settings.REDIS_URL = redis_server.url
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


async def _open_with(token: str) -> tuple[Any, Reader | None]:
    return await _open(None, Authorization=f"Bearer {token}")


async def _open(person: object | None, **headers: str) -> tuple[Any, Reader | None]:
    client = AsyncClient()
    if person is not None:
        await client.aforce_login(person)  # type: ignore[arg-type]
    response = await client.get("/stream/", headers=headers)
    if response.status_code != 200:
        return response, None
    reader = Reader(response)
    assert await reader.block() == "retry: 3000\n\n"
    return response, reader


async def _publish(broker: redis.Redis, jobs: list[int], *, cluster: bool = False) -> None:
    """Say that jobs changed, as soon as somebody listens."""
    message = json.dumps({"jobs": jobs, "cluster": cluster})
    for _ in range(200):
        if broker.publish(nudges.CHANGES, message):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("nobody has subscribed")


def test_readers_are_told_of_their_own_jobs_alone(world: World, broker: redis.Redis) -> None:
    own, other = world.jobs["running"].pk, world.jobs["urgent"].pk

    async def scenario() -> None:
        _, ada = await _open(world.ada)
        _, ben = await _open(world.ben)
        _, admin = await _open(world.admin)
        assert ada
        assert ben
        assert admin
        await _publish(broker, [own])
        assert await ada.event() == {"jobs": [own], "cluster": False}
        told = await admin.event()
        assert own in told["jobs"]  # type: ignore[operator]
        await _publish(broker, [other], cluster=True)  # read first: waiting changes are joined
        assert await ada.event() == {"jobs": [], "cluster": True}
        assert await ben.event() == {"jobs": [other], "cluster": True}
        for reader in (ada, ben, admin):
            await reader.close()
        assert not streams.hub().subscribers

    async_to_sync(scenario)()


def test_programs_are_told_as_their_tokens_allow(world: World, broker: redis.Redis) -> None:
    own, other = world.jobs["running"].pk, world.jobs["urgent"].pk
    # The admin is a member of the project of Ada's job.
    tokens = [
        api_token_make(world.ada),
        api_token_make(world.admin, JOB_SCOPES),
        api_token_make(world.admin, SCOPES),
    ]

    async def scenario() -> None:
        readers = [(await _open_with(token))[1] for token in tokens]
        await _publish(broker, [own, other], cluster=True)
        for reader, jobs in zip(readers, ([own], [own], sorted([own, other])), strict=True):
            assert reader
            assert await reader.event() == {"jobs": jobs, "cluster": True}
            await reader.close()

    async_to_sync(scenario)()


@pytest.mark.parametrize("how", ["revoked", "expired", "of nobody active", "without jobs:read"])
def test_a_token_that_is_good_no_longer_gets_and_keeps_no_stream(
    world: World, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.05)
    text = api_token_make(world.ada)
    (token,) = ApiToken.objects.filter(user=world.ada)

    async def scenario() -> None:
        _, reader = await _open_with(text)
        assert reader
        assert await reader.block() == ": still here\n\n"
        if how == "revoked":
            token.revoked_at = at(0)
        elif how == "expired":
            token.expires_at = at(0)
        elif how == "without jobs:read":
            token.scopes = ["jobs:write"]
        else:
            await User.objects.filter(pk=world.ada.pk).aupdate(is_active=False)
        await token.asave()
        assert await reader.is_over()
        refused, _ = await _open_with(text)
        assert refused.status_code == 401

    async_to_sync(scenario)()


def test_metrics_learn_how_many_pages_are_open(
    world: World, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.2)
    monkeypatch.setattr(streams, "TELL_S", 0.2)

    def number() -> float:
        nudges.client.cache_clear()
        return counters.shares_sum("watchers")

    async def scenario() -> None:
        _, ada = await _open(world.ada)
        _, ben = await _open(world.ben)
        await _publish(broker, [], cluster=True)
        async with asyncio.timeout(DEADLINE_S):
            while await sync_to_async(number)() != 2:
                await asyncio.sleep(0.2)
        for reader in (ada, ben):
            assert reader
            await reader.close()

    async_to_sync(scenario)()
    nudges.client.cache_clear()


def test_a_change_of_a_service_reaches_the_page(world: World, broker: redis.Redis) -> None:
    job = world.jobs["running"]

    def change() -> None:
        nudges.client.cache_clear()
        nudges.jobs_changed([job.pk])

    async def scenario() -> None:
        _, ada = await _open(world.ada)
        assert ada
        await _publish(broker, [], cluster=True)
        assert await ada.event() == {"jobs": [], "cluster": True}
        await sync_to_async(change)()
        assert await ada.event() == {"jobs": [job.pk], "cluster": False}
        await ada.close()

    async_to_sync(scenario)()
    nudges.client.cache_clear()


def test_strangers_get_no_stream(world: World, broker: redis.Redis) -> None:
    async def scenario() -> None:
        response, _ = await _open(None)
        assert response.status_code == 401
        posted = await AsyncClient(enforce_csrf_checks=True).post("/stream/")
        assert (posted.status_code, posted.headers["Allow"]) == (405, "GET")
        assert posted.json()["code"] == "method_not_allowed"

    async_to_sync(scenario)()


def test_without_redis_there_is_no_stream(world: World, settings: Settings) -> None:
    settings.REDIS_URL = ""

    async def scenario() -> None:
        response, _ = await _open(world.ada)
        assert response.status_code == 404

    async_to_sync(scenario)()


def test_a_wsgi_server_gives_no_stream(world: World, broker: redis.Redis) -> None:
    client = logged_in(world.ada)
    response = client.get("/stream/")
    assert response.status_code == 404
    assert not response.streaming


def test_only_origins_of_the_settings_may_read_with_credentials(
    world: World, broker: redis.Redis, settings: Settings
) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["http://127.0.0.1:8000"]

    async def scenario() -> None:
        foreign, _ = await _open(world.ada, origin="http://127.0.0.1:8001")
        assert foreign.status_code == 403
        assert "Access-Control-Allow-Origin" not in foreign.headers
        for origin in ("http://127.0.0.1:8000", "http://testserver"):
            response, reader = await _open(world.ada, origin=origin)
            assert reader
            headers = response.headers
            assert headers["Access-Control-Allow-Origin"] == origin
            assert headers["Access-Control-Allow-Credentials"] == "true"
            assert headers["Vary"].startswith("Origin")
            assert headers["Content-Type"] == "text/event-stream"
            assert headers["Cache-Control"] == "no-store"
            await reader.close()

    async_to_sync(scenario)()


@pytest.mark.parametrize("how", ["logged out", "no admin any more", "not active any more"])
def test_losing_the_right_to_read_ends_the_stream(
    how: str, world: World, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.05)

    async def scenario() -> None:
        client = AsyncClient()
        await client.aforce_login(world.admin)
        response = await client.get("/stream/")
        reader = Reader(response)
        assert await reader.block() == "retry: 3000\n\n"
        assert await reader.block() == "event: alive\ndata: {}\n\n"
        if how == "logged out":
            await client.alogout()
        elif how == "no admin any more":
            world.admin.is_staff = False
            await world.admin.asave()
        else:
            world.admin.is_active = False
            await world.admin.asave()
        assert await reader.is_over()
        assert not streams.hub().subscribers

    async_to_sync(scenario)()


def test_busy_streams_are_looked_at_too(
    world: World, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.2)
    monkeypatch.setattr(streams, "MIN_GAP_S", 0.001)

    async def scenario() -> None:
        client = AsyncClient()
        await client.aforce_login(world.ada)
        response = await client.get("/stream/")
        reader = Reader(response)
        assert await reader.block() == "retry: 3000\n\n"
        await client.alogout()
        (subscriber,) = streams.hub().subscribers
        with pytest.raises(StopAsyncIteration):  # noqa: PT012 - it ends somewhere in the loop
            for _ in range(100_000):
                subscriber.add([1], is_cluster_changed=False)
                await reader.block()

    async_to_sync(scenario)()


def test_streams_are_limited_for_each_person(
    world: World, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS_PER_PERSON", 2)

    async def scenario() -> None:
        readers = [(await _open(world.ada))[1] for _ in range(2)]
        refused, _ = await _open(world.ada)
        assert refused.status_code == 429
        assert refused.headers["Retry-After"] == "30"
        assert json.loads(refused.content)["code"] == "too_many_streams"
        _, ben = await _open(world.ben)
        assert ben
        await readers[0].close()  # type: ignore[union-attr]
        _, again = await _open(world.ada)
        assert again
        for reader in (readers[1], ben, again):
            await reader.close()  # type: ignore[union-attr]

    async_to_sync(scenario)()


def test_a_lost_redis_is_found_again_and_everybody_looks(
    world: World, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "RECONNECT_S", 0.05)

    async def scenario() -> None:
        _, ada = await _open(world.ada)
        assert ada
        await _publish(broker, [], cluster=True)
        await ada.event()
        broker.client_kill_filter(_type="pubsub")
        assert await ada.event() == {"jobs": [], "cluster": True}
        own = world.jobs["running"].pk
        await _publish(broker, [own])
        assert await ada.event() == {"jobs": [own], "cluster": False}
        await ada.close()

    async_to_sync(scenario)()


def test_changes_add_up_for_a_slow_reader() -> None:
    async def scenario() -> None:
        reader = Subscriber(Identity(1), ANYBODY)
        reader.add([], is_cluster_changed=False)
        assert not reader.wake.is_set()
        reader.add([7], is_cluster_changed=False)
        reader.add([5, 7], is_cluster_changed=True)
        assert reader.wake.is_set()
        assert reader.take() == (b'event: changed\ndata: {"jobs": [5, 7], "cluster": true}\n\n')
        assert not reader.wake.is_set()
        reader.add(range(101), is_cluster_changed=False)
        assert reader.take() == b'event: changed\ndata: {"jobs": [], "cluster": true}\n\n'

    asyncio.run(scenario())


def test_sessions_are_checked_in_three_queries_however_many(
    world: World, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    def session_of(person: User) -> Credential:
        client = logged_in(person)
        return Credential("session", str(client.session.session_key))

    project = Project.objects.get()
    people = [world.ada, world.ben, world.admin, *(make_person(f"p{n}") for n in range(5))]
    keys = {person: session_of(person) for person in people}
    with django_assert_num_queries(3):
        found = identities_of([*keys.values(), Credential("session", "no such one")])
    assert len(found) == len(people)
    assert found[keys[world.ada]] == Identity(world.ada.pk, False, frozenset({project.pk}))
    assert found[keys[world.ben]] == Identity(world.ben.pk)
    assert found[keys[world.admin]].sees_all
    ben, *others = people[1:4:2] + people[4:]
    ben.set_password("another one")
    ben.save()
    Session.objects.filter(session_key=keys[others[0]].key).update(expire_date=at(0))
    User.objects.filter(pk=others[1].pk).update(is_active=False)
    left = identities_of(keys.values())
    assert {*found} - {*left} == {keys[person] for person in (ben, *others[:2])}


def test_open_streams_keep_no_threads(world: World, broker: redis.Redis) -> None:
    client = logged_in(world.ada, headers={"host": "testserver"})
    cookie = f"{settings_of.SESSION_COOKIE_NAME}={client.session.session_key}"
    headers = [(b"host", b"testserver"), (b"cookie", cookie.encode())]

    async def scenario() -> None:
        opened = []
        numbers = []
        for _ in range(12):
            scope = {
                "type": "http", "method": "GET", "path": "/stream/", "query_string": b"",
                "headers": headers, "client": ("127.0.0.1", 1), "server": ("testserver", 80),
            }  # fmt: skip
            one = ApplicationCommunicator(stream_handler, scope)
            await one.send_input({"type": "http.request", "body": b""})
            assert (await one.receive_output(DEADLINE_S))["status"] == 200
            assert (await one.receive_output(DEADLINE_S))["body"] == b"retry: 3000\n\n"
            opened.append(one)
            numbers.append(threading.active_count())
        assert len(streams.hub().subscribers) == 12
        # A pool that reads for all of them may begin a thread; one each would be eleven.
        assert numbers[-1] - numbers[0] <= 2
        for one in opened:
            await one.send_input({"type": "http.disconnect"})
            await one.wait(DEADLINE_S)

    async_to_sync(scenario)()


def test_a_process_has_a_limit_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS", 2)
    own = Hub()
    own.subscribers = {Subscriber(Identity(1), ANYBODY), Subscriber(Identity(2), ANYBODY)}
    assert not own.has_room_for(3)


def test_a_job_of_nobody_known_is_told_to_nobody(world: World, broker: redis.Redis) -> None:
    carl = make_person("carl")
    job = make_job(carl, "carl's")

    async def scenario() -> None:
        _, ada = await _open(world.ada)
        assert ada
        await _publish(broker, [job.pk, 10**6])
        await _publish(broker, [], cluster=True)
        assert await ada.event() == {"jobs": [], "cluster": True}
        await ada.close()

    async_to_sync(scenario)()
