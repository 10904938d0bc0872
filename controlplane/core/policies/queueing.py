"""The two baselines: a queue in order of arrival, and a queue in order of priority.

Both give a job its full demand or nothing, never preempt, and block all jobs behind the first one
that does not fit now (VirtualFlow, MLSys 2022, section 6.4, as its baselines).
"""

from __future__ import annotations

from controlplane.core.policies.common.kinds import fastest_kind
from controlplane.core.policies.common.rates import largest_nodes, node_sizes
from controlplane.core.scheduling.pools import (
    arrival_order,
    capacity_by_kind,
    held_by_kind,
    held_kind,
    urgency_order,
)
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import Decision, Job, JobId, Share, Snapshot


def fifo(snapshot: Snapshot) -> Decision:
    """Serve jobs in order of arrival, each with its full demand."""
    return _serve(snapshot, arrival_order(snapshot.jobs), reason("queue_earlier"))


def priority(snapshot: Snapshot) -> Decision:
    """Serve jobs in order of priority, each with its full demand."""
    return _serve(snapshot, urgency_order(snapshot.jobs), reason("queue_higher"))


def _serve(snapshot: Snapshot, queue: list[Job], ahead: Reason) -> Decision:
    capacity = capacity_by_kind(snapshot)
    free = dict(capacity)
    per_node = largest_nodes(snapshot)
    shares: dict[JobId, Share] = {}
    reasons: dict[JobId, Reason] = {}
    for job_id, counts in held_by_kind(snapshot).items():
        kind = held_kind(counts)
        if kind is not None:
            shares[job_id] = Share(kind, counts[kind])
            free[kind] -= counts[kind]
    for job in queue:
        if job.id in shares and shares[job.id].count < job.min_accelerators:
            # Its node left the cluster. All or nothing: the job queues again for its demand.
            lost = shares.pop(job.id)
            free[lost.kind] += lost.count
    blocker: Job | None = None
    for position, job in enumerate(job for job in queue if job.id not in shares):
        demands = {kind: _demand(job, capacity[kind]) for kind in free if job.accepts(kind)}
        fitting = {kind: count for kind, count in demands.items() if count <= free[kind]}
        kind = fastest_kind(job, fitting, free, per_node)
        if blocker is None and kind is not None:
            shares[job.id] = Share(kind, fitting[kind])
            free[kind] -= fitting[kind]
            continue
        reasons[job.id] = _waiting(job, capacity, free, position, blocker, ahead)
        blocker = blocker or job
    cluster = {kind: sum(sizes) for kind, sizes in node_sizes(snapshot).items()}
    for job in queue:
        if job.id in shares:
            share = shares[job.id]
            reasons[job.id] = _holding(share, _demand(job, cluster[share.kind]))
    return Decision(shares, reasons)


def _demand(job: Job, capacity: int) -> int:
    """Return the job's demand of a pool: all that it can use, at most the whole pool."""
    return max(min(job.max_accelerators, capacity), job.min_accelerators)


def _holding(share: Share, demand: int) -> Reason:
    if share.count == demand:
        return reason("queue_holds", count=share.count, kind=share.kind)
    return reason("queue_keeps", count=share.count, kind=share.kind, demand=demand)


def _waiting(
    job: Job,
    capacity: dict[str, int],
    free: dict[str, int],
    position: int,
    blocker: Job | None,
    ahead: Reason,
) -> Reason:
    rooms = {kind: room for kind, room in free.items() if job.accepts(kind)}
    have = tuple(
        reason("free", free=room, capacity=capacity[kind], kind=kind)
        for kind, room in rooms.items()
    )
    if blocker is not None:
        return reason(
            "queue_behind",
            place=position + 1,
            blocker=blocker.id,
            ahead=ahead,
            have=have,
        )
    wanted = min(_demand(job, capacity[kind]) for kind in rooms)
    return reason("queue_next", accelerators=wanted, have=have)
