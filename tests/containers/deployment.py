"""docker-compose.yml on the engine of DOCKER_HOST, driven by REST and by `docker-compose`."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from jobs.demo.stack.ports import free_port
from tests.e2e.submitted import Submitted
from tests.support.stack import Stack

ROOT = Path(__file__).parent.parent.parent
NODES = ("node-a", "node-b")
SERVICES = ("postgres", "redis", "web", "stream", "worker", "replayer", "notifier", "beat", "proxy",
            "gateway", *NODES)  # fmt: skip
HEALTHY_DEADLINE_S = 240.0
_COMMAND_S = 900.0


class EngineRestarts:
    """Stands where a `Stack` has its supervisor: the engine restarts containers itself."""

    def run_once(self, _now: float) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Deployment(Stack):
    """A running project of docker-compose.

    Attributes:
        overrides: further compose files.
    """

    project: str
    variables: dict[str, str]
    overrides: list[Path] = field(default_factory=list)

    def compose(self, *arguments: str, stdin: Path | None = None) -> bytes:
        """Run `docker-compose`; return its standard output.

        Raises:
            AssertionError: it failed; the message has its standard error.
        """
        files = [part for path in (ROOT / "docker-compose.yml", *self.overrides)
                 for part in ("--file", str(path))]  # fmt: skip
        return run(
            ["docker-compose", "--project-name", self.project, *files, *arguments],
            variables=self.variables, stdin=stdin,
        )  # fmt: skip

    def up(self, *services: str) -> None:
        """Start services, all by default, and wait until they are healthy."""
        self.compose("up", "--detach", "--no-build", *services)
        for service in services or SERVICES:
            self.wait_until_healthy(service)

    def state(self, service: str) -> dict[str, Any]:
        """Return the engine's account of a service's container."""
        shown = run(["docker", "inspect", f"{self.project}_{service}_1"])
        return dict(json.loads(shown)[0]["State"])

    def wait_until_healthy(self, service: str, *, not_pid: int = 0) -> None:
        def is_healthy() -> bool:
            state = self.state(service)
            return state["Health"]["Status"] == "healthy" and state["Pid"] not in (0, not_pid)

        self.wait_for(f"{service} to be healthy", is_healthy, HEALTHY_DEADLINE_S, look_every_s=1)

    def _circumstances(self) -> str:
        """Describe the containers as well."""
        states = ((service, self.state(service)) for service in SERVICES)
        lines = [
            f"{service}: {state['Status']}, process {state['Pid']}, since {state['StartedAt']}, "
            f"{state['Health']['Status']}, {state['Health']['Log'][-1:]}"
            for service, state in states
        ]
        return "\n".join([Stack._circumstances(self), *lines])

    def kill(self, service: str) -> None:
        """Kill a service's container from outside, and wait until the engine has restarted it."""
        pid = self.state(service)["Pid"]
        os.kill(pid, signal.SIGKILL)
        self.wait_until_healthy(service, not_pid=pid)

    def wait_until_nodes_are_online(self) -> None:
        def are_online() -> bool:
            try:
                rows = self.get("nodes/")["results"]
            except (AssertionError, httpx.TransportError):
                return False
            return [row["status"] for row in rows] == ["online"] * len(NODES)

        self.wait_for("both nodes", are_online, HEALTHY_DEADLINE_S)


class ContainerJob(Submitted):
    """The paced job of the end-to-end tests; its go file lies in the containers of the nodes."""

    def __init__(self, deployment: Deployment, name: str, **fields: Any) -> None:
        self.deployment = deployment
        settings = {"go_file": f"/tmp/go-{name}", "pause_s": 1.0}
        super().__init__(deployment, name, **{"settings": settings, **fields})

    def go(self) -> None:
        for node in NODES:
            self.deployment.compose("exec", "-T", node, "touch", f"/tmp/go-{self.name}")

    def wait_for_steps(self, num_steps: int, deadline_s: float) -> None:
        """Wait until the job has trained for so many further steps, also from a kept state on."""
        first = self.state()["step"]

        def are_done() -> bool:
            nonlocal first
            try:
                step = self.state()["step"]
                first = min(first, step)
                return bool(step >= first + num_steps)
            except (AssertionError, httpx.TransportError):
                return False  # the site is being restarted

        self.deployment.wait_for(f"{num_steps} more steps", are_done, deadline_s)


def run(
    command: Sequence[str], *, variables: dict[str, str] | None = None, stdin: Path | None = None
) -> bytes:
    """Run a program; return its standard output.

    Raises:
        AssertionError: it failed; the message has its standard error.
    """
    with (stdin or Path(os.devnull)).open("rb") as source:
        done = subprocess.run(
            command, stdin=source, capture_output=True, timeout=_COMMAND_S, check=False,
            env=os.environ | (variables or {}), cwd=ROOT,
        )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stderr.decode(errors='replace')[-3000:]}"
    return done.stdout


@contextmanager
def deployment(
    directory: Path, project: str, network: str, **secrets_: str
) -> Iterator[Deployment]:
    """Prepare an empty project, without starting anything; at the end remove all of it."""
    port = free_port(18000)
    variables = {
        name: secrets.token_urlsafe(48)
        for name in ("VIRTUALFLOW_SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD",
                     "ADMIN_PASSWORD")
    } | {
        "VIRTUALFLOW_HOSTS": "127.0.0.1",
        "VIRTUALFLOW_PORT": str(port),
        "TRAINING_NETWORK": network,
        "NODE_MEMORY": "4g",
    }  # fmt: skip
    base = f"http://127.0.0.1:{port}/api/v1/"
    with httpx.Client(base_url=base, timeout=30, trust_env=False) as rest:
        restarts: Any = EngineRestarts()
        made = Deployment(rest, restarts, directory, {}, project, variables)
        made.compose("down", "--volumes", "--timeout", "5")
        try:
            yield made
        finally:
            made.compose("down", "--volumes", "--timeout", "5")
