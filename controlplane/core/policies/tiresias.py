"""Tiresias: two queues by attained service, first come first served within each (NSDI 2019).

Every job has its full demand or nothing. A job starts in the first queue; after enough accelerator
time it goes to the end of the second one, which is served after the first, and stays there. So
short jobs need not wait for long ones, without any knowledge of job lengths.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from controlplane.core.policies.common.kinds import cannot_start, fastest_kind
from controlplane.core.policies.common.rates import largest_nodes
from controlplane.core.scheduling.pools import (
    arrival_order,
    capacity_by_kind,
    held_by_kind,
    held_kind,
    kinds_able,
)
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import Decision, Job, JobId, Share, Snapshot

#: Accelerator-seconds after which a job goes to the second queue: 16 hours.
THRESHOLD_S = 57_600.0


@dataclass(frozen=True, slots=True)
class SecondQueue:
    """Jobs of the second queue in the order in which they came to it."""

    jobs: tuple[JobId, ...]

    def joined(self, other: SecondQueue, jobs: Collection[JobId]) -> SecondQueue:
        """Append those of `jobs` that are in another second queue."""
        come = (one for one in other.jobs if one in jobs and one not in self.jobs)
        return SecondQueue((*self.jobs, *come))


@dataclass(frozen=True, slots=True)
class _Place:
    """A job's queue (1 or 2) and the number of jobs ahead of it there."""

    job: Job
    queue: int
    ahead: int


def tiresias(snapshot: Snapshot) -> Decision:
    """Serve jobs with little accelerator time first, each with its full demand."""
    capacity = capacity_by_kind(snapshot)
    held = held_by_kind(snapshot)
    free = dict(capacity)
    per_node = largest_nodes(snapshot)
    shares: dict[JobId, Share] = {}
    reasons: dict[JobId, Reason] = {}
    second = _second_queue(snapshot)
    for place in _line(snapshot, second):
        job = place.job
        demands = _demands(job, capacity)
        if not demands:
            reasons[job.id] = cannot_start(snapshot, job)
            continue
        own = held_kind(held[job.id])
        fitting = {kind: count for kind, count in demands.items() if count <= free[kind]}
        kind = own if own in fitting else fastest_kind(job, fitting, free, per_node)
        if kind is None:
            reasons[job.id] = _waiting(place, free, capacity)
            continue
        shares[job.id] = Share(kind, demands[kind])
        free[kind] -= demands[kind]
        reasons[job.id] = reason(
            "tiresias_holds",
            count=demands[kind],
            capacity=capacity[kind],
            kind=kind,
            place=_place_reason(place),
        )
    return Decision(shares, reasons, carried=second)


def _demands(job: Job, capacity: Mapping[str, int]) -> dict[str, int]:
    """Return the full demand of a job on each kind that can satisfy it."""
    able = kinds_able(job, capacity)
    return {kind: min(job.max_accelerators, total) for kind, total in able.items()}


def _second_queue(snapshot: Snapshot) -> SecondQueue:
    """Carry over the second queue and append jobs past the threshold, in order of arrival."""
    before = snapshot.carried.jobs if isinstance(snapshot.carried, SecondQueue) else ()
    present = {job.id for job in snapshot.jobs}
    kept = tuple(job_id for job_id in before if job_id in present)
    come = tuple(
        job.id
        for job in arrival_order(snapshot.jobs)
        if job.id not in kept and job.attained_accelerator_s >= THRESHOLD_S
    )
    return SecondQueue(kept + come)


def _line(snapshot: Snapshot, second: SecondQueue) -> list[_Place]:
    """List all jobs in the order in which they are served."""
    by_id = {job.id: job for job in snapshot.jobs}
    demoted = set(second.jobs)
    first = [job for job in arrival_order(snapshot.jobs) if job.id not in demoted]
    return [
        *(_Place(job, 1, ahead) for ahead, job in enumerate(first)),
        *(_Place(by_id[job_id], 2, ahead) for ahead, job_id in enumerate(second.jobs)),
    ]


def _place_reason(place: _Place) -> Reason:
    hours = place.job.attained_accelerator_s / 3600.0
    name = "first" if place.queue == 1 else "second"
    return reason(
        "tiresias_place",
        place=place.ahead + 1,
        queue=name,
        hours=hours,
        threshold=THRESHOLD_S / 3600.0,
    )


def _waiting(place: _Place, free: Mapping[str, int], capacity: Mapping[str, int]) -> Reason:
    job = place.job
    kinds = [kind for kind in capacity if job.accepts(kind)]
    have = tuple(reason("left", free=free[k], capacity=capacity[k], kind=k) for k in kinds)
    needed = min(max(min(job.max_accelerators, capacity[k]), job.min_accelerators) for k in kinds)
    return reason("tiresias_waits", accelerators=needed, have=have, place=_place_reason(place))
