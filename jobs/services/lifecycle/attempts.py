"""Counts of a job's attempts since it last made progress.

Every attempt counts until the job's step exceeds its maximum so far; then the count restarts from
zero. So a job that keeps making progress is never given up, and one without progress always is.
"""

from __future__ import annotations

from typing import Literal, get_args

from controlplane.core.values.lifecycle import OPEN_PHASES, GenerationPhase
from jobs.models import Allocation, Job, JobAttempts

Kind = Literal["restarts", "recoveries", "crashes"]


def _attempts_of(job: Job) -> JobAttempts:
    """Return the counts of a locked job; zeros, not stored yet, before its first attempt."""
    return JobAttempts.objects.filter(job=job).first() or JobAttempts(job=job)


def attempt_count(job: Job, kind: Kind) -> JobAttempts:
    """Count one more attempt of a locked job; return its attempts since it last made progress."""
    attempts = _attempts_of(job)
    if job.step > attempts.furthest_step:
        attempts.furthest_step = job.step
        for each in get_args(Kind):
            setattr(attempts, each, 0)
    setattr(attempts, kind, getattr(attempts, kind) + 1)
    attempts.save()
    return attempts


def crash_count(job: Job, allocation: Allocation) -> JobAttempts:
    """Count a trainer's crash; return the job's attempts since it last made progress.

    Trainers that crash together are one attempt: a crash counts only if its trainer began after the
    previous crash.
    """
    began = max(allocation.granted_generation, allocation.switched_generation)
    attempts = _attempts_of(job)
    if began > attempts.crash_generation or job.step > attempts.furthest_step:
        attempts = attempt_count(job, "crashes")
        attempts.crash_generation = job.generation
        attempts.save()
    return attempts


def is_held_up(job: Job, row: Allocation) -> bool:
    """Return whether a death interrupted training; joiners of a growth die beside the training."""
    if row.joined_at is not None:
        return True
    open_generations = job.generations.filter(phase__in=OPEN_PHASES)
    return not open_generations.filter(phase=GenerationPhase.ACTIVE).exists()
