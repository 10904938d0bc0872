"""The whole product as processes of this machine, driven by REST: for benchmarks and tests.

Like the demo, but on free ports and in a folder of its own; the caller chooses database and broker.
This module does not import Django.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from jobs.demo.environment import BASE_DIR, socket_path
from jobs.demo.stack import processes
from jobs.demo.stack.ports import free_port, reserved_ports
from jobs.demo.stack.supervisor import PRIVATE_UMASK, SitePart, Supervisor

ADMIN = "admin"
_LOOK_EVERY_S = 0.25
_REQUEST_TIMEOUT_S = 30.0
_PREPARE_DEADLINE_S = 120.0
_NODES_DEADLINE_S = 60.0
#: Jobs and events in the message of a wait that timed out.
_SHOWN_JOBS, _READ_EVENTS, _SHOWN_EVENTS = 5, 200, 30
_HIDDEN_KIND = "checkpointed"


@dataclass(frozen=True, slots=True)
class Stack:
    """A running product.

    Attributes:
        rest: a client authenticated as admin by token; paths are relative to `/api/v1/`.
        directory: all files written by the processes, one log per process in `logs`.
        environment: variables of the site's processes, besides those of this one.
    """

    rest: httpx.Client
    supervisor: Supervisor
    directory: Path
    environment: Mapping[str, str]

    def wait_for(
        self,
        what: str,
        condition: Callable[[], Any],
        deadline_s: float,
        *,
        revives: bool = True,
        look_every_s: float = _LOOK_EVERY_S,
    ) -> Any:
        """Poll until `condition` returns a true value, and return that value.

        Args:
            revives: restart exited parts meanwhile, as the demo does.

        Raises:
            AssertionError: the wait exceeded `deadline_s`; the message names `what`, the state of
                the nodes, and the events of the newest jobs.
        """
        ends_at = time.monotonic() + deadline_s
        while not (found := condition()):
            if time.monotonic() >= ends_at:
                raise AssertionError(f"waited {deadline_s} s for {what}\n{self._circumstances()}")
            if revives:
                self.supervisor.run_once(time.monotonic())
            time.sleep(look_every_s)
        return found

    def get(self, path: str, **parameters: Any) -> Any:
        """Read a resource.

        Raises:
            AssertionError: the status is not 200.
        """
        response = self.rest.get(path, params=parameters)
        if response.status_code != httpx.codes.OK:
            raise AssertionError(f"{path}: {response.text}")
        return response.json()

    def post(self, path: str, body: Any = None, expect: int = httpx.codes.OK) -> Any:
        """Send a POST request.

        Raises:
            AssertionError: the status is not `expect`.
        """
        response = self.rest.post(path, json=body)
        if response.status_code != expect:
            raise AssertionError(f"{path}: {response.status_code} {response.text}")
        return response.json() if response.content else None

    def _circumstances(self) -> str:
        """Describe the nodes, and the newest events of the newest jobs, newest first."""
        lines = [f"now {datetime.now(UTC)}"]
        try:
            nodes = self.get("nodes/")["results"]
            lines += [f"{row['name']} {row['status']} {row['quarantine_reason']}" for row in nodes]
            for job in self.get("jobs/", page_size=_SHOWN_JOBS)["results"]:
                lines.append(f"job {job['id']} {job['name']}: {job['status']}")
                read = self.get(f"jobs/{job['id']}/events/", page_size=_READ_EVENTS)["results"]
                shown = [row for row in read if row["kind"] != _HIDDEN_KIND][:_SHOWN_EVENTS]
                lines += [f"  {row['at']} {row['kind']}: {row['message']}" for row in shown]
        except (AssertionError, httpx.TransportError) as error:  # some tests stop the site
            lines.append(f"nothing more is known: {error}")
        return "\n".join(lines)

    def trainer_pids(self) -> list[int]:
        """List every process that runs a trainer of this stack, or was started by one."""
        started = processes.processes_below(self.directory)
        return [one.pid for one, run_dir in started if run_dir.parent.name != "fork_servers"]

    def pids_on(self, node: str) -> list[int]:
        """List the processes of one node: the agent's first, then all that it started."""
        started = processes.processes_below(self.directory / node)
        return [self.supervisor.pids()[node], *(process.pid for process, _ in started)]

    def running_trainers(self) -> set[int]:
        """Return the process ids of the running trainers of all jobs."""
        paths = self.directory.glob("node-*/trainers/*.agent/process.json")
        return {pid for path in paths if (pid := _running_pid(path)) is not None}

    def trainers_of(self, job_id: int) -> dict[int, int]:
        """Return slot -> process id of a job's running trainers."""
        found: dict[int, int] = {}
        for path in self.directory.glob(f"node-*/trainers/{job_id}-*.agent/process.json"):
            if (pid := _running_pid(path)) is not None:
                found[int(path.parent.stem.partition("-")[2])] = pid
        return found

    def node_of(self, job_id: int, slot: int) -> str:
        """Return the node whose folder contains the trainer's folder."""
        (path,) = self.directory.glob(f"node-*/trainers/{job_id}-{slot}")
        return path.parent.parent.name


def _running_pid(path: Path) -> int | None:
    try:
        pid = int(json.loads(path.read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return None  # being written, or gone
    return pid if Path(f"/proc/{pid}").exists() else None


@contextmanager
def running_stack(
    directory: Path,
    environment: Mapping[str, str],
    *,
    broker: Sequence[SitePart] = (),
    options_for: Callable[[str], Sequence[str]] = lambda _node: (),
    address_for: Callable[[str, str], str] = lambda _node, server: server,
    with_replayer: bool = False,
) -> Iterator[Stack]:
    """Run web, stream, worker, beat and two agents with two accelerators each; stop them all.

    Args:
        environment: see `stack_environment`.
        broker: parts that run before the site, and stop after it.
        options_for: returns further options of a node's agent, from the node's name.
        address_for: returns the address at which a node reaches the site, from the node's name and
            the site's own address.
        with_replayer: run a worker for what-if replays and files of predictions; without it the
            other worker does both.

    Raises:
        AssertionError: a trainer outlived its agent.
    """
    token = _prepare(environment, directory)
    with reserved_ports(len(processes.NODES), processes.PORTS_PER_NODE) as ranges:
        server = environment["VIRTUALFLOW_STREAM_URL"]
        agents = [
            processes.agent_part(
                node, address_for(node, server), ports, directory, _enrolment_token(directory, node)
            )
            for node, ports in zip(processes.NODES, ranges, strict=True)
        ]
        agents = [
            replace(part, command=[*part.command, *options_for(part.name)]) for part in agents
        ]
        site = processes.site_parts(environment, directory)
        if not with_replayer:
            all_queues = ["--queues", "celery,replays"]
            site = [
                replace(part, command=[*part.command, *all_queues])
                if part.name == "worker"
                else part
                for part in site
                if part.name != "replayer"
            ]
        supervisor = Supervisor(
            [*broker, *(replace(part, environment=environment) for part in site), *agents],
            directory / "logs",
            announce=print,
        )
        base = f"http://127.0.0.1:{environment['VIRTUALFLOW_DEMO_PORT']}/api/v1/"
        headers = {"Authorization": f"Bearer {token}"}
        try:
            supervisor.start()
            with httpx.Client(
                base_url=base, headers=headers, timeout=_REQUEST_TIMEOUT_S, trust_env=False
            ) as rest:
                stack = Stack(rest, supervisor, directory, environment)
                stack.wait_for(
                    "both nodes", lambda: _num_online(stack) == len(agents), _NODES_DEADLINE_S
                )
                yield stack
        finally:
            supervisor.stop()
            left = processes.end_stray_trainers(directory)
        if left:
            raise AssertionError(f"{left} trainers outlived their agents")


def stack_environment(
    directory: Path, database_url: str, redis_url: str, **other: str
) -> dict[str, str]:
    """Return the environment variables of all processes of a stack, on free ports.

    With shares by weight alone (the default policy here) the caller can predict allocations;
    `other` may set another policy.
    """
    # Two stacks starting at once must not choose the same ports: their servers would share them.
    web_port = free_port(18000 + os.getpid() % 500 * 2)
    stream_port = free_port(web_port + 1)
    return {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "VIRTUALFLOW_DEBUG": "0",
        "VIRTUALFLOW_POLICY": "weighted_fair",
        "VIRTUALFLOW_STATE_DIR": str(directory / "site"),
        "VIRTUALFLOW_SECRET_KEY": secrets.token_urlsafe(48),
        "ADMIN_PASSWORD": "only-for-local-runs",
        "VIRTUALFLOW_HOSTS": "127.0.0.1",
        "VIRTUALFLOW_ORIGINS": f"http://127.0.0.1:{web_port}",
        "VIRTUALFLOW_STREAM_URL": f"http://127.0.0.1:{stream_port}",
        "VIRTUALFLOW_DEMO_PORT": str(web_port),
        "VIRTUALFLOW_DEMO_STREAM_PORT": str(stream_port),
        **other,
    }


@contextmanager
def embedded_stack(
    directory: Path,
    *,
    options_for: Callable[[str], Sequence[str]] = lambda _node: (),
    address_for: Callable[[str, str], str] = lambda _node, server: server,
    with_replayer: bool = False,
    **variables: str,
) -> Iterator[Stack]:
    """Run a stack without installed servers, on SQLite and the embedded broker, like the demo.

    `options_for`, `address_for` and `with_replayer` are those of `running_stack`.
    """
    address = socket_path(directory)
    environment = stack_environment(
        directory,
        f"sqlite:///{directory / 'controlplane.sqlite3'}",
        f"unix://{address}?db=0",
        **variables,
    )
    broker = processes.broker_part(address, directory)
    with running_stack(
        directory,
        environment,
        broker=[broker],
        options_for=options_for,
        address_for=address_for,
        with_replayer=with_replayer,
    ) as stack:
        yield stack


def _prepare(environment: Mapping[str, str], directory: Path) -> str:
    """Set up the database as an operator does; return an API token of the admin."""
    command = [sys.executable, "manage.py", "prepare", "--admin", ADMIN]
    command += ["--token-file", str(directory / "token")]
    command += ["--enrolment-dir", str(directory / "enrolment"), *processes.NODES]
    done = subprocess.run(
        command,
        cwd=BASE_DIR,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=_PREPARE_DEADLINE_S,
        umask=PRIVATE_UMASK,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return (directory / "token").read_text().strip()


def _enrolment_token(directory: Path, node: str) -> str:
    return (directory / "enrolment" / node / "token").read_text().strip()


def _num_online(stack: Stack) -> int:
    return sum(node["status"] == "online" for node in stack.get("nodes/")["results"])
