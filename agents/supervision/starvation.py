"""Time that a process has not had a processor: on a busy machine, limits are longer by it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from controlplane.core.protocol.node_messages import BUSY_FACTOR


class Starvation:
    """Longest wait of a thread for a processor that others had, since this object was made.

    A process that is stopped, or waits for anything else, does not starve. Nothing is known where
    the kernel does not tell.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = thread_waits_s(pid)
        self._longest_s = 0.0

    def extended(self, limit_s: float) -> float:
        """Return a limit of the process, in seconds, longer by its wait: up to `BUSY_FACTOR`."""
        for thread, wait_s in thread_waits_s(self._pid).items():
            self._longest_s = max(self._longest_s, wait_s - self._before.get(thread, 0.0))
        return limit_s + min(self._longest_s, (BUSY_FACTOR - 1.0) * limit_s)


def thread_waits_s(pid: int) -> Mapping[int, float]:
    """Return for how long each thread of a process was ready to run and did not."""
    waits = {}
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended
            waits[int(path.parent.name)] = int(path.read_text().split()[1]) / 1e9
    return waits
