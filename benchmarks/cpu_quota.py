"""Slows processes down honestly: a share of one core's time, kept by the kernel.

Control groups of version 1 or 2 are used where this user may make one; their period is short, so
that a step of tens of milliseconds runs smoothly. Elsewhere a thread stops and continues the
process in turns, which is coarser, and said so.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

PERIOD_US = 10_000
DUTY_PERIOD_S = 0.03
REMOVE_LIMIT_S = 5.0


class CpuQuota:
    """Gives processes fixed shares of a core; everything is undone at the end of the block."""

    def __init__(self) -> None:
        """Choose how: `how` names it."""
        self._root, self.how = _control_group_root()
        self._brakes: list[ControlGroup | DutyCycle] = []

    def __enter__(self) -> CpuQuota:
        return self

    def __exit__(self, *_: object) -> None:
        for brake in self._brakes:
            brake.release()

    def limit(self, pid: int, share: float) -> None:
        """Hold process `pid` to `share` of one core, 0 < share <= 1."""
        brake: ControlGroup | DutyCycle
        if self._root is None:
            brake = DutyCycle()
        else:
            brake = ControlGroup(self._root / f"virtualflow-{os.getpid()}-{pid}")
        self._brakes.append(brake)
        brake.hold(pid, share)


def _control_group_root() -> tuple[Path | None, str]:
    for root, how in (
        (Path("/sys/fs/cgroup/cpu"), "control groups, version 1"),
        (Path("/sys/fs/cgroup"), "control groups, version 2"),
    ):
        probe = root / f"virtualflow-{os.getpid()}-probe"
        is_first = how.endswith("1")
        if not is_first and not (root / "cgroup.controllers").exists():
            continue
        with suppress(OSError):
            probe.mkdir()
            has_quota = (probe / ("cpu.cfs_quota_us" if is_first else "cpu.max")).exists()
            probe.rmdir()
            if has_quota:
                return root, how
    return None, "SIGSTOP and SIGCONT in turns (no control group may be made here)"


class ControlGroup:
    """A control group of one process, of either version."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def hold(self, pid: int, share: float) -> None:
        """Put the process in."""
        self._path.mkdir()
        quota_us = round(share * PERIOD_US)
        if (self._path / "cpu.max").exists():
            (self._path / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (self._path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._path / "cpu.cfs_quota_us").write_text(str(quota_us))
        (self._path / "cgroup.procs").write_text(str(pid))

    def release(self) -> None:
        """Put what is left back and remove the group."""
        deadline = time.monotonic() + REMOVE_LIMIT_S
        while self._path.exists() and time.monotonic() < deadline:
            for pid in (self._path / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    (self._path.parent / "cgroup.procs").write_text(pid)
            with suppress(OSError):
                self._path.rmdir()


class DutyCycle:
    """Stops and continues a process in turns."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, pid: int, share: float) -> None:
        """Begin the turns."""
        self._thread = threading.Thread(target=self._turn, args=(pid, share), daemon=True)
        self._thread.start()

    def _turn(self, pid: int, share: float) -> None:
        with suppress(ProcessLookupError):
            while not self._is_over.wait(share * DUTY_PERIOD_S):
                os.kill(pid, signal.SIGSTOP)
                time.sleep((1.0 - share) * DUTY_PERIOD_S)
                os.kill(pid, signal.SIGCONT)

    def release(self) -> None:
        """End the turns; the process runs."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
