"""Sequence of a demo run: prepare, start the parts, submit jobs, stop in order."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import httpx

from jobs.demo.demo_jobs import Arrivals, jobs_pause, jobs_resume
from jobs.demo.environment import kept_secret, socket_path
from jobs.demo.stack import processes
from jobs.demo.stack.ports import reserved_ports
from jobs.demo.stack.supervisor import SitePart, Supervisor
from jobs.services.cluster.bootstrap import ensure_admin, ensure_enrolment_token, ensure_token_file

ADMIN = "admin"
_LOOK_EVERY_S = 0.5
_REQUEST_TIMEOUT_S = 20.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Announce = Callable[[str], None]


class AlreadyRunningError(Exception):
    """Another demo uses the same directory."""


def demo_run(directory: Path, environment: Mapping[str, str], announce: Announce) -> None:
    """Run the demo until a stop signal; no process is left running afterwards.

    Raises:
        AlreadyRunningError: another demo runs in `directory`.
        PartFailedError: a part did not start; the parts started before are stopped again.
    """
    trainer_ports = reserved_ports(len(processes.NODES), processes.PORTS_PER_NODE)
    with _alone(directory), trainer_ports as ranges, _stop_signals() as stop:
        password = kept_secret(directory / "admin-password")
        token = ensure_token_file(ensure_admin(ADMIN, password), "demo", directory / "token")
        supervisor = Supervisor(
            _parts(directory, environment, ranges), directory / "logs", announce, stop.is_asked
        )
        try:
            announce("Starting the site and two nodes")
            supervisor.start()
            with _rest_client(environment, token) as rest:
                if not stop.is_asked():
                    _welcome(environment, password, directory, announce)
                    _serve(supervisor, directory, rest, announce, stop)
                announce("Stopping: saving the state of running jobs (Ctrl-C again: do not wait)")
                num_saved = jobs_pause(directory, rest, stop.is_hurried)
                announce(f"Jobs paused: {num_saved}; stopping all processes")
        finally:
            supervisor.stop()
            processes.end_stray_trainers(directory)
    announce("Stopped. 'make demo' goes on from here; 'make clean' forgets everything.")


def _serve(
    supervisor: Supervisor, directory: Path, rest: httpx.Client, announce: Announce, stop: _Stop
) -> None:
    num_resumed = jobs_resume(directory, rest)
    if num_resumed:
        announce(f"Jobs that go on where they stopped: {num_resumed}")
    arrivals = Arrivals(rest, announce, len(processes.NODES))
    while not stop.is_asked():
        now = time.monotonic()
        supervisor.run_once(now)
        arrivals.run_once(now)
        time.sleep(_LOOK_EVERY_S)


def _rest_client(environment: Mapping[str, str], token: str) -> httpx.Client:
    return httpx.Client(
        base_url=f"http://127.0.0.1:{environment['VIRTUALFLOW_DEMO_PORT']}/api/v1/",
        headers={"Authorization": f"Bearer {token}"},
        timeout=_REQUEST_TIMEOUT_S,
        # Requests to this machine must not go through a proxy for the outside world.
        trust_env=False,
    )


def _parts(
    directory: Path, environment: Mapping[str, str], ranges: Sequence[range]
) -> list[SitePart]:
    server = environment["VIRTUALFLOW_STREAM_URL"]
    agents = [
        processes.agent_part(node, server, ports, directory, ensure_enrolment_token(node))
        for node, ports in zip(processes.NODES, ranges, strict=True)
    ]
    broker = processes.broker_part(socket_path(directory), directory)
    return [broker, *processes.site_parts(environment, directory), *agents]


def _welcome(
    environment: Mapping[str, str], password: str, directory: Path, announce: Announce
) -> None:
    announce(
        "\n"
        f"  The site runs at  http://127.0.0.1:{environment['VIRTUALFLOW_DEMO_PORT']}/\n"
        f"  Log in as         {ADMIN}\n"
        f"  with password     {password}\n"
        "\n"
        "  Open it: three jobs of different priorities arrive one after another, grow, shrink\n"
        "  and finish; the overview says why. Submit one of your own from a template, change a\n"
        "  priority in the queue, or switch the policy there.\n"
        f"  Programs find a token in {directory / 'token'}; README.md shows what to do with it.\n"
        f"  Ctrl-C ends everything. Logs: {directory / 'logs'}\n"
    )


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the lock of `directory`; the kernel releases it however this process ends."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadyRunningError(
            f"A demo already runs in {directory}; end it, or set VIRTUALFLOW_DEMO_DIR to another "
            "folder."
        ) from None
    else:
        yield
    finally:
        os.close(descriptor)


class _Stop:
    """Counts stop signals: the first requests an orderly stop, the second a quick one."""

    def __init__(self) -> None:
        self._num_signals = 0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal, without a lock that the interrupted code may hold."""
        self._num_signals += 1

    def is_asked(self) -> bool:
        return self._num_signals > 0

    def is_hurried(self) -> bool:
        return self._num_signals > 1


@contextmanager
def _stop_signals() -> Iterator[_Stop]:
    stop = _Stop()
    before = {number: signal.signal(number, stop) for number in _STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
