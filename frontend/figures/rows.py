"""Input rows of the figures; times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

#: Number of the one job that stands for all jobs hidden from the viewer; no job has this number.
HIDDEN_JOB_ID = 0


#: Finds the names and the colours of jobs by their numbers.
JobLabels = Callable[[Collection[int]], Mapping[int, tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class AllocationChanges:
    """Changes of the accelerators that jobs hold, as columns, by job and then by time.

    Attributes:
        ats: seconds since the epoch.
        counts: accelerators that the job holds from then on.
    """

    job_ids: NDArray[np.int64]
    ats: NDArray[np.float64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Iterable[tuple[float, int, int]]) -> Self:
        """Sort rows of time, job and accelerators held from then on; equal times stay in order."""
        ats, job_ids, counts = np.array([*rows], dtype=np.float64).reshape(-1, 3).T
        order = np.lexsort((ats, job_ids))
        return cls(job_ids[order].astype(np.int64), ats[order], counts[order].astype(np.int64))

    def chosen(self, mask: NDArray[np.bool_]) -> Self:
        return type(self)(self.job_ids[mask], self.ats[mask], self.counts[mask])

    def __len__(self) -> int:
        return len(self.ats)


@dataclass(frozen=True, slots=True)
class StepPoint:
    """Steps up to step `step`, which ended at `at`: examples, seconds and mean loss."""

    at: float
    step: int
    examples: float
    seconds: float
    loss: float | None
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True)
class BatchChange:
    """A job's steps have `batch_size` examples from step `first_step` on."""

    first_step: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class SearchMark:
    """Steps `first` to `last` are trials; `start_loss` is that of the state they started from."""

    first: int
    last: int
    start_loss: float | None

    def meets(self, first: int, last: int) -> bool:
        """Return whether some of the steps `first` to `last` are of a trial."""
        return self.first <= last and first <= self.last


@dataclass(frozen=True, slots=True)
class EpochPoint:
    """The logs of one epoch."""

    epoch: int
    step: int
    logs: dict[str, float]


@dataclass(frozen=True, slots=True)
class ResizeMark:
    """One change of a job's allocation; `step` is the first step after it."""

    at: float
    step: int | None
    old_count: int
    new_count: int


@dataclass(frozen=True, slots=True)
class WorkSpan:
    """Examples processed between two times, the second one later than the first."""

    start_at: float
    end_at: float
    examples: float
