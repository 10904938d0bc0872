"""Kills the processes of a job while the agent's loop waits for them.

Code of a job can hold locks of the kernel: where many of its threads write gigabytes to one file,
whoever changes that file waits for minutes. Such calls have no time limit, but a process that is
killed gives its locks back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("agents")

#: Longest wait of the loop for one trainer or validation, well below a node's lease.
STUCK_S = 8.0
CHECK_S = 0.5


class Watchdog:
    """Watches what the loop does, from a thread of its own.

    Only its own checks count, so the agent's suspension (a machine that slept) hardly does.
    """

    def __init__(self, stuck_s: float = STUCK_S) -> None:
        self._num_checks = max(1, round(stuck_s / CHECK_S))
        self._kill: Callable[[], None] | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def close(self) -> None:
        """Watch nothing any more."""
        self._closed.set()

    @contextmanager
    def watching(self, kill: Callable[[], None]) -> Iterator[None]:
        """Call `kill` once, on the watchdog's thread, if the block takes too long."""
        self._kill = kill
        try:
            yield
        finally:
            self._kill = None

    def _watch(self) -> None:
        last, num_seen = None, 0
        while not self._closed.wait(CHECK_S):
            kill = self._kill
            num_seen = num_seen + 1 if kill is not None and kill is last else 0
            last = kill
            if kill is not None and num_seen == self._num_checks:
                try:
                    kill()
                except Exception:
                    log.exception("what the loop waits for cannot be killed")
