"""Whether the kernel ended a process because memory ran out: it counts such ends."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

#: Counts of this container first, then of the whole machine; each has a line "oom_kill N".
COUNTERS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
    Path("/proc/vmstat"),
)
#: Ends of the last 10 to 15 seconds count as those of a process that was just killed.
SAMPLE_EVERY_S = 5.0
SAMPLES = 3


class OomKillCounter:
    """Remembers the count of some seconds ago: the kernel counts before a process is gone."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int | None]] = []

    def note(self, now: float) -> None:
        """Look at the count now and then while the process lives."""
        if not self._samples or now - self._samples[-1][0] >= SAMPLE_EVERY_S:
            self._samples = [*self._samples, (now, memory_kills())][-SAMPLES:]

    def has_grown(self) -> bool:
        """Say whether the kernel has ended a process lately, where that can be known."""
        before = self._samples[0][1] if self._samples else None
        count = memory_kills()
        return before is not None and count is not None and count > before


def memory_kills() -> int | None:
    """Give how many processes the kernel has ended for their memory; None where nobody counts.

    The highest count is given: a container's own does not see what the machine ran out of.
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
