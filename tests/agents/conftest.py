"""Agents that are driven round by round, and proof that nothing of them is left."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agents.loop import Agent
from agents.settings import AgentSettings
from agents.state_directory import StateDirectory
from agents.supervision.devices import accelerators_found
from agents.supervision.processes import subreaper_set
from controlplane.core.protocol.wire import ReportKind, TrainerOrders, TrainerReport, decode
from tests.agents.builders import agent_settings
from tests.agents.control_plane import ControlPlane
from tests.support.waiting import DEADLINE_S
from tests.support.waiting import wait_until as wait_until

# Hundreds of heartbeats would bury what a failed test has to say.
logging.getLogger("httpx").setLevel(logging.WARNING)


def trainers_below(directory: Path) -> list[psutil.Process]:
    """Find living processes that belong to a run directory below `directory`."""
    return [process for process, _ in run_dirs_below(directory)]


def run_dirs_below(directory: Path) -> list[tuple[psutil.Process, Path]]:
    """Find living processes with their run directories, where these are below `directory`.

    The run directory is read here: a process that ends later has no environment any more.
    """
    found = []
    for process in psutil.process_iter():
        try:
            run_dir = process.environ().get("VIRTUALFLOW_RUN_DIR", "")
            if run_dir.startswith(str(directory)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process, Path(run_dir)))
        except (psutil.Error, OSError):
            continue
    return found


def orders_of(state_dir: Path, name: str = "1-0") -> TrainerOrders:
    """Read the orders that an agent wrote for a trainer."""
    text = (state_dir / "trainers" / name / "orders.json").read_text()
    return decode(TrainerOrders, json.loads(text))


def deletions_wait() -> None:
    """Wait for the threads that delete large folders."""
    for thread in threading.enumerate():
        if thread.name == "deletion":
            thread.join(DEADLINE_S)


class DrivenAgent:
    """An agent in this process whose rounds the test calls."""

    def __init__(self, settings: AgentSettings, plane: ControlPlane) -> None:
        self.plane = plane
        self.state = StateDirectory(settings.state_dir)
        self.agent = Agent(settings, self.state, accelerators_found(settings), "127.0.0.1")

    def until(self, condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
        """Run rounds until `condition` holds."""
        deadline = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            self.agent.run_once(time.monotonic())
            self.agent.wake.wait(0.01)
            self.agent.wake.clear()

    def told(self, job_id: int, slot: int, kind: ReportKind) -> TrainerReport:
        """Run rounds until the control plane has this report of a trainer, and give it."""
        self.until(lambda: self.plane.report(job_id, slot, kind))
        return self.plane.told(job_id, slot, kind)

    def until_nothing_runs(self) -> None:
        """Run rounds until every process that the agent owns is gone."""
        self.until(lambda: not self.agent.running)

    def vanish(self) -> None:
        """Stop as if killed: nothing is told, nothing is ended, the lock goes."""
        self.agent.close(keep_trainers=True)
        self.state.close()


Drive = Callable[..., DrivenAgent]


class AgentProcess:
    """A real agent process, for signals and for kill -9."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "tests.agents.agent_process", *arguments]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self, deadline_s: float = DEADLINE_S) -> tuple[int, str]:
        """Wait for its end; gives exit status and standard error."""
        _, errors = self.process.communicate(timeout=deadline_s)
        return self.process.returncode, errors

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


Spawn = Callable[..., AgentProcess]


@pytest.fixture(autouse=True, scope="session")
def _parent_of_forked_trainers() -> None:
    """Make this process what an agent's is; agents driven in it collect the exit statuses."""
    subreaper_set()


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    control_plane = ControlPlane()
    yield control_plane
    control_plane.close()


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """Give a state directory; what still runs for it afterwards is ended and fails the test."""
    path = tmp_path / "state"
    yield path
    left = trainers_below(path)
    for process in left:
        process.kill()
    deletions_wait()
    # `shutil.rmtree`, which pytest deletes with, fails over folders of a thousand levels.
    subprocess.run(["rm", "-rf", path], check=True)
    assert not left, f"processes are left: {left}"


@pytest.fixture
def drive(plane: ControlPlane, state_dir: Path) -> Iterator[Callable[..., DrivenAgent]]:
    """Make agents for `state_dir`; at the end they end what they own, as on SIGTERM."""
    made: list[DrivenAgent] = []

    def make(**changes: Any) -> DrivenAgent:
        changes = {"state_dir": state_dir} | changes
        driven = DrivenAgent(agent_settings(plane.address, **changes), plane)
        made.append(driven)
        return driven

    yield make
    for driven in made:
        driven.agent.end(time.monotonic())
        driven.until_nothing_runs()
        driven.vanish()


@pytest.fixture
def spawn(plane: ControlPlane, state_dir: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Start agent processes for `state_dir`; at the end those that live are killed."""
    made: list[AgentProcess] = []

    def make(*arguments: str, **environment: str) -> AgentProcess:
        basic = ["--server", plane.address, "--node", "node-a", "--state-dir", str(state_dir)]
        basic += ["--emulate", "2", "--grace-s", "0.5", "--no-fork-servers"]
        agent = AgentProcess([*basic, *arguments], environment)
        made.append(agent)
        return agent

    yield make
    for agent in made:
        if agent.process.poll() is None:
            agent.process.kill()
        agent.process.wait(5)
        if agent.process.stderr:
            agent.process.stderr.close()
