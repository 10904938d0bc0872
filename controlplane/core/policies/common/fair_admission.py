"""Admission of waiting jobs to a pool shared by weight, and choice of the jobs that make room."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.core.policies.common.fair_fill import (
    FairFill,
    Fill,
    TrialFill,
    is_by_job,
    members_of,
    progressive_fill,
)
from controlplane.core.scheduling.pools import urgency_order
from controlplane.core.values.types import Job, JobId

#: A job that has waited this many seconds counts twice its weight when it asks to enter.
AGEING_S = 600.0


@dataclass(frozen=True, slots=True)
class Pool:
    """The accelerators of one kind and the jobs that share them, the most important first."""

    kind: str
    capacity: int
    now: float
    running: tuple[Job, ...]
    queued: tuple[Job, ...]


def pool_share(pool: Pool, fill: Fill = progressive_fill) -> dict[JobId, int]:
    """Admit jobs to one pool and share it among them.

    A queued job enters when no running job of strictly higher weight gets less for it. Waiting
    raises a job's standing; the queue is served in order of standing.
    """
    admitted = _Admitted(pool)
    running = {job.id for job in pool.running}
    heaviest = max((job.weight for job in admitted.jobs()), default=0.0)
    members = members_of((*pool.running, *pool.queued))
    is_progressive = fill is progressive_fill and is_by_job(members)
    filled: FairFill | TrialFill | None = None
    for job in entry_order(pool.queued, pool.now):
        dropped = admitted.give_way(job)
        if dropped is None:
            continue
        standing = aged_weight(job, pool.now)
        if filled is None and heaviest > standing:  # until then no job is protected
            if is_progressive:
                filled = FairFill(admitted.jobs(), pool.capacity, running)
            else:
                filled = TrialFill(admitted.jobs(), pool.capacity, running, fill)
        if filled is not None and not filled.exchange(job, dropped, standing):
            continue
        admitted.change(job, dropped)
    return filled.counts if filled is not None else fill(admitted.jobs(), pool.capacity)


def aged_weight(job: Job, now: float) -> float:
    """Return the standing of a waiting job: twice its weight after `AGEING_S`, and so on."""
    return job.weight * (1.0 + job.waited_s(now) / AGEING_S)


def entry_order(jobs: Iterable[Job], now: float) -> list[Job]:
    """Sort waiting jobs by standing, highest first; ties by age, then id."""
    return sorted(jobs, key=lambda job: (-aged_weight(job, now), job.submitted_at, job.id))


class _Admitted:
    """The admitted jobs, by importance, and the capacity that their minima leave."""

    def __init__(self, pool: Pool) -> None:
        self._rows: list[tuple[tuple[float, float, JobId], Job]] = []
        self._free = pool.capacity
        for job in pool.running:
            if job.min_accelerators <= self._free:
                self._rows.append((_urgency(job), job))
                self._free -= job.min_accelerators
        self._rows.sort(key=lambda row: row[0])

    def jobs(self) -> list[Job]:
        """List the admitted jobs, most important first."""
        return [job for _, job in self._rows]

    def give_way(self, newcomer: Job) -> list[Job] | None:
        """List the jobs that leave for a newcomer's minimum; None when even that is not enough.

        Only jobs of strictly lower weight go, the least important first, so two jobs can never
        displace each other in turn.
        """
        excess = newcomer.min_accelerators - self._free
        gone: list[Job] = []
        while excess > 0:
            if len(gone) == len(self._rows):
                return None
            last = self._rows[-1 - len(gone)][1]
            if last.weight >= newcomer.weight:
                return None
            gone.append(last)
            excess -= last.min_accelerators
        dropped: list[Job] = []
        for job in urgency_order(gone):  # a large one may have left room for a small one
            if job.min_accelerators <= -excess:
                excess += job.min_accelerators
            else:
                dropped.append(job)
        return dropped

    def change(self, newcomer: Job, dropped: Sequence[Job]) -> None:
        """Admit a newcomer and drop others."""
        for job in dropped:
            place = bisect_right(self._rows, _urgency(job), key=lambda row: row[0]) - 1
            del self._rows[place]
        insort(self._rows, (_urgency(newcomer), newcomer), key=lambda row: row[0])
        self._free += sum(job.min_accelerators for job in dropped) - newcomer.min_accelerators


def _urgency(job: Job) -> tuple[float, float, JobId]:
    return (-job.weight, job.submitted_at, job.id)
