"""The two baselines: a queue in order of arrival, and a queue in order of priority.

Both give a job its full demand or nothing, never take anything back, and let the first job that
does not fit hold up all behind it (VirtualFlow, MLSys 2022, section 6.4, as its baselines).
"""

from __future__ import annotations

from controlplane.core.pools import (
    arrival_order,
    capacity_by_kind,
    held_by_kind,
    held_kind,
    pool_choose,
    urgency_order,
)
from controlplane.core.types import Decision, Job, JobId, Share, Snapshot


def fifo(snapshot: Snapshot) -> Decision:
    """Serve jobs in order of arrival, each with its full demand."""
    return _serve(snapshot, arrival_order(snapshot.jobs), "arrived earlier")


def priority(snapshot: Snapshot) -> Decision:
    """Serve jobs in order of priority, each with its full demand."""
    return _serve(snapshot, urgency_order(snapshot.jobs), "of higher or equal priority")


def _serve(snapshot: Snapshot, queue: list[Job], ahead: str) -> Decision:
    capacity = capacity_by_kind(snapshot)
    free = dict(capacity)
    shares: dict[JobId, Share] = {}
    reasons: dict[JobId, str] = {}
    for job_id, counts in held_by_kind(snapshot).items():
        kind = held_kind(counts)
        if kind is not None:
            shares[job_id] = Share(kind, counts[kind])
            free[kind] -= counts[kind]
    for job in queue:
        if job.id in shares and shares[job.id].count < job.min_accelerators:
            # Its node went away beneath it. All or nothing: it queues again for its demand.
            lost = shares.pop(job.id)
            free[lost.kind] += lost.count
    blocker: Job | None = None
    for position, job in enumerate(job for job in queue if job.id not in shares):
        rooms = {kind: room for kind, room in free.items() if room >= _demand(job, capacity[kind])}
        kind = pool_choose(job, rooms, job.min_accelerators)
        if blocker is None and kind is not None:
            shares[job.id] = Share(kind, _demand(job, capacity[kind]))
            free[kind] -= shares[job.id].count
            continue
        reasons[job.id] = _waiting(job, capacity, free, position, blocker, ahead)
        blocker = blocker or job
    for job_id, share in shares.items():
        reasons[job_id] = f"Holds its full demand of {share.count} of kind {share.kind}."
    return Decision(shares, reasons)


def _demand(job: Job, capacity: int) -> int:
    """Give what the job asks of a pool: all it can use, at most the whole pool."""
    return max(min(job.max_accelerators, capacity), job.min_accelerators)


def _waiting(
    job: Job,
    capacity: dict[str, int],
    free: dict[str, int],
    position: int,
    blocker: Job | None,
    ahead: str,
) -> str:
    rooms = {kind: room for kind, room in free.items() if job.accepts(kind)}
    if max((capacity[kind] for kind in rooms), default=0) < job.min_accelerators:
        return (
            f"Cannot start: needs {job.min_accelerators} accelerators of one accepted kind, "
            f"the cluster has {max((capacity[kind] for kind in rooms), default=0)}."
        )
    have = ", ".join(f"{room} of {capacity[kind]} {kind} free" for kind, room in rooms.items())
    if blocker is not None:
        return f"Waits in place {position + 1} behind job {blocker.id}, which {ahead}; {have}."
    wanted = min(_demand(job, capacity[kind]) for kind in rooms)
    return f"Waits for {wanted} accelerators at once, next in the queue; {have}."
