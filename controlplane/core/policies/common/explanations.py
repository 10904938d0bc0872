"""Parts of the reasons for the accelerators that jobs hold and wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import JobId


def change(
    kind: str,
    capacity: int,
    before: int,
    given: int,
    came_from: tuple[int, str] | None = None,
    cause: Reason | None = None,
) -> Reason:
    """Describe the change of a job's accelerators of a kind.

    Args:
        came_from: accelerators held of another kind, if any.
        cause: the job for which this one is shrunk, if any.
    """
    code = "keeps" if before == given else "given"
    if before and before != given:
        code = "grown" if given > before else "shrunk"
    fields = {"given": given, "before": before, "capacity": capacity, "kind": kind, "cause": cause}
    if code == "given" and came_from is not None:
        code, fields["from_count"], fields["from_kind"] = "changes_kind", *came_from
    return Reason(code, fields)


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

    def waits(self, least: int, weight: float) -> Reason:
        """Describe the demand of a waiting job of this weight, and the jobs that hold it."""
        missing, higher = self.missing(least), self.above(weight)
        return reason(
            "holders",
            wish=reason("more", count=missing) if 0 < missing < least else least,
            kind=self.kind,
            held=self.held,
            capacity=self.capacity,
            jobs=len(self.given),
            higher=of_higher(higher, self.held),
        )


def of_higher(higher: int, held: int) -> Reason | None:
    """Say how many of the accelerators that are held are with jobs of higher priority."""
    if not higher:
        return None
    return reason("all_higher") if higher == held else reason("higher", count=higher)
