"""Reproducibility of a job: which level its result has, and why."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from controlplane.core.protocol.wire import ReductionMode, Task
from jobs.models import Accelerator, Job


class Reproducibility(StrEnum):
    """Guarantee about the result of another run of the same job."""

    BITWISE = "bitwise"
    TOLERANCE = "tolerance"
    NONE = "none"


def kinds_used(job: Job) -> list[str]:
    """List the kinds of accelerators that a job has trained on so far."""
    rows = Accelerator.objects.filter(allocations__job=job, allocations__joined_at__isnull=False)
    return sorted(set(rows.values_list("kind", flat=True)))


def reproducibility_of(job: Job, kinds: Collection[str]) -> tuple[Reproducibility, str]:
    """Return the level of a job that has trained on `kinds`, and one sentence about it."""
    if job.tuning.get("parallel") and job.trial_of_id is None:
        text = "another run has trials at other steps, when accelerators are idle then"
        return Reproducibility.NONE, text
    if job.reduction == ReductionMode.FAST and job.task == Task.TRAIN:
        text = "fast reduction adds in an order that changes with the number of accelerators"
        return Reproducibility.TOLERANCE, text
    if len(kinds) > 1:
        text = f"it has trained on {' and '.join(sorted(kinds))}, which round differently"
        return Reproducibility.TOLERANCE, text
    if job.task == Task.PREDICT:
        return (
            Reproducibility.BITWISE,
            "one kind of accelerator so far; predictions are never added up",
        )
    return Reproducibility.BITWISE, "one kind of accelerator so far, exact reduction"
