"""Accelerators that are kept for jobs that lost trainers and hold less than their minimum.

A policy sees such a job as holding what is kept for it, so it decides as if nothing had been lost:
neither does it give the rest of the job's accelerators to others because the job is too small, nor
the missing ones because nobody has them just now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from controlplane.core.values.types import Accelerator, AcceleratorId, Job, JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortJob:
    """A job that lost trainers and holds less than its minimum.

    Attributes:
        held: what it holds still, and with it its state; empty: it starts from its checkpoint.
        lost: accelerators that its trainers have lost lately, schedulable or not.
    """

    job: Job
    held: tuple[AcceleratorId, ...]
    lost: frozenset[AcceleratorId]


def replacements(
    short: Iterable[ShortJob],
    accelerators: Iterable[Accelerator],
    *,
    held: AbstractSet[AcceleratorId],
    releasing: AbstractSet[AcceleratorId],
    excluded: Mapping[JobId, AbstractSet[AcceleratorId]],
) -> dict[JobId, tuple[AcceleratorId, ...]]:
    """Choose what brings each job to its minimum; a job that cannot get there is left out.

    What is free comes before what is being freed, then what the job itself lost, then what is on a
    node where it is. A job that holds nothing is kept what it lost and nothing else: it has no
    state in memory that an accelerator could save. Jobs of higher weight, then older ones, choose
    first, and no two the same.

    Args:
        accelerators: those that may be given out.
        held: what any job holds; none of it is chosen.
        releasing: what nobody may be given yet because a former trainer has not gone.
        excluded: accelerators on which a job's trainers did not come up lately.
    """
    by_id = {one.id: one for one in accelerators}
    left = {one.id: one for one in by_id.values() if one.id not in held}
    kept: dict[JobId, tuple[AcceleratorId, ...]] = {}
    for row in sorted(short, key=lambda row: (-row.job.weight, row.job.submitted_at, row.job.id)):
        own = [by_id[one] for one in row.held if one in by_id]
        nodes, kinds = {one.node_id for one in own}, {one.kind for one in own}
        avoided = excluded.get(row.job.id, frozenset())
        fitting = [
            one
            for one in left.values()
            if one.id not in avoided
            and row.job.accepts(one.kind)
            and (row.job.mixes_kinds or not kinds or one.kind in kinds)
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
