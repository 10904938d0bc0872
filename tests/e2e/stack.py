"""The whole product as real processes on PostgreSQL and Redis, driven by REST only."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from jobs.demo import parts
from jobs.demo.environment import free_port, free_port_ranges
from jobs.demo.supervisor import Supervisor
from tests.servers import RunningServer, create_database

ROOT = Path(__file__).parent.parent.parent
ADMIN, PASSWORD = "admin", "only-for-this-test-run"
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Stack:
    """A running product.

    Attributes:
        rest: a client that is logged in as admin by token; paths are relative to `/api/v1/`.
        directory: everything that the processes write, one log per process in `logs`.
    """

    rest: httpx.Client
    supervisor: Supervisor
    directory: Path

    def wait_for(self, what: str, condition: Callable[[], Any], deadline_s: float) -> Any:
        """Look again and again until `condition` gives something true, and give that.

        Parts that died are started again meanwhile, as the demo does.

        Raises:
            AssertionError: it took longer than `deadline_s`; names what was waited for.
        """
        ends_at = time.monotonic() + deadline_s
        while not (found := condition()):
            assert time.monotonic() < ends_at, f"waited {deadline_s} s for {what}"
            self.supervisor.run_once(time.monotonic())
            time.sleep(_LOOK_EVERY_S)
        return found

    def get(self, path: str, **parameters: Any) -> Any:
        """Read one thing."""
        response = self.rest.get(path, params=parameters)
        assert response.status_code == httpx.codes.OK, f"{path}: {response.text}"
        return response.json()

    def post(self, path: str, body: Any = None, expect: int = httpx.codes.OK) -> Any:
        """Do one thing."""
        response = self.rest.post(path, json=body)
        assert response.status_code == expect, f"{path}: {response.status_code} {response.text}"
        return response.json() if response.content else None

    def trainer_pids(self) -> list[int]:
        """List every process that runs a trainer of this stack, or was started by one."""
        return [process.pid for process in parts.trainers_below(self.directory)]


@contextmanager
def running_stack(
    directory: Path, postgresql: RunningServer, redis: RunningServer, database: str
) -> Iterator[Stack]:
    """Run web, stream, worker, beat and two agents with two accelerators each; stop them all."""
    environment = _environment(directory, postgresql, redis, database)
    token = _prepare(environment, directory)
    ranges = free_port_ranges(len(parts.NODES), parts.PORTS_PER_NODE)
    server = environment["VIRTUALFLOW_STREAM_URL"]
    agents = [
        parts.agent_part(node, server, ports, directory, _enrolment_token(directory, node))
        for node, ports in zip(parts.NODES, ranges, strict=True)
    ]
    site = parts.site_parts(environment, directory)
    supervisor = Supervisor(
        [*(replace(part, environment=environment) for part in site), *agents],
        directory / "logs",
        announce=print,
    )
    base = f"http://127.0.0.1:{environment['VIRTUALFLOW_DEMO_PORT']}/api/v1/"
    headers = {"Authorization": f"Bearer {token}"}
    try:
        supervisor.start()
        with httpx.Client(base_url=base, headers=headers, timeout=30, trust_env=False) as rest:
            stack = Stack(rest, supervisor, directory)
            stack.wait_for("both nodes", lambda: _num_online(stack) == len(parts.NODES), 60)
            yield stack
    finally:
        supervisor.stop()
        left = parts.end_stray_trainers(directory)
    assert left == 0, f"{left} trainers outlived their agents"


def _environment(
    directory: Path, postgresql: RunningServer, redis: RunningServer, database: str
) -> dict[str, str]:
    web_port = free_port(18000)
    stream_port = free_port(web_port + 1)
    return {
        "DATABASE_URL": create_database(postgresql, database),
        "REDIS_URL": redis.url.replace("db=0", "db=3"),
        "VIRTUALFLOW_DEBUG": "0",
        "VIRTUALFLOW_STATE_DIR": str(directory / "site"),
        "VIRTUALFLOW_SECRET_KEY": "signs-nothing-but-tests",
        "VIRTUALFLOW_HOSTS": "127.0.0.1",
        "VIRTUALFLOW_ORIGINS": f"http://127.0.0.1:{web_port}",
        "VIRTUALFLOW_STREAM_URL": f"http://127.0.0.1:{stream_port}",
        "VIRTUALFLOW_DEMO_PORT": str(web_port),
        "VIRTUALFLOW_DEMO_STREAM_PORT": str(stream_port),
        "ADMIN_PASSWORD": PASSWORD,
    }


def _prepare(environment: dict[str, str], directory: Path) -> str:
    """Set up the database as an operator does; give an API token of the admin."""
    command = [sys.executable, "manage.py", "prepare", "--admin", ADMIN]
    command += ["--token-file", str(directory / "token")]
    command += ["--enrolment-dir", str(directory / "enrolment"), *parts.NODES]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return (directory / "token").read_text().strip()


def _enrolment_token(directory: Path, node: str) -> str:
    return (directory / "enrolment" / node).read_text().strip()


def _num_online(stack: Stack) -> int:
    return sum(node["status"] == "online" for node in stack.get("nodes/")["results"])
