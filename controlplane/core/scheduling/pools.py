"""Pools: the accelerators of one kind, and the choice of a job's pool.

A job's result is bitwise reproducible on one kind of accelerator, so the policies here give a job
accelerators of a single kind: the kind that it holds, or else the accepted kind with most to give.
Accelerators of other kinds that a job holds (see `kind_lending`) are invisible to policies, and
free to be given to any job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from controlplane.core.values.types import Job, JobId, Snapshot

_KIND, _ARRIVAL = attrgetter("kind"), attrgetter("submitted_at", "id")


def capacity_by_kind(snapshot: Snapshot) -> dict[str, int]:
    """Count the accelerators of each kind, kinds in alphabetical order."""
    counts = Counter(map(_KIND, snapshot.accelerators))
    return {kind: counts[kind] for kind in sorted(counts)}


def kinds_able(job: Job, capacity: Mapping[str, int]) -> dict[str, int]:
    """Return the capacity of each accepted kind that has a job's minimum, held by others or not."""
    return {
        kind: total
        for kind, total in capacity.items()
        if job.accepts(kind) and job.min_accelerators <= total
    }


def room_of(job: Job, capacity: Mapping[str, int]) -> int:
    """Return the largest capacity of an accepted kind."""
    return max((total for kind, total in capacity.items() if job.accepts(kind)), default=0)


def can_start(job: Job, capacity: Mapping[str, float]) -> bool:
    """Return whether some accepted kind has a job's minimum, held by others or not."""
    return any(
        job.accepts(kind) and job.min_accelerators <= total for kind, total in capacity.items()
    )


def can_start_ever(snapshot: Snapshot, job: Job, capacity: Mapping[str, int]) -> bool:
    """Return whether a job `can_start`, also within the limits of its project."""
    quota = None if job.project is None else snapshot.projects.get(job.project)
    if quota is None:
        return can_start(job, capacity)
    return can_start(job, {kind: min(n, quota.most([kind])) for kind, n in capacity.items()})


def jobs_able(jobs: Sequence[Job], capacity: Mapping[str, int]) -> tuple[Job, ...]:
    """Return the jobs of which some accepted kind has the minimum (`can_start`), in order."""
    most = max(capacity.values(), default=0)
    return tuple(
        job
        for job in jobs
        if (can_start(job, capacity) if job.accepted_kinds else job.min_accelerators <= most)
    )


def held_by_kind(snapshot: Snapshot) -> dict[JobId, Counter[str]]:
    """Count the accelerators that each job holds of its own kind, which may still be given out.

    The own kind of a job that mixes kinds is that of the first accelerator it still has: its
    leader's.
    """
    mixing = {job.id for job in snapshot.jobs if job.allow_mixed_kinds}
    return {
        job_id: Counter(dict(list(counts.items())[:1])) if job_id in mixing else counts
        for job_id, counts in all_held_by_kind(snapshot).items()
    }


def all_held_by_kind(snapshot: Snapshot) -> dict[JobId, Counter[str]]:
    """Count the accelerators of each job by kind, the kind of its first accelerator first."""
    kinds = {accelerator.id: accelerator.kind for accelerator in snapshot.accelerators}
    return {
        job.id: Counter(kinds[held] for held in snapshot.held.get(job.id, ()) if held in kinds)
        for job in snapshot.jobs
    }


def held_kind(counts: Counter[str]) -> str | None:
    """Name the kind that a job holds most of, or None when it holds nothing."""
    if not counts:
        return None
    return min(counts, key=lambda kind: (-counts[kind], kind))


def pool_choose(job: Job, room: Mapping[str, float], needed: int) -> str | None:
    """Choose the accepted kind with the largest `room`, at least `needed`, or None."""
    fitting = [kind for kind in room if job.accepts(kind) and room[kind] >= needed]
    return min(fitting, key=lambda kind: (-room[kind], kind), default=None)


def urgency_order(jobs: Iterable[Job]) -> list[Job]:
    """Sort by tier and weight, highest first; ties by time of submission, then id."""
    return sorted(jobs, key=lambda job: (job.tier.rank, -job.weight, job.submitted_at, job.id))


def arrival_order(jobs: Iterable[Job]) -> list[Job]:
    """Sort by time of submission, then id."""
    return sorted(jobs, key=_ARRIVAL)
