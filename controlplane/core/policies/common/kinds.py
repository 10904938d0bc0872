"""The kind of accelerator of each job, for policies that share each kind separately."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controlplane.core.policies.common.rates import largest_nodes, packed_rates
from controlplane.core.scheduling.pools import (
    arrival_order,
    capacity_by_kind,
    held_by_kind,
    held_kind,
    kinds_able,
    pool_choose,
    room_of,
)
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import Job, JobId, Snapshot


def kinds_assign(snapshot: Snapshot) -> dict[JobId, str]:
    """Assign each job the kind that it holds, else that on which its fair share is fastest.

    Jobs are assigned in order of arrival; a job's share is in proportion to the claims assigned so
    far, and any part of the share counts if it is faster. Kinds that the minima assigned so far
    leave room for the job's come first; one that finds no room takes none. Jobs whose minimum
    exceeds every accepted kind are left out.
    """
    capacity = capacity_by_kind(snapshot)
    held = held_by_kind(snapshot)
    per_node = largest_nodes(snapshot)
    kinds: dict[JobId, str] = {}
    weights, room = dict.fromkeys(capacity, 0.0), dict(capacity)
    for job in arrival_order(snapshot.jobs):
        kind = held_kind(held[job.id])
        if kind is not None and job.min_accelerators <= capacity[kind] and job.accepts(kind):
            kinds[job.id] = kind
            weights[kind] += job.share_weight
            room[kind] -= job.min_accelerators
    for job in arrival_order(job for job in snapshot.jobs if job.id not in kinds):
        speeds: dict[str, float] = {}
        for kind, total in kinds_able(job, capacity).items():
            share = total * job.share_weight / (weights[kind] + job.share_weight)
            count = max(min(round(share), job.max_accelerators), job.min_accelerators)
            rates = packed_rates(job, kind, count, per_node[kind])
            # A job need not use all of its share: fewer accelerators may be faster. Valued like
            # this, a larger share is never worse; otherwise jobs would keep following each
            # other to kinds.
            speeds[kind] = float(rates[job.min_accelerators :].max())
        if speeds:
            least = job.min_accelerators
            full = {kind for kind, speed in speeds.items() if room[kind] < least or speed <= 0.0}
            chosen = min(speeds, key=lambda kind: (kind in full, -speeds[kind], kind))
            kinds[job.id] = chosen
            weights[chosen] += job.share_weight
            if room[chosen] >= least:
                room[chosen] -= least
    return kinds


def idle_kinds(
    snapshot: Snapshot, idle: Mapping[str, int], waiting: Iterable[tuple[Job, str]]
) -> dict[JobId, str]:
    """Return other kinds for waiting jobs, whose minima fit into what stays idle of these.

    Args:
        idle: kind -> accelerators that a decision gives nobody.
        waiting: jobs that it gives nothing, each with the kind that it was assigned.
    """
    left, per_node = dict(idle), largest_nodes(snapshot)
    found: dict[JobId, str] = {}
    for job, assigned in waiting:
        rooms = {
            kind: number
            for kind, number in left.items()
            if kind != assigned
            and packed_rates(job, kind, number, per_node[kind])[job.min_accelerators :].any()
        }
        kind = pool_choose(job, rooms, needed=job.min_accelerators)
        if kind is not None:
            found[job.id] = kind
            left[kind] -= job.min_accelerators
    return found


def fastest_kind(
    job: Job, demands: Mapping[str, int], free: Mapping[str, int], per_node: Mapping[str, int]
) -> str | None:
    """Choose the kind on which a job's demand is fastest, of equal ones that with the most free.

    Args:
        job: the job; where its speed is unknown, all kinds are equal.
        demands: kind -> accelerators, for kinds that have them free.
        free: kind -> free accelerators.
        per_node: kind -> the most accelerators on one node.
    """
    if len(demands) <= 1:
        return next(iter(demands), None)
    speeds = dict.fromkeys(demands, 0.0)
    if job.performance is not None:
        for kind, count in demands.items():
            speeds[kind] = float(packed_rates(job, kind, count, per_node[kind])[count])
    return min(demands, key=lambda kind: (-speeds[kind], -free[kind], kind))


def cannot_start(snapshot: Snapshot, job: Job) -> Reason:
    """Explain that no accepted kind has a job's minimum."""
    most = room_of(job, capacity_by_kind(snapshot))
    return reason("cannot_start", accelerators=job.min_accelerators, most=most)
