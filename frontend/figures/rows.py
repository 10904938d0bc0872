"""What the figures are drawn from; times are seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass

#: All jobs that the viewer may not see are one job with this number, which no job has.
HIDDEN_JOB_ID = 0


@dataclass(frozen=True, slots=True)
class AllocationChange:
    """From `at` (seconds since the epoch) on, a job holds `num_accelerators`."""

    at: float
    job_id: int
    job_name: str
    num_accelerators: int


@dataclass(frozen=True, slots=True)
class StepPoint:
    """Some steps that ended at `at` with step `step`: their work, their time, their mean loss."""

    at: float
    step: int
    examples: float
    seconds: float
    loss: float | None
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True)
class BatchChange:
    """From step `first_step` on a job's steps have `batch_size` examples."""

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
    """One change of a job's allocation; `step` is the first step on the new one."""

    at: float
    step: int | None
    old_count: int
    new_count: int


@dataclass(frozen=True, slots=True)
class WorkSpan:
    """Examples that were worked off between two times, the second one later than the first."""

    start_at: float
    end_at: float
    examples: float
