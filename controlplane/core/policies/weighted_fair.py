"""Elastic weighted fair sharing (VirtualFlow, MLSys 2022, section 4), on whole accelerators.

Differences from the paper, with reasons:

* shares are rounded by allotting accelerators one by one instead of down to powers of two: virtual
  nodes need no power of two and no accelerator is left over (`weighted_fair_power_of_two` rounds
  as the paper does, to compare with its authors' results);
* a job that cannot enter does not hold up smaller ones behind it, as long as they take nothing from
  more important jobs (backfill);
* waiting raises a job's standing, so that a low-priority job is slow but never starved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controlplane.core.policies.common.explanations import Holders, of_higher
from controlplane.core.policies.common.fair_admission import (
    Pool,
    aged_weight,
    entry_order,
    pool_share,
)
from controlplane.core.policies.common.fair_fill import Fill, power_of_two_fill, progressive_fill
from controlplane.core.policies.common.kinds import cannot_start, idle_kinds
from controlplane.core.scheduling.pools import (
    capacity_by_kind,
    held_by_kind,
    held_kind,
    pool_choose,
    urgency_order,
)
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import Decision, Job, JobId, Share, Snapshot


def weighted_fair(snapshot: Snapshot, fill: Fill = progressive_fill) -> Decision:
    """Share each kind of accelerator among its jobs in proportion to their claims."""
    kinds = _pools_assign(snapshot, capacity_by_kind(snapshot))
    shared = _shared(snapshot, kinds, fill)
    elsewhere = _idle_kinds(snapshot, shared)
    if elsewhere:
        kinds |= elsewhere
        shared = _shared(snapshot, kinds, fill)
    shares: dict[JobId, Share] = {}
    reasons = {job.id: cannot_start(snapshot, job) for job in snapshot.jobs if job.id not in kinds}
    for pool, counts in shared:
        shares |= {job_id: Share(pool.kind, count) for job_id, count in counts.items()}
        reasons |= _explain(pool, counts)
    return Decision(shares, reasons)


def weighted_fair_power_of_two(snapshot: Snapshot) -> Decision:
    """Share each kind by weight, with the shares rounded to powers of two as in the paper."""
    return weighted_fair(snapshot, power_of_two_fill)


def _pools_assign(snapshot: Snapshot, capacity: Mapping[str, int]) -> dict[JobId, str]:
    """Put each job in one pool: the kind it holds, else where its share would be largest.

    What the jobs of a pool cannot use belongs to the share as well. Pools in which a job's minimum
    fits beside those of jobs that do not make way for it come first; a job that fits in none takes
    nothing from others.
    """
    held = held_by_kind(snapshot)
    pools: dict[JobId, str] = {}
    weights = dict.fromkeys(capacity, 0.0)
    unused = dict(capacity)
    ordered = urgency_order(snapshot.jobs)
    for job in ordered:
        kind = held_kind(held[job.id])
        if kind is not None and job.min_accelerators <= capacity[kind]:
            pools[job.id] = kind
            weights[kind] += job.share_weight
            unused[kind] -= job.max_accelerators
    left = dict(capacity)
    for job in sorted(ordered, key=lambda job: (-job.weight, job.id not in pools)):
        least = job.min_accelerators
        if job.id in pools:
            left[pools[job.id]] -= least
            continue
        room = {
            kind: min(
                max(total * job.share_weight / (weights[kind] + job.share_weight), unused[kind]),
                job.max_accelerators,
            )
            for kind, total in capacity.items()
            if total >= least
        }
        fitting = {kind: number for kind, number in room.items() if left[kind] >= least}
        kind = pool_choose(job, fitting, needed=0)
        if kind is not None:
            pools[job.id] = kind
            left[kind] -= least
            weights[kind] += job.share_weight
            unused[kind] -= job.max_accelerators
        elif (kind := pool_choose(job, room, needed=0)) is not None:
            pools[job.id] = kind
    return pools


def _shared(
    snapshot: Snapshot, kinds: Mapping[JobId, str], fill: Fill
) -> list[tuple[Pool, dict[JobId, int]]]:
    """Return the pool of each kind, and the accelerators of its jobs."""
    held = held_by_kind(snapshot)
    members: dict[str, list[Job]] = {kind: [] for kind in capacity_by_kind(snapshot)}
    for job in urgency_order(snapshot.jobs):
        if job.id in kinds:
            members[kinds[job.id]].append(job)
    pools = [
        Pool(
            kind=kind,
            capacity=total,
            now=snapshot.now,
            running=tuple(job for job in members[kind] if held[job.id][kind] > 0),
            queued=tuple(job for job in members[kind] if held[job.id][kind] == 0),
        )
        for kind, total in capacity_by_kind(snapshot).items()
    ]
    return [(pool, pool_share(pool, fill)) for pool in pools]


def _idle_kinds(
    snapshot: Snapshot, shared: Sequence[tuple[Pool, Mapping[JobId, int]]]
) -> dict[JobId, str]:
    idle = {pool.kind: pool.capacity - sum(counts.values()) for pool, counts in shared}
    waiting = (
        (job, pool.kind)
        for pool, counts in shared
        for job in entry_order(pool.queued, pool.now)
        if job.id not in counts
    )
    return idle_kinds(snapshot, idle, waiting)


def _explain(pool: Pool, counts: Mapping[JobId, int]) -> dict[JobId, Reason]:
    """Return the reason for each job's share, with numbers."""
    members = (*pool.running, *pool.queued)
    inside = [job for job in members if job.id in counts]
    # A job that is stopped now begins to wait.
    outside = [replace(job, pending_since=pool.now) for job in pool.running if job.id not in counts]
    outside += [job for job in pool.queued if job.id not in counts]
    total_weight = sum(job.share_weight for job in urgency_order(inside))
    given = [(job.weight, counts[job.id]) for job in inside]
    holders = Holders(pool.kind, pool.capacity, given)
    shares = {job.id: _explain_share(job, pool, counts, total_weight) for job in inside}
    return shares | {job.id: _explain_wait(job, holders, pool.now) for job in outside}


def _explain_share(
    job: Job, pool: Pool, counts: Mapping[JobId, int], total_weight: float
) -> Reason:
    count = counts[job.id]
    bound = None
    if count == job.max_accelerators:
        bound = reason("weighted_most")
    elif count == job.min_accelerators:
        bound = reason("weighted_least")
    return reason(
        "weighted_share",
        count=count,
        capacity=pool.capacity,
        kind=pool.kind,
        bound=bound,
        weight=job.share_weight,
        total_weight=total_weight,
        running=len(counts),
    )


def _explain_wait(job: Job, holders: Holders, now: float) -> Reason:
    aged, weight = aged_weight(job, now), job.weight
    raised = None
    if round(aged) > weight:
        waited_s = job.waited_s(now)
        raised = reason("weighted_aged", waited_s=waited_s, weight=weight, aged_weight=aged)
    return reason(
        "weighted_waits",
        needed=job.min_accelerators,
        kind=holders.kind,
        held=holders.held,
        capacity=holders.capacity,
        jobs=len(holders.given),
        higher=of_higher(holders.above(weight), holders.held),
        aged=raised,
    )
