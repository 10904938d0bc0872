"""The demo from its start to its end: prepare, start the parts, submit jobs, stop in order."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from jobs.demo import parts
from jobs.demo.arrivals import Arrivals
from jobs.demo.environment import free_port_ranges, kept_secret, socket_path
from jobs.demo.intermission import jobs_resume, jobs_set_aside
from jobs.demo.supervisor import Part, Supervisor
from jobs.services.first_start import ensure_admin, ensure_enrolment_token

ADMIN = "admin"
_LOOK_EVERY_S = 0.5
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Announce = Callable[[str], None]


class AlreadyRunningError(Exception):
    """Another demo uses the same directory."""


def demo_run(directory: Path, environment: Mapping[str, str], announce: Announce) -> None:
    """Run the demo until a stop signal comes; nothing is left running when this returns.

    Raises:
        AlreadyRunningError: another demo runs in `directory`.
        PartFailedError: a part did not come up; what had started is stopped again.
    """
    with _alone(directory), _stop_signals() as stopping:
        password = kept_secret(directory / "admin-password")
        admin = ensure_admin(ADMIN, password)
        supervisor = Supervisor(
            _parts(directory, environment), directory / "logs", announce, stopping.is_set
        )
        try:
            announce("Starting the site and two nodes")
            supervisor.start()
            if not stopping.is_set():
                jobs_resume(directory, admin)
                _welcome(environment, password, directory, announce)
                _serve(supervisor, Arrivals(admin, announce), stopping)
                announce("Stopping: saving the state of running jobs")
                for line in jobs_set_aside(directory, admin):
                    announce(line)
        finally:
            supervisor.stop()
            parts.end_stray_trainers(directory)
    announce("Stopped. 'make demo' goes on from here; 'make clean' forgets everything.")


def _serve(supervisor: Supervisor, arrivals: Arrivals, stopping: threading.Event) -> None:
    while not stopping.wait(_LOOK_EVERY_S):
        now = time.monotonic()
        supervisor.run_once(now)
        arrivals.run_once(now)


def _parts(directory: Path, environment: Mapping[str, str]) -> list[Part]:
    server = environment["VIRTUALFLOW_STREAM_URL"]
    ranges = free_port_ranges(len(parts.NODES), parts.PORTS_PER_NODE)
    agents = [
        parts.agent_part(node, server, ports, directory, ensure_enrolment_token(node))
        for node, ports in zip(parts.NODES, ranges, strict=True)
    ]
    broker = parts.broker_part(socket_path(directory), directory)
    return [broker, *parts.site_parts(environment, directory), *agents]


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
        "  and finish. Submit one of your own from a template, or change a priority in the queue.\n"
        f"  Ctrl-C ends everything. Logs: {directory / 'logs'}\n"
    )


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the lock of `directory`; the kernel lets go of it however this process ends."""
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


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Turn stop signals into an event; further ones change nothing, the end is on its way."""
    stopping = threading.Event()
    before = {
        number: signal.signal(number, lambda _number, _frame: stopping.set())
        for number in _STOP_SIGNALS
    }
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
