"""Kills the processes of a job while the agent waits for them.

Code of a job can hold locks of the kernel: where many of its threads write gigabytes to one file,
whoever changes that file waits for minutes. Such calls have no time limit, but a process that is
killed gives its locks back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger("agents")

#: Longest wait for one trainer or validation, well below a node's lease.
STUCK_S = 8.0
CHECK_S = 0.5


@dataclass(slots=True)
class _Wait:
    """A block that is watched, and how many checks have found it unfinished."""

    kill: Callable[[], None]
    num_checks: int = 0


class Watchdog:
    """Watches what the loop and uploads do, from a thread of its own.

    Only its own checks count, so the agent's suspension (a machine that slept) hardly does.
    """

    def __init__(self, stuck_s: float = STUCK_S) -> None:
        self._num_checks = max(1, round(stuck_s / CHECK_S))
        self._waits: dict[int, _Wait] = {}  # by thread
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def close(self) -> None:
        """Watch nothing any more."""
        self._closed.set()

    @contextmanager
    def watching(self, kill: Callable[[], None]) -> Iterator[None]:
        """Call `kill` once, on the watchdog's thread, if the block takes too long."""
        self._waits[threading.get_ident()] = _Wait(kill)
        try:
            yield
        finally:
            del self._waits[threading.get_ident()]

    def _watch(self) -> None:
        while not self._closed.wait(CHECK_S):
            for wait in list(self._waits.values()):
                wait.num_checks += 1
                if wait.num_checks == self._num_checks + 1:
                    try:
                        wait.kill()
                    except Exception:
                        log.exception("what the agent waits for cannot be killed")
