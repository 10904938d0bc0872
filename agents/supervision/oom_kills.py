"""Detects, from the kernel's counters, that a process was killed because memory ran out."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

#: Counters of this container first, then of the whole machine; each has a line "oom_kill N".
COUNTERS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
    Path("/proc/vmstat"),
)
#: Kills of the last 10 to 15 seconds are attributed to a process that was just killed.
SAMPLE_EVERY_S = 5.0
SAMPLES = 3


class OomKillCounter:
    """Keeps the count of some seconds ago: the kernel counts before a process is gone."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int | None]] = []

    def note(self, now: float) -> None:
        """Sample the count every `SAMPLE_EVERY_S`; call repeatedly while the process lives."""
        if not self._samples or now - self._samples[-1][0] >= SAMPLE_EVERY_S:
            self._samples = [*self._samples, (now, memory_kills())][-SAMPLES:]

    def has_grown(self) -> bool:
        """Return whether the kernel has killed a process lately; False if not known."""
        before = self._samples[0][1] if self._samples else None
        count = memory_kills()
        return before is not None and count is not None and count > before


def memory_kills() -> int | None:
    """Return the number of processes that the kernel has killed for memory; None if not counted.

    The highest count is used: a container's counter does not include the machine's own shortage.
    """
    counts = [count for path in COUNTERS if (count := _count(path)) is not None]
    return max(counts, default=None)


def _count(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None
