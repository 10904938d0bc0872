"""Cordoned nodes: jobs there keep what they hold, and nobody is given more.

A policy sees the cluster without the accelerators of cordoned nodes. A job with a trainer on such a
node is not shown to it either, nor are the job's other accelerators: it would have to take a part
of the job into account that it must not touch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from controlplane.core.scheduling.pools import (
    all_held_by_kind,
    can_start,
    capacity_by_kind,
    room_of,
)
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import AcceleratorId, JobId, Snapshot


@dataclass(frozen=True, slots=True)
class CordonSplit:
    """A snapshot, divided into what a policy decides and what stays as it is.

    Attributes:
        open: the snapshot for the policy.
        staying: accelerators of the jobs that are not to be changed.
        reasons: the reason of each of these jobs, and of jobs for which the accelerators in `open`
            are too few.
    """

    open: Snapshot
    staying: Mapping[JobId, tuple[AcceleratorId, ...]]
    reasons: Mapping[JobId, Reason]


def capacity_uncordoned(snapshot: Snapshot) -> dict[str, int]:
    """Count the accelerators of each kind outside cordoned nodes."""
    rest = tuple(one for one in snapshot.accelerators if one.node_id not in snapshot.cordoned)
    return capacity_by_kind(replace(snapshot, accelerators=rest))


def cordon_split(snapshot: Snapshot) -> CordonSplit:
    """Divide a snapshot at its cordons.

    A job stays if it holds an accelerator on a cordoned node and can run on what it holds: at least
    its minimum, none of it on a node that jobs have to leave. Other jobs leave cordoned nodes.
    """
    if not snapshot.cordoned:
        return CordonSplit(snapshot, {}, {})
    cordoned = {one.id for one in snapshot.accelerators if one.node_id in snapshot.cordoned}
    schedulable = {one.id for one in snapshot.accelerators}
    least = {job.id: job.min_accelerators for job in snapshot.jobs}
    staying = {
        job_id: held
        for job_id, held in snapshot.held.items()
        if job_id in least
        and len(held) >= least[job_id]
        and not cordoned.isdisjoint(held)
        and schedulable.issuperset(held)
    }
    closed = cordoned.union(*staying.values())
    counts = all_held_by_kind(snapshot)
    split = replace(
        snapshot,
        accelerators=tuple(one for one in snapshot.accelerators if one.id not in closed),
        jobs=tuple(job for job in snapshot.jobs if job.id not in staying),
        cordoned=frozenset(),
        projects=snapshot.without_given({job_id: counts[job_id] for job_id in staying}),
    )
    reasons = {
        job_id: reason("cordoned_all", accelerators=len(held))
        if cordoned.issuperset(held)
        else reason("cordoned", accelerators=len(held), count=len(cordoned.intersection(held)))
        for job_id, held in staying.items()
    }
    capacity, in_reach = capacity_uncordoned(snapshot), capacity_by_kind(split)
    beside = {one.id: one.kind for one in snapshot.accelerators if one.id not in cordoned}
    for job in split.jobs:
        if can_start(job, in_reach):
            continue
        needed = job.min_accelerators
        if can_start(job, capacity):
            in_the_way = (
                any(job.accepts(beside[one]) for one in row if one in beside)
                for row in staying.values()
            )
            reasons[job.id] = reason("cordon_waits", accelerators=needed, jobs=sum(in_the_way))
        else:
            most = room_of(job, capacity)
            reasons[job.id] = reason("cannot_start", accelerators=needed, most=most)
    return CordonSplit(split, staying, reasons)
