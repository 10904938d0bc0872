"""Heartbeats, reports and long-polls of the agents of many nodes, on the stream server of the site.

Each node has an agent that sends a heartbeat every two seconds and waits for its wanted state, as
the product's agents do; another process on the loopback plays all of them. Once a second something
changes that wakes all that wait. With `--jobs`, as many nodes have a job each, whose steps they
report every half second, or as seldom as the answers ask for. Of a run with some nodes:

- `heartbeats`, `heartbeat_ms`, `heartbeat_p99_ms`: their number and time to the answer, reports
  included;
- `report_every_s`: the longest time between two reports of steps that an answer asked for;
- `processor_percent` of a core, and `threads` and `memory_mb`, of the stream server;
- `refused`: answers other than 200 and 304.

    python -m benchmarks.node_agents [--nodes 100] [--jobs 0] [--seconds 30] \
        [--database URL | postgresql]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import redis

from benchmarks.figures import figures_print
from benchmarks.rest import empty_site, exchange, port_of, process_of
from benchmarks.stream_watchers import process_use
from controlplane.core.protocol.wire import REPORT_EVERY_S

HEARTBEAT_S = 2.0
STEPS_A_SECOND = 10
WAIT_S = 30
#: Heartbeats before do not count: all agents open their connections at once.
_OPENING_S = 10.0
_ANSWER_S = 120.0
_PERCENTILE = 0.99
_CHANNEL = "virtualflow:orders"

#: Prints the token, the boot and the job, if any, of `num_nodes`, of which `num_jobs` have one.
_FILL = """
import json
from django.utils import timezone
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Allocation, Generation
from tests.support.builders import job_make, membership_make, node_make, user_make
now, owner, made = timezone.now(), user_make("owner"), []
for number in range(num_nodes):
    node, token = node_make(f"node-{number}", 4, now=now)
    job = None
    if number < num_jobs:
        job = job_make(
            owner, status=JobStatus.RUNNING, stop_limit=10**6, generation=1, next_slot=1, step=0,
            started_at=now,
        )
        Allocation.objects.create(
            job=job, slot=0, accelerator=node.accelerators.first(), granted_at=now,
            granted_generation=1, joined_at=now,
        )
        Generation.objects.create(
            job=job, number=1, phase="active", membership=membership_make(1, {0: [0, 1, 2, 3]}),
            num_members=1, requested_at=now, switched_at=now, reported_at=now,
        )
    made.append((token, node.boot_id, job and job.pk))
print(json.dumps(made))
"""


#: Token, boot and job of a node; None without a job.
Agent = tuple[str, str, int | None]


@dataclass(frozen=True, slots=True)
class Load:
    """Times of heartbeats and the times between reports asked for, in seconds, and statuses."""

    heartbeats_s: list[float]
    reports_every_s: set[float]
    statuses: dict[int, int]


def main() -> int:
    """Run one load; print its figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--database", default="", help="address of an empty database")
    options = parser.parse_args()
    if options.nodes < 1 or options.seconds <= _OPENING_S + HEARTBEAT_S:
        parser.error(
            f"at least 1 node and more than {_OPENING_S + HEARTBEAT_S:.0f} seconds are needed"
        )
    if not 0 <= options.jobs <= options.nodes:
        parser.error("a node has one job or none")
    figures = _figures(options.nodes, options.jobs, options.seconds, options.database)
    name = options.database.partition(":")[0] or "sqlite"
    sizes = {"nodes": options.nodes, "jobs": options.jobs, "database": name}
    figures_print("node_agents", figures | sizes)
    return 0


def _figures(num_nodes: int, num_jobs: int, seconds: float, database: str) -> dict[str, Any]:
    with ProcessPoolExecutor(1) as load_process, empty_site(database) as site:
        agents = json.loads(site.run(f"num_nodes, num_jobs = {num_nodes}, {num_jobs}{_FILL}"))
        server, broker = process_of(site, "stream"), site.environment["REDIS_URL"]
        began_s = process_use(server).processor_s
        running = load_process.submit(load, port_of(site, "STREAM_"), broker, agents, seconds)
        time.sleep(seconds / 2)
        use = process_use(server)
        found = running.result()
        processor_s = process_use(server).processor_s - began_s
    times_s = sorted(found.heartbeats_s)
    return {
        "heartbeats": len(times_s),
        "heartbeat_ms": round(1e3 * statistics.median(times_s), 1),
        "heartbeat_p99_ms": round(1e3 * times_s[int(_PERCENTILE * (len(times_s) - 1))], 1),
        "report_every_s": max(found.reports_every_s, default=0.0),
        "processor_percent": round(100 * processor_s / seconds),
        "threads": use.num_threads,
        "memory_mb": round(use.memory / 1e6),
        "refused": sum(n for status, n in found.statuses.items() if status not in (200, 304)),
    }


def load(port: int, broker: str, agents: Sequence[Agent], seconds: float) -> Load:
    """Play the agents of all nodes for some time; runs in a process of its own."""
    return asyncio.run(_load(port, broker, agents, seconds))


async def _load(port: int, broker: str, agents: Sequence[Agent], seconds: float) -> Load:
    ends_at = time.perf_counter() + seconds
    found = Load([], set(), Counter())
    client = redis.Redis.from_url(broker, socket_timeout=_ANSWER_S)
    waits = [asyncio.create_task(_wait(port, token, ends_at, found)) for token, *_ in agents]
    beats = [
        asyncio.create_task(_beat(port, agent, place / len(agents), ends_at, found))
        for place, agent in enumerate(agents)
    ]
    while time.perf_counter() < ends_at:
        await asyncio.sleep(1.0)
        client.publish(_CHANNEL, json.dumps({"jobs": []}))
    await asyncio.gather(*beats)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    return found


async def _beat(port: int, agent: Agent, phase: float, ends_at: float, found: Load) -> None:
    """Send heartbeats, the first one after a part of the time between two."""
    token, boot_id, job_id = agent
    every_s, report_every_s, reported_at = HEARTBEAT_S, REPORT_EVERY_S, 0.0
    step = sequence = 0
    body: dict[str, Any] = {
        "boot_id": boot_id, "trainers": [], "reports": [], "logs": [], "validations": [],
    }  # fmt: skip
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    due_at = time.perf_counter() + phase * every_s
    counts_from = time.perf_counter() + _OPENING_S
    while due_at < ends_at:
        await asyncio.sleep(max(due_at - time.perf_counter(), 0.0))
        sent_at = time.perf_counter()
        body["sent_at"] = time.time()
        body["reports"] = []
        if job_id is not None and sent_at - reported_at >= 0.9 * report_every_s:
            num_steps = round(STEPS_A_SECOND * report_every_s)
            body["reports"] = [_steps(job_id, sequence, step, num_steps, body["sent_at"])]
            step, sequence, reported_at = step + num_steps, sequence + 1, sent_at
        answer = await _answer(reader, writer, "POST", "reports/", token, json.dumps(body), found)
        if sent_at >= counts_from:
            found.heartbeats_s.append(time.perf_counter() - sent_at)
        if job_id is not None and answer:
            report_every_s = json.loads(answer)["report_every_s"]
            found.reports_every_s.add(report_every_s)
            every_s = min(report_every_s, HEARTBEAT_S)
        due_at = max(due_at + every_s, time.perf_counter())
    writer.close()


def _steps(job_id: int, sequence: int, step: int, num_steps: int, at: float) -> dict[str, Any]:
    """Return the report of so many steps after `step` of a job on one accelerator."""
    return {
        "job_id": job_id, "slot": 0, "generation": 1, "sequence": sequence, "at": at,
        "kind": "steps",
        "data": {
            "first_step": step + 1, "last_step": step + num_steps, "epoch": 0,
            "examples": 32 * num_steps, "seconds": 0.09 * num_steps, "loss": 0.5, "last_loss": 0.5,
            "num_accelerators": 1, "batch_size": 32, "compute_s": {"0": 0.08},
        },
    }  # fmt: skip


async def _wait(port: int, token: str, ends_at: float, found: Load) -> None:
    """Wait for the wanted state again and again, until cancelled."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    version = ""
    try:
        while time.perf_counter() < ends_at:
            path = f"wanted/?version={version}&wait={WAIT_S}"
            answer = await _answer(reader, writer, "GET", path, token, "", found)
            version = json.loads(answer)["version"] if answer else version
    finally:
        writer.close()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, token: str,
    body: str, found: Load,
) -> bytes:  # fmt: skip
    """Send a request; return the body of its answer, and count its status."""
    request = (
        f"{method} /api/v1/agent/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Agent {token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )
    status, answer = await exchange(reader, writer, request.encode(), _ANSWER_S)
    found.statuses[status] = found.statuses.get(status, 0) + 1
    return answer if status == 200 else b""


if __name__ == "__main__":
    sys.exit(main())
