"""Supervision of a fixed set of processes: ordered start, restart after exit, staged stop.

One thread, no callbacks: the caller calls `run_once` periodically. No process outlives the
supervisor: the kernel sends each one SIGTERM when its parent exits, for whatever reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 30.0
#: Seconds of running after which a part's restart backoff is reset.
STEADY_AFTER_S = 60.0
KEPT_LOG_BYTES = 16 * 1024 * 1024
#: Databases and schedules of the parts are nobody else's: jobs may run as other users beside them.
PRIVATE_UMASK = 0o077
_CHECK_EVERY_S = 0.05
_KILL_DEADLINE_S = 5.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class PartFailedError(Exception):
    """A part failed to start; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class SitePart:
    """One supervised process.

    Attributes:
        name: also the name of its log file.
        is_ready: returns whether it serves; None means ready once started.
        start_deadline_s: seconds allowed until `is_ready`.
        grace_s: seconds from SIGTERM until the process is killed.
        stage: parts of the highest stage are stopped first, those of one stage together.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_ready: Callable[[], bool] | None = None
    start_deadline_s: float = 60.0
    grace_s: float = 15.0
    stage: int = 0


@dataclass(slots=True)
class _Running:
    part: SitePart
    process: subprocess.Popen[bytes]
    started_at: float
    backoff_s: float = FIRST_BACKOFF_S
    restart_at: float | None = None


class Supervisor:
    """Owns the processes of `parts` between `start` and `stop`."""

    def __init__(
        self,
        parts: Sequence[SitePart],
        log_dir: Path,
        announce: Callable[[str], None],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._parts = tuple(parts)
        self._log_dir = log_dir
        self._announce = announce
        self._should_stop = should_stop
        self._running: list[_Running] = []

    def start(self) -> None:
        """Start the parts, each once the previous is ready; return early on `should_stop`.

        Raises:
            PartFailedError: a part exited or was not ready in time.
        """
        self._log_dir.mkdir(parents=True, exist_ok=True)
        for part in self._parts:
            if self._should_stop():
                return
            running = _Running(part, self._spawn(part), time.monotonic())
            self._running.append(running)
            self._wait_until_ready(running)

    def run_once(self, now: float) -> None:
        """Check every process once: schedule restarts of exited ones, carry out those due."""
        for running in self._running:
            if running.restart_at is not None:
                if now >= running.restart_at:
                    running.process = self._spawn(running.part)
                    running.started_at, running.restart_at = now, None
                    self._announce(f"{running.part.name} is running again")
            elif has_ended(running.process):
                reap(running.process)
                self._plan_restart(running, now)

    def stop(self) -> None:
        """Stop every process, stage by stage from the highest, killing those that do not exit."""
        for stage in sorted({running.part.stage for running in self._running}, reverse=True):
            end_processes(
                (running.process, running.part.grace_s)
                for running in self._running
                if running.part.stage == stage
            )
        self._running.clear()

    def pids(self) -> dict[str, int]:
        """Return the process id of every running part."""
        return {
            running.part.name: running.process.pid
            for running in self._running
            if not has_ended(running.process)
        }

    def _plan_restart(self, running: _Running, now: float) -> None:
        if now - running.started_at >= STEADY_AFTER_S:
            running.backoff_s = FIRST_BACKOFF_S
        running.restart_at = now + running.backoff_s
        self._announce(
            f"{running.part.name} ended with status {running.process.returncode}; "
            f"starting it again in {running.backoff_s:.0f} s (log: {self._log_path(running.part)})"
        )
        running.backoff_s = min(running.backoff_s * 2, MAX_BACKOFF_S)

    def _log_path(self, part: SitePart) -> Path:
        return self._log_dir / f"{part.name}.log"

    def _spawn(self, part: SitePart) -> subprocess.Popen[bytes]:
        path = self._log_path(part)
        if path.exists() and path.stat().st_size > KEPT_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        with path.open("ab") as log:
            return subprocess.Popen(
                list(part.command),
                env={**os.environ, **part.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=PRIVATE_UMASK,
                # A session of its own: Ctrl-C in the terminal reaches only the supervisor, which
                # then stops the parts in order.
                start_new_session=True,
                preexec_fn=partial(end_with_parent, signal.SIGTERM),
            )

    def _wait_until_ready(self, running: _Running) -> None:
        part = running.part
        deadline = time.monotonic() + part.start_deadline_s
        while part.is_ready is not None and not part.is_ready():
            if self._should_stop():
                return
            if has_ended(running.process):
                reap(running.process)
                what = f"ended with status {running.process.returncode}"
                raise PartFailedError(f"{part.name} {what}:\n{self._log_tail(part)}")
            if time.monotonic() > deadline:
                what = f"did not answer within {part.start_deadline_s:.0f} s"
                raise PartFailedError(f"{part.name} {what}:\n{self._log_tail(part)}")
            time.sleep(_CHECK_EVERY_S)

    def _log_tail(self, part: SitePart) -> str:
        lines = self._log_path(part).read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:])


def end_processes(leaders: Iterable[tuple[subprocess.Popen[bytes], float]]) -> None:
    """Send SIGTERM to session leaders; kill the rest of each group after its grace period.

    Args:
        leaders: processes with their grace periods in seconds.
    """
    requested_at = time.monotonic()
    ending = [
        (process, requested_at + grace_s) for process, grace_s in leaders if not is_reaped(process)
    ]
    for process, _ in ending:
        process.send_signal(signal.SIGTERM)
    for process, deadline in ending:
        while not has_ended(process) and time.monotonic() < deadline:
            time.sleep(_CHECK_EVERY_S)
        reap(process)


def is_reaped(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the exit status was collected, after which the id may be reused."""
    return process.returncode is not None


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has exited, without collecting its exit status."""
    if is_reaped(process):
        return True
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, flags) is not None


def reap(process: subprocess.Popen[bytes]) -> None:
    """Kill every process of a leader's group, and collect the leader's exit status.

    Until the status is collected the process id cannot be reused, so no other process can be hit.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=_KILL_DEADLINE_S)


def end_with_parent(number: signal.Signals) -> None:
    """Request a signal from the kernel at the parent's exit; runs between fork and exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
