"""Polls of a job's status per second, beside a plain Django REST framework view of the same job.

A web server of the site answers keep-alive connections of another process on the loopback, with
token authentication. The arms take turns of some seconds, and a ratio is the median over rounds of
two arms of the same round:

- `unchanged`: `If-None-Match` with the known version, the way to poll; the response is 304;
- `fields`: `?fields=` of four columns; `whole`: all fields; `list`: the first page of jobs;
- `plain`: `RetrieveAPIView` with a `ModelSerializer` of the job's columns in the same server, with
  the same authentication and middleware, without throttle and visibility.

`flatness` compares `unchanged` with `--many` jobs and with 100 jobs in the database.

Then `--watchers` event streams are opened on the stream server, while jobs change:

- `stream_watchers`, `streams_refused`: open at once, and refused;
- `stream_kb`, `stream_threads`: memory of the server for each, and its threads, with all open;
- `stream_idle_percent`: processor time of the server while nothing changes;
- `stream_all_told_s`: from a change of the cluster until every stream has been told, the median.

    python -m benchmarks.rest [--rounds 5] [--seconds 3] [--many 100000] [--watchers 1000]
        [--database URL | postgresql]

The database is SQLite, or that of `--database`, an empty one that the benchmark fills; with
`postgresql` it starts a server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.figures import figures_print
from benchmarks.stream_watchers import FILL, PER_USER, process_use, watchers_figures
from tests.browser.page_site import Site, running_site
from tests.support import servers

CONNECTIONS = 16
FEW_JOBS = 100
#: Requests of a connection without an answer for so long end the benchmark.
ANSWER_S = 30.0
_PERCENTILE = 0.99
_BATCH = 2_000

_MIGRATE = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
"""
_FILL = """
from django.contrib.auth.models import User
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import ApiToken, Job
from jobs.services.cluster.tokens import token_digest, token_make
from tests.support.builders import at, job_make
user, is_new = User.objects.get_or_create(username="poller")
first = Job.objects.order_by("id").first() or job_make(user, status=JobStatus.RUNNING)
missing = num_jobs - Job.objects.count()
columns = {f.name: getattr(first, f.name) for f in Job._meta.concrete_fields if f.name != "id"}
columns |= {"status": "finished", "ended_at": at(0)}
for begin in range(0, missing, batch):
    Job.objects.bulk_create(Job(**columns) for _ in range(min(batch, missing - begin)))
text = token_make("vfp")
ApiToken.objects.create(user=user, name="poll", digest=token_digest(text), scopes=["jobs:read"])
print(first.pk, text)
"""


@dataclass(frozen=True, slots=True)
class Arm:
    """A request that is repeated; `version` asks for it with the version that is known."""

    name: str
    path: str
    version: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """Answers of one turn of an arm."""

    per_s: float
    p99_ms: float


def main() -> int:
    """Run all arms with few jobs, one of them with many; print the table and the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each arm")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a turn")
    parser.add_argument("--many", type=int, default=100_000, help="jobs of the large database")
    parser.add_argument("--watchers", type=int, default=1_000, help="open streams; 0: none")
    parser.add_argument("--only-watchers", action="store_true", help="leave out the polls")
    parser.add_argument("--database", default="", help="address of an empty database")
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0 or options.many < FEW_JOBS:
        parser.error(f"at least 1 round, more than 0 seconds and {FEW_JOBS} jobs are needed")
    figures = _figures(options)
    name = options.database.partition(":")[0] or "sqlite"
    figures_print("rest", {**figures, "database": name})
    return 0


def _figures(options: argparse.Namespace) -> dict[str, Any]:
    """Measure on a database; print the table of the arms, and return the figures."""
    with ProcessPoolExecutor(1) as load_process, empty_site(options.database) as site:
        job_id, token = fill(site, FEW_JOBS)
        streams: dict[str, Any] = {}
        if options.watchers:
            sessions = watchers_add(site, options.watchers)
            server, port = process_of(site, "stream"), port_of(site, "STREAM_")
            broker = site.environment["REDIS_URL"]
            streams = watchers_figures(server, port, broker, sessions, load_process)
        if options.only_watchers:
            return streams
        bench = Bench(port_of(site), token, load_process, options.seconds)
        arms = arms_of(job_id)
        rounds = [{arm.name: bench.turn(arm) for arm in arms} for _ in range(options.rounds)]
        fill(site, options.many)
        many = [bench.turn(arms[0]) for _ in range(options.rounds)]
        memory_mb = process_use(process_of(site, "web")).memory / 1e6
    for arm in arms:
        loads = [turns[arm.name] for turns in rounds]
        print(f"{arm.name:10} {typical(loads):7.0f} a second, 99 % in {slowest(loads):5.1f} ms")
    few = [turns["unchanged"] for turns in rounds]
    over = {
        arm.name: statistics.median(
            turns[arm.name].per_s / turns["plain"].per_s for turns in rounds
        )
        for arm in arms
    }
    return {
        "over_plain_drf": round(over["unchanged"], 3),
        "fields_over_plain_drf": round(over["fields"], 3),
        "whole_over_plain_drf": round(over["whole"], 3),
        "polls_per_s": round(typical(few)),
        "p99_ms": round(slowest(few), 1),
        "memory_mb": round(memory_mb),
        "flatness": round(typical(many) / typical(few), 3),
        **streams,
    }


def arms_of(job_id: int) -> tuple[Arm, ...]:
    """Return the arms for a job, the recommended way to poll first."""
    job = f"/api/v1/jobs/{job_id}/"
    return (
        Arm("unchanged", job, version=True),
        Arm("fields", f"{job}?fields=status,step,loss,policy_reason"),
        Arm("whole", job),
        Arm("list", "/api/v1/jobs/"),
        Arm("plain", f"/plain/{job_id}/"),
    )


def typical(loads: list[Load]) -> float:
    """Return the median of the answers a second."""
    return statistics.median(load.per_s for load in loads)


def slowest(loads: list[Load]) -> float:
    """Return the median of the 99th percentiles, in milliseconds."""
    return statistics.median(load.p99_ms for load in loads)


@contextmanager
def empty_site(database: str) -> Iterator[Site]:
    """Run the servers of the site, with the plain view, on an empty database.

    Args:
        database: its address; `postgresql`: that of a server of its own; empty: SQLite.
    """
    settings = {
        "DJANGO_SETTINGS_MODULE": "benchmarks.plain_drf.settings",
        "VIRTUALFLOW_API_RATE": "100000000/min",
    }
    with ExitStack() as stack:
        if database == "postgresql":
            database = stack.enter_context(servers.postgresql_running())
        if database:
            settings["DATABASE_URL"] = database
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        yield stack.enter_context(running_site(Path(folder), seed=_MIGRATE, **settings))


def fill(site: Site, num_jobs: int) -> tuple[int, str]:
    """Bring the number of jobs up to `num_jobs`; return the polled job and a token."""
    job_id, token = site.run(f"num_jobs, batch = {num_jobs}, {_BATCH}{_FILL}").split()
    return int(job_id), token


def watchers_add(site: Site, num_streams: int) -> tuple[str, list[tuple[str, int]]]:
    """Add users for so many streams; return the cookie's name, their sessions and jobs."""
    name, users = json.loads(site.run(f"num_users = {-(-num_streams // PER_USER)}{FILL}"))
    return name, [(session, job_id) for session, job_id in users]


def process_of(site: Site, name: str) -> psutil.Process:
    """Return the first process of a server, `web` or `stream`."""
    return psutil.Process(site.supervisor.pids()[name])


def port_of(site: Site, name: str = "") -> int:
    """Return the port of the web server, or of the stream server."""
    return int(site.environment[f"VIRTUALFLOW_DEMO_{name}PORT"])


class Bench:
    """Turns of load on a web server."""

    def __init__(
        self, port: int, token: str, load_process: ProcessPoolExecutor, seconds: float
    ) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {token}"}
        self._load_process = load_process
        self._seconds = seconds

    def turn(self, arm: Arm) -> Load:
        """Repeat an arm's request over all connections for one turn."""
        headers, status = self._headers, 200
        if arm.version:
            address = f"http://127.0.0.1:{self._port}{arm.path}"
            answer = httpx.get(address, headers=headers, timeout=ANSWER_S, trust_env=False)
            headers, status = {**headers, "If-None-Match": answer.headers["ETag"]}, 304
        text = request_text(arm.path, headers)
        return self._load_process.submit(load, self._port, text, status, self._seconds).result(
            timeout=self._seconds + 2 * ANSWER_S
        )


def request_text(path: str, headers: dict[str, str]) -> bytes:
    """Return the bytes of a GET request on a connection that stays open."""
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1"]
    return "\r\n".join([*lines, *(f"{k}: {v}" for k, v in headers.items()), "", ""]).encode()


def load(port: int, request: bytes, status: int, seconds: float) -> Load:
    """Send a request again and again over all connections; runs in a process of its own.

    Raises:
        RuntimeError: an answer has another status.
    """
    return asyncio.run(_load(port, request, status, seconds))


async def _load(port: int, request: bytes, status: int, seconds: float) -> Load:
    began_at = time.perf_counter()
    ends_at = began_at + seconds
    found = await asyncio.gather(
        *(_connection(port, request, status, ends_at) for _ in range(CONNECTIONS))
    )
    spent_s = time.perf_counter() - began_at
    latencies = sorted(latency for some in found for latency in some)
    p99_s = latencies[int(_PERCENTILE * (len(latencies) - 1))]
    return Load(len(latencies) / spent_s, p99_s * 1e3)


async def _connection(port: int, request: bytes, status: int, ends_at: float) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    latencies = []
    try:
        while (sent_at := time.perf_counter()) < ends_at:
            found, _ = await exchange(reader, writer, request)
            if found != status:
                raise RuntimeError(f"{request!r}: {found}")
            latencies.append(time.perf_counter() - sent_at)
    finally:
        writer.close()
    return latencies


async def exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    request: bytes,
    answer_s: float = ANSWER_S,
) -> tuple[int, bytes]:
    """Send a request on a connection that stays open; return the status and body of its answer."""
    writer.write(request)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), answer_s)
    first, *lines = head.decode("latin-1").lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if ": " in line)
    length = int(headers.get("content-length", 0))
    body = await asyncio.wait_for(reader.readexactly(length), answer_s) if length else b""
    return int(first.split(" ")[1]), body


if __name__ == "__main__":
    sys.exit(main())
