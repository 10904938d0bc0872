"""Liveness of a trainer's process: the agent watches a pulse file that the trainer touches.

Only the agent's own observations count. The file's time is compared only with its time at the
previous check, so setting the clock has no effect. Silence is summed over checks with a bounded
gap, so the agent's own suspension (a machine that slept, a frozen container) hardly counts. Time
that the process had no processor extends the limit, as a busy machine gives no signs of life.
"""

from __future__ import annotations

from pathlib import Path

from agents.supervision.starvation import Starvation

#: Longest gap between two checks that is counted as silence.
LONGEST_GAP_S = 1.0


class Pulse:
    """Watches one trainer's pulse file.

    Attributes:
        silent_s: seconds without a touch, while the agent was running.
    """

    def __init__(self, path: Path, limit_s: float, boot_limit_s: float) -> None:
        """Start to watch `path`.

        Args:
            limit_s: longest silence of a process that has touched the file before.
            boot_limit_s: longest time to the first touch.
        """
        self.silent_s = 0.0
        self._path = path
        self._limit_s = limit_s
        self._boot_limit_s = boot_limit_s
        self._stamp: int | None = None
        self._looked_at: float | None = None
        self._starvation: Starvation | None = None  # once half of the limit has passed
        self._extended_s = 0.0

    def is_lost(self, now: float, pid: int) -> bool:
        """Check the file and return whether the silence exceeds the limit.

        Args:
            now: monotonic seconds.
            pid: the process that touches the file.
        """
        stamp = self._read()
        if stamp != self._stamp:
            self._stamp, self.silent_s = stamp, 0.0
            self._starvation, self._extended_s = None, 0.0
        elif self._looked_at is not None:
            self.silent_s += min(now - self._looked_at, LONGEST_GAP_S)
        self._looked_at = now
        limit_s = self._boot_limit_s if stamp is None else self._limit_s
        if self._starvation is None and self.silent_s > limit_s / 2.0:
            self._starvation = Starvation(pid)
        if self.silent_s <= max(limit_s, self._extended_s):
            return False
        assert self._starvation is not None, "it is longer than half of the limit"
        self._extended_s = self._starvation.extended(limit_s)
        return self.silent_s > self._extended_s

    def _read(self) -> int | None:
        try:
            return self._path.lstat().st_mtime_ns
        except OSError:
            return None
