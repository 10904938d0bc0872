"""Accelerators kept for jobs that lost trainers and hold less than their minimum.

In a snapshot such a job holds the accelerators kept for it, so a policy decides as if there had
been no loss: the rest of the job's accelerators does not go to others because the job is too small,
nor do the missing ones because no job holds them at the moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from controlplane.core.scheduling.pools import urgency_order
from controlplane.core.values.types import AcceleratorId, JobId, Snapshot


def replacements_kept(
    snapshot: Snapshot, lost: Mapping[JobId, AbstractSet[AcceleratorId]]
) -> Snapshot:
    """Return a snapshot in which jobs that lost trainers hold what brings them to their minimum.

    A job that cannot reach its minimum is kept nothing. The order of preference is: free
    accelerators, then those being released, then those that the job itself lost, then those on a
    node where the job runs. A job that holds nothing, and starts from its checkpoint, is kept only
    those that it lost: no accelerator can save state that is not in memory. Jobs of higher tiers,
    then of higher weight, then older ones choose first, and no accelerator is chosen twice.

    Args:
        snapshot: without kept accelerators; a job's held ones are those with its trainers.
        lost: job -> accelerators that its trainers have lost lately, schedulable or not.
    """
    if not lost:
        return snapshot
    by_id = {one.id: one for one in snapshot.accelerators}
    held = frozenset[AcceleratorId]().union(*snapshot.held.values())
    left = {
        one.id: one
        for one in snapshot.accelerators
        if one.id not in held and one.node_id not in snapshot.cordoned
    }
    kept: dict[JobId, tuple[AcceleratorId, ...]] = {}
    for job in urgency_order(job for job in snapshot.jobs if job.id in lost):
        row = snapshot.held.get(job.id, ())
        own = [by_id[one] for one in row if one in by_id]
        nodes, kinds = {one.node_id for one in own}, {one.kind for one in own}
        avoided = snapshot.excluded.get(job.id, frozenset())
        fitting = [
            one
            for one in left.values()
            if one.id not in avoided
            and job.accepts(one.kind)
            and (job.allow_mixed_kinds or not kinds or one.kind in kinds)
            and (row or one.id in lost[job.id])
        ]
        fitting.sort(
            key=lambda one: (
                one.id in snapshot.releasing,
                one.id not in lost[job.id],
                one.node_id not in nodes,
                one.node_id,
                one.index,
            )
        )
        missing = job.min_accelerators - len(row)
        if 0 < missing <= len(fitting):
            kept[job.id] = tuple(one.id for one in fitting[:missing])
            for one in fitting[:missing]:
                del left[one.id]
    whole = {job_id: snapshot.held.get(job_id, ()) + row for job_id, row in kept.items()}
    return replace(snapshot, held={**snapshot.held, **whole}, kept=kept)
