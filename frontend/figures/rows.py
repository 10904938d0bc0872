"""Input rows of the figures; times are seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass

#: Number of the one job that stands for all jobs hidden from the viewer; no job has this number.
HIDDEN_JOB_ID = 0


@dataclass(frozen=True, slots=True)
class AllocationChange:
    """A job holds `num_accelerators` from `at` (seconds since the epoch) on."""

    at: float
    job_id: int
    job_name: str
    num_accelerators: int
    colour: int = 0


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
