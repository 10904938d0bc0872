"""Counts of a job's attempts since it last made progress.

Every attempt counts until the job's step exceeds its maximum so far; then the count restarts from
zero. So a job that keeps making progress is never given up, and one without progress always is.
"""

from __future__ import annotations

from typing import Literal, get_args

from controlplane.core.values.lifecycle import GenerationPhase
from jobs.models import Allocation, Job

Kind = Literal[
    "restarts_without_progress", "recoveries_without_progress", "crashes_without_progress"
]


def attempt_count(job: Job, kind: Kind) -> int:
    """Count one more attempt of a locked job; return the attempts since it last made progress."""
    fields: dict[str, int] = {}
    if job.step > job.furthest_step:
        fields = dict.fromkeys(get_args(Kind), 0)
        fields["furthest_step"] = job.step
    count = fields.get(kind, getattr(job, kind)) + 1
    fields[kind] = count
    job.update_columns(**fields)
    return count


def crash_count(job: Job, allocation: Allocation) -> int:
    """Count a trainer's crash; return how many attempts in a row ended in a crash.

    Trainers that crash together are one attempt: a crash counts only if its trainer began after the
    previous crash.
    """
    began = max(allocation.granted_generation, allocation.switched_generation)
    if began <= job.crash_generation and job.step <= job.furthest_step:
        return job.crashes_without_progress
    count = attempt_count(job, "crashes_without_progress")
    job.update_columns(crash_generation=job.generation)
    return count


def is_held_up(job: Job, row: Allocation) -> bool:
    """Return whether a death interrupted training; joiners of a growth die beside the training."""
    if row.joined_at is not None:
        return True
    open_generations = job.generations.filter(
        phase__in=(GenerationPhase.PREPARING, GenerationPhase.SWITCHING, GenerationPhase.ACTIVE)
    )
    return not open_generations.filter(phase=GenerationPhase.ACTIVE).exists()
