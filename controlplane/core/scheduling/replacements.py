"""Accelerators kept for jobs that lost trainers and hold less than their minimum.

In a snapshot such a job holds the accelerators kept for it, so a policy decides as if there had
been no loss: the rest of the job's accelerators does not go to others because the job is too small,
nor do the missing ones because no job holds them at the moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from controlplane.core.scheduling.pools import urgency_order
from controlplane.core.values.types import Accelerator, AcceleratorId, Job, JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortJob:
    """A job that lost trainers and holds less than its minimum.

    Attributes:
        held: accelerators still held, and with them the job's state; empty: it starts from its
            checkpoint.
        lost: accelerators that its trainers have lost lately, schedulable or not.
    """

    job: Job
    held: tuple[AcceleratorId, ...]
    lost: frozenset[AcceleratorId]


def replacements(
    short: Collection[ShortJob],
    accelerators: Iterable[Accelerator],
    *,
    held: AbstractSet[AcceleratorId],
    releasing: AbstractSet[AcceleratorId],
    excluded: Mapping[JobId, AbstractSet[AcceleratorId]],
) -> dict[JobId, tuple[AcceleratorId, ...]]:
    """Choose accelerators that bring each job to its minimum; leave out jobs that cannot reach it.

    The order of preference is: free accelerators, then those being released, then those that the
    job itself lost, then those on a node where the job runs. A job that holds nothing is kept only
    those that it lost: no accelerator can save state that is not in memory. Jobs of higher tiers,
    then of higher weight, then older ones choose first, and no accelerator is chosen twice.

    Args:
        accelerators: accelerators that may be given out.
        held: accelerators held by any job or on cordoned nodes; none of them is chosen.
        releasing: accelerators that cannot be given out yet because a former trainer has not gone.
        excluded: accelerators on which a job's trainers did not come up lately.
    """
    by_id = {one.id: one for one in accelerators}
    left = {one.id: one for one in by_id.values() if one.id not in held}
    kept: dict[JobId, tuple[AcceleratorId, ...]] = {}
    order = {job.id: place for place, job in enumerate(urgency_order(row.job for row in short))}
    for row in sorted(short, key=lambda row: order[row.job.id]):
        own = [by_id[one] for one in row.held if one in by_id]
        nodes, kinds = {one.node_id for one in own}, {one.kind for one in own}
        avoided = excluded.get(row.job.id, frozenset())
        fitting = [
            one
            for one in left.values()
            if one.id not in avoided
            and row.job.accepts(one.kind)
            and (row.job.allow_mixed_kinds or not kinds or one.kind in kinds)
            and (row.held or one.id in row.lost)
        ]
        fitting.sort(
            key=lambda one: (
                one.id in releasing,
                one.id not in row.lost,
                one.node_id not in nodes,
                one.node_id,
                one.index,
            )
        )
        missing = row.job.min_accelerators - len(row.held)
        if 0 < missing <= len(fitting):
            kept[row.job.id] = tuple(one.id for one in fitting[:missing])
            for one in fitting[:missing]:
                del left[one.id]
    return kept
