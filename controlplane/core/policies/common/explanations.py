"""Parts of the reasons for the accelerators that jobs hold and wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from controlplane.core.values.types import JobId

#: Relative gains below this are not reported.
MIN_REPORTED_GAIN = 0.005


def jobs_text(number: int) -> str:
    """Count jobs: "1 job", "3 jobs"."""
    return f"{number} job{'' if number == 1 else 's'}"


def rate_text(per_s: float) -> str:
    """Format useful examples per second."""
    return f"{per_s:,.0f}" if per_s >= 100.0 else f"{per_s:.3g}"


def change_text(kind: str, capacity: int, before: int, given: int, came_from: str = "") -> str:
    """Describe the change of a job's accelerators of a kind.

    Args:
        came_from: accelerators held of another kind, as "2 k80"; empty: none.
    """
    pool = f"{given} of {capacity} {kind}"
    if before == given:
        return f"Keeps {pool}"
    if before:
        return f"Was {'grown' if given > before else 'shrunk'} {before}→{given} {kind}"
    return f"Goes over from {came_from} to {pool}" if came_from else f"Is given {pool}"


def gainers(changes: Iterable[tuple[str, JobId, int]]) -> dict[str, JobId]:
    """Return for each kind the job with the largest increase, from (kind, job, increase)."""
    best: dict[str, tuple[int, JobId]] = {}
    for kind, job_id, more in changes:
        if more > 0 and (kind not in best or (-more, job_id) < best[kind]):
            best[kind] = (-more, job_id)
    return {kind: job_id for kind, (_, job_id) in best.items()}


@dataclass(frozen=True)
class Holders:
    """The jobs to which the accelerators of a kind are given.

    Attributes:
        given: weight and accelerators of each job that has some.
    """

    kind: str
    capacity: int
    given: Sequence[tuple[float, int]]

    @cached_property
    def held(self) -> int:
        """Accelerators given to jobs."""
        return sum(count for _, count in self.given)

    @cached_property
    def _by_weight(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return weights, ascending, and the suffix sums of the accelerators."""
        rows = sorted(self.given)
        counts = np.array([count for _, count in rows], dtype=np.int64)
        sums = np.append(np.cumsum(counts[::-1])[::-1], 0)
        return np.array([weight for weight, _ in rows], dtype=float), sums

    def above(self, weight: float) -> int:
        """Count the accelerators of jobs of more than this weight."""
        weights, sums = self._by_weight
        return int(sums[np.searchsorted(weights, weight, side="right")])

    def missing(self, least: int) -> int:
        """Count the accelerators that must become free before a job can have its minimum."""
        return max(least - (self.capacity - self.held), 0)

    def waits_text(self, least: int, weight: float) -> str:
        """Describe the demand of a waiting job of this weight, and the jobs that hold it."""
        missing = self.missing(least)
        wish = f"{missing} more" if 0 < missing < least else f"{least}"
        text = (
            f"Waits for {wish} of kind {self.kind}; {self.held} of {self.capacity} held by "
            f"{jobs_text(len(self.given))}"
        )
        higher = self.above(weight)
        return f"{text}, {higher} by jobs of higher priority" if higher else text
