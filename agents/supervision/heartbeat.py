"""Whether a trainer's process still moves: a file that it touches, seen by an agent that is awake.

Only what the agent itself sees counts. The file's time is compared with nothing but the file's time
at the look before, so a clock that is set matters to nobody; and silence is summed up over looks
that follow each other closely, so an agent that was itself stopped for a while (a machine that
slept, a frozen container) blames no trainer for it.
"""

from __future__ import annotations

from pathlib import Path

#: No pause between two looks counts for more than this as silence.
LONGEST_GAP_S = 1.0


class Pulse:
    """Watches one trainer's pulse file.

    Attributes:
        silent_s: seconds without a sign of life, as far as the agent was awake to see it.
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

    def is_lost(self, now: float) -> bool:
        """Look at the file and say whether the silence has lasted too long.

        Args:
            now: seconds of a clock that never goes back.
        """
        stamp = self._read()
        if stamp != self._stamp:
            self._stamp, self.silent_s = stamp, 0.0
        elif self._looked_at is not None:
            self.silent_s += min(now - self._looked_at, LONGEST_GAP_S)
        self._looked_at = now
        return self.silent_s > (self._boot_limit_s if stamp is None else self._limit_s)

    def _read(self) -> int | None:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return None
