"""Many open event streams on the stream server of the site, while jobs change.

Each user has as many streams as one user may have, and one running job, of which each stream of
that user is told. All jobs change in turn during a run; each change of the cluster has to reach
every stream, and the next one follows when all have it.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import time
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import psutil
import redis

#: Open streams that one user may have; see `frontend.live.streams`.
PER_USER = 20
#: Changes of jobs a second, of all users together.
_CHANGES_PER_S = 20
_ROUNDS = 10
_IDLE_S = 30.0
_OPENINGS_AT_ONCE = 50
_ANSWER_S = 60.0
#: All streams are open after so long, and all told of the changes.
_OPENED_S = 600
_CHANNEL = "virtualflow:changes"

#: Prints the sessions and jobs of `num_users` users of whom each may open `PER_USER` streams.
FILL = """
import json
from django.contrib.auth.models import User
from django.test import Client
from controlplane.core.values.lifecycle import JobStatus
from django.conf import settings
from tests.support.builders import job_make
found = []
for number in range(num_users):
    user = User.objects.create(username=f"watcher{number}")
    client = Client()
    client.force_login(user)
    session = client.cookies[settings.SESSION_COOKIE_NAME].value
    found.append([session, job_make(user, status=JobStatus.RUNNING).pk])
print(json.dumps([settings.SESSION_COOKIE_NAME, found]))
"""


@dataclass(frozen=True, slots=True)
class Streams:
    """Result of a load: streams opened and refused, and how long each change took to reach all.

    Attributes:
        own_only: whether each stream was told of its own user's job, and of no other.
    """

    num_open: int
    num_refused: int
    all_told_s: list[float]
    own_only: bool


def watchers_figures(
    server: psutil.Process,
    port: int,
    broker: str,
    sessions: tuple[str, list[tuple[str, int]]],
    load_process: Executor,
) -> dict[str, Any]:
    """Open the streams of all sessions; return the figures.

    Args:
        server: the stream server's first process.
        broker: address of Redis.
        sessions: name of the cookie, and session and job of each user.
    """
    before = process_use(server)
    load = load_process.submit(streams_load, port, broker, *sessions)
    # Between the openings and the changes there is a time without any.
    client = _redis(broker)
    while client.blpop(["benchmark:open"], timeout=1) is None:
        if load.done():
            load.result()
    began = process_use(server)
    time.sleep(_IDLE_S)
    idle = process_use(server)
    client.rpush("benchmark:go", "1")
    found = load.result(timeout=_OPENED_S)
    assert found.own_only, "a stream was told of another user's job, or not of its own"
    return {
        "stream_watchers": found.num_open,
        "streams_refused": found.num_refused,
        "stream_kb": round((began.memory - before.memory) / max(found.num_open, 1) / 1e3, 1),
        "stream_threads": began.num_threads,
        "stream_idle_percent": round(100 * (idle.processor_s - began.processor_s) / _IDLE_S, 1),
        "stream_all_told_s": round(statistics.median(found.all_told_s), 2),
    }


@dataclass(frozen=True, slots=True)
class Use:
    """Use of processes: bytes of memory of their own alone, threads, seconds of processor time."""

    memory: float
    num_threads: int
    processor_s: float


def process_use(root: psutil.Process) -> Use:
    """Return what a process and all that it started use."""
    processes = [root, *root.children(recursive=True)]
    times = [process.cpu_times() for process in processes]
    return Use(
        sum(float(process.memory_full_info().uss) for process in processes),
        sum(process.num_threads() for process in processes),
        sum(one.user + one.system for one in times),
    )


def streams_load(port: int, broker: str, cookie: str, users: list[tuple[str, int]]) -> Streams:
    """Open and read streams; runs in a process of its own."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return asyncio.run(_streams_load(port, broker, cookie, users))


class _Stream:
    """One open stream, and what it was told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer  # closed with the last reference
        self.job_ids: set[int] = set()
        self.cluster = asyncio.Event()

    async def read(self) -> None:
        while line := await self._reader.readline():
            if line.startswith(b"data: "):
                data = json.loads(line[6:])
                self.job_ids.update(data.get("jobs", ()))  # a sign of life has none
                if data.get("cluster"):
                    self.cluster.set()


async def _open(port: int, cookie: str, session: str, gate: asyncio.Semaphore) -> _Stream | None:
    async with gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = f"GET /stream/ HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}={session}\r\n\r\n"
        writer.write(request.encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _ANSWER_S)
        if not head.startswith(b"HTTP/1.1 200 "):
            writer.close()
            return None
        await asyncio.wait_for(reader.readuntil(b"retry: 3000\n\n"), _ANSWER_S)
        return _Stream(reader, writer)


async def _streams_load(
    port: int, broker: str, cookie: str, users: list[tuple[str, int]]
) -> Streams:
    gate = asyncio.Semaphore(_OPENINGS_AT_ONCE)
    wanted = [user for user in users for _ in range(PER_USER)]
    found = await asyncio.gather(*(_open(port, cookie, session, gate) for session, _ in wanted))
    opened = [(stream, job) for stream, (_, job) in zip(found, wanted, strict=True) if stream]
    readers = [asyncio.create_task(stream.read()) for stream, _ in opened]
    redis_client = _redis(broker)
    redis_client.rpush("benchmark:open", len(opened))
    await asyncio.to_thread(redis_client.blpop, ["benchmark:go"], timeout=_OPENED_S)
    streams = [stream for stream, _ in opened]
    told, _ = await asyncio.gather(
        _all_told(redis_client, streams, _ROUNDS),
        _change_jobs(redis_client, [job for _, job in users]),
    )
    # Events keep their order, so this change of the cluster comes after all that were published.
    told += await _all_told(redis_client, streams, 1)
    for reader in readers:
        reader.cancel()
    own_only = all(stream.job_ids == {job} for stream, job in opened)
    return Streams(len(opened), len(wanted) - len(opened), told, own_only)


def _redis(address: str) -> redis.Redis:
    return redis.Redis.from_url(address, socket_timeout=2 * _OPENED_S)


async def _change_jobs(client: redis.Redis, job_ids: list[int]) -> None:
    for job_id in job_ids:
        client.publish(_CHANNEL, json.dumps({"jobs": [job_id], "cluster": False}))
        await asyncio.sleep(1 / _CHANGES_PER_S)


async def _all_told(client: redis.Redis, streams: list[_Stream], rounds: int) -> list[float]:
    """Change the cluster some times; return the seconds until every stream was told of each."""
    spent_s = []
    for _ in range(rounds):
        for stream in streams:
            stream.cluster.clear()
        began_at = time.perf_counter()
        client.publish(_CHANNEL, json.dumps({"jobs": [], "cluster": True}))
        for stream in streams:
            await asyncio.wait_for(stream.cluster.wait(), _ANSWER_S)
        spent_s.append(time.perf_counter() - began_at)
    return spent_s
