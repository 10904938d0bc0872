"""What the figures are drawn from; times are seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AllocationChange:
    """From `at` (seconds since the epoch) on, a job holds `num_accelerators`."""

    at: float
    job_id: int
    job_name: str
    num_accelerators: int


@dataclass(frozen=True, slots=True)
class StepPoint:
    """What the leader reported about some steps that ended at `at`."""

    at: float
    step: int
    examples_per_s: float
    loss: float | None


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
