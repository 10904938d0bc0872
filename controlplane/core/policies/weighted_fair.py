"""Elastic weighted fair sharing (VirtualFlow, MLSys 2022, section 4), on whole accelerators.

Differences from the paper, each for a reason:

* shares are rounded by handing accelerators out one by one instead of down to powers of two:
  virtual nodes need no power of two and nothing is left over;
* a job that cannot enter does not hold up smaller ones behind it, as long as they take nothing from
  anyone more important (backfill);
* waiting raises a job's standing, so that a low priority is slow but never forever.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controlplane.core.pools import (
    capacity_by_kind,
    held_by_kind,
    held_kind,
    pool_choose,
    urgency_order,
)
from controlplane.core.types import Decision, Job, JobId, Share, Snapshot

#: A job that has waited this long counts as twice as important when it asks to enter.
AGEING_S = 600.0


def weighted_fair(snapshot: Snapshot) -> Decision:
    """Share each kind of accelerator among its jobs in proportion to their weights."""
    capacity = capacity_by_kind(snapshot)
    held = held_by_kind(snapshot)
    pools = _pools_assign(snapshot, capacity)
    shares: dict[JobId, Share] = {}
    reasons: dict[JobId, str] = {}
    for job in snapshot.jobs:
        if job.id not in pools:
            most = max((capacity[kind] for kind in capacity if job.accepts(kind)), default=0)
            reasons[job.id] = (
                f"Cannot start: needs {job.min_accelerators} accelerators of one accepted kind, "
                f"the cluster has {most}."
            )
    for kind, total in capacity.items():
        members = urgency_order(job for job in snapshot.jobs if pools.get(job.id) == kind)
        pool = _Pool(
            kind=kind,
            capacity=total,
            now=snapshot.now,
            running=tuple(job for job in members if held[job.id][kind] > 0),
            queued=tuple(job for job in members if held[job.id][kind] == 0),
        )
        counts = _pool_share(pool)
        shares |= {job_id: Share(kind, count) for job_id, count in counts.items()}
        reasons |= {job.id: _explain(job, pool, counts) for job in members}
    return Decision(shares, reasons)


def progressive_fill(jobs: Iterable[Job], capacity: int) -> dict[JobId, int]:
    """Give every job its minimum, then one accelerator at a time to the lowest count per weight.

    The next accelerator goes to the job whose count after it, divided by its weight, is smallest
    (Jefferson's divisor method), up to its maximum. One more job therefore never raises the share
    of another. Ties go to the earlier submission, then the lower id.

    Raises:
        ValueError: the minima alone exceed `capacity`.
    """
    chosen = list(jobs)
    counts = {job.id: job.min_accelerators for job in chosen}
    free = capacity - sum(counts.values())
    if free < 0:
        raise ValueError(f"the minima need {sum(counts.values())} of {capacity} accelerators")
    heap = [_claim(job, counts[job.id]) for job in chosen if job.max_accelerators > counts[job.id]]
    heapq.heapify(heap)
    by_id = {job.id: job for job in chosen}
    while free > 0 and heap:
        *_, job_id = heapq.heappop(heap)
        counts[job_id] += 1
        free -= 1
        if counts[job_id] < by_id[job_id].max_accelerators:
            heapq.heappush(heap, _claim(by_id[job_id], counts[job_id]))
    return counts


def _claim(job: Job, count: int) -> tuple[float, float, JobId]:
    return ((count + 1) / job.weight, job.submitted_at, job.id)


@dataclass(frozen=True, slots=True)
class _Pool:
    kind: str
    capacity: int
    now: float
    running: tuple[Job, ...]  # most important first
    queued: tuple[Job, ...]


def _pools_assign(snapshot: Snapshot, capacity: Mapping[str, int]) -> dict[JobId, str]:
    """Put each job in one pool: the kind it holds, else where its share would be largest."""
    held = held_by_kind(snapshot)
    pools: dict[JobId, str] = {}
    weights = dict.fromkeys(capacity, 0.0)
    for job in urgency_order(snapshot.jobs):
        kind = held_kind(held[job.id])
        if kind is not None and job.min_accelerators <= capacity[kind]:
            pools[job.id] = kind
            weights[kind] += job.weight
    for job in urgency_order(job for job in snapshot.jobs if job.id not in pools):
        room = {
            kind: min(total * job.weight / (weights[kind] + job.weight), job.max_accelerators)
            for kind, total in capacity.items()
            if total >= job.min_accelerators
        }
        kind = pool_choose(job, room, needed=0)
        if kind is not None:
            pools[job.id] = kind
            weights[kind] += job.weight
    return pools


def _pool_share(pool: _Pool) -> dict[JobId, int]:
    """Admit jobs to one pool and share it among them.

    A queued job enters when no running job of strictly higher weight gets less for it.
    """
    admitted = _fit_minima(pool.running, pool.capacity)
    running = {job.id for job in pool.running}
    shares = progressive_fill(admitted, pool.capacity)
    for job in sorted(pool.queued, key=lambda job: _entry_order(job, pool.now)):
        candidates = _make_room(admitted, job, pool.capacity)
        if candidates is None:
            continue
        tried = progressive_fill(candidates, pool.capacity)
        standing = _aged_weight(job, pool.now)
        protected = (other for other in admitted if other.id in running and other.weight > standing)
        if all(tried.get(other.id, 0) >= shares[other.id] for other in protected):
            admitted, shares = candidates, tried
    return shares


def _aged_weight(job: Job, now: float) -> float:
    return job.weight * (1.0 + job.waited_s(now) / AGEING_S)


def _entry_order(job: Job, now: float) -> tuple[float, float, JobId]:
    return (-_aged_weight(job, now), job.submitted_at, job.id)


def _fit_minima(jobs: Iterable[Job], capacity: int) -> list[Job]:
    """Keep jobs, most important first, as long as their minima fit."""
    kept: list[Job] = []
    for job in jobs:
        if sum(other.min_accelerators for other in kept) + job.min_accelerators <= capacity:
            kept.append(job)
    return kept


def _make_room(admitted: list[Job], newcomer: Job, capacity: int) -> list[Job] | None:
    """Add a newcomer, dropping less important jobs from the last on; None when that is not enough.

    Only jobs of strictly lower weight give way, so two jobs can never displace each other in turn.
    """
    kept = urgency_order(admitted)
    dropped: list[Job] = []
    excess = sum(job.min_accelerators for job in kept) + newcomer.min_accelerators - capacity
    while excess > 0:
        if not kept or kept[-1].weight >= newcomer.weight:
            return None
        dropped.append(kept.pop())
        excess -= dropped[-1].min_accelerators
    for job in urgency_order(dropped):  # a large one may have left room for a small one
        if job.min_accelerators <= -excess:
            excess += job.min_accelerators
            kept.append(job)
    return [*kept, newcomer]


def _explain(job: Job, pool: _Pool, counts: Mapping[JobId, int]) -> str:
    members = (*pool.running, *pool.queued)
    total_weight = sum(other.weight for other in members if other.id in counts)
    if job.id in counts:
        count = counts[job.id]
        bound = ""
        if count == job.max_accelerators:
            bound = ", all it can use"
        elif count == job.min_accelerators:
            bound = ", its minimum"
        return (
            f"Gets {count} of {pool.capacity} {pool.kind}{bound}: weight {job.weight:g} of "
            f"{total_weight:g} among {len(counts)} running."
        )
    above = [other for other in members if other.id in counts and other.weight > job.weight]
    busy = sum(counts[other.id] for other in above)
    return (
        f"Waits for {job.min_accelerators} of kind {pool.kind}: {sum(counts.values())} of "
        f"{pool.capacity} are held by {len(counts)} jobs, {busy} of them by jobs of higher "
        f"priority; waiting {job.waited_s(pool.now):.0f} s has raised its weight from "
        f"{job.weight:g} to {_aged_weight(job, pool.now):.0f}."
    )
