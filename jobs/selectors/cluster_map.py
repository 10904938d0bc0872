"""Accelerators by node and who holds them; read-only.

Every user sees that an accelerator is held, but its job only if they may see the job.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.values.lifecycle import OPEN_PHASES, GenerationPhase, JobStatus, NodeStatus
from jobs.models import (
    Accelerator,
    Allocation,
    Generation,
    Job,
    Node,
    ReadingBin,
)
from jobs.selectors.access import (
    Person,
    is_admin,
    jobs_visible_to,
    node_for,
)
from jobs.selectors.readings import IdleHeld, use_now

MAX_ACCELERATORS = 4000

#: Times of an allocation that its job does not keep.
LEAVING_TIMES = ("stop_requested_at", "release_requested_at", "left_at", "finished_at")


@dataclass(frozen=True, slots=True)
class AcceleratorCell:
    """One accelerator on the cluster map.

    Attributes:
        job: the holder, if the viewer may see it; `is_held` is true in any case.
        state: starting, training or leaving; "in use" for another person's job; free, or the
            status of a node that takes no new work.
        virtual_nodes: virtual nodes of its trainer, ascending.
        reading: its use in the last minute, if known; of the cells of `with_use`.
        idle: set if a job holds it and has hardly used it; of the cells of `with_use`.
    """

    accelerator: Accelerator
    is_held: bool = False
    job: Job | None = None
    slot: int | None = None
    state: str = "free"
    virtual_nodes: tuple[int, ...] = ()
    reading: ReadingBin | None = None
    idle: IdleHeld | None = None


@dataclass(frozen=True, slots=True)
class NodeMap:
    """A node and its accelerators, in order."""

    node: Node
    cells: Sequence[AcceleratorCell]

    @property
    def num_held(self) -> int:
        """Number of accelerators held by jobs."""
        return sum(cell.is_held for cell in self.cells)

    @property
    def jobs(self) -> list[Job]:
        """Jobs that hold accelerators of the node and that the viewer may see."""
        return list({cell.job.pk: cell.job for cell in self.cells if cell.job}.values())


def cluster_map(
    person: Person, job_id: int | None = None, node_id: int | None = None
) -> list[NodeMap]:
    """Read every node with its accelerators and their holders; or those of one job, or one node."""
    accelerators = Accelerator.objects.filter(node__removed_at=None).select_related("node")
    allocations = Allocation.objects.filter(released_at=None).select_related("job")
    if node_id is not None:
        accelerators = accelerators.filter(node_id=node_id)
        allocations = allocations.filter(accelerator__node_id=node_id)
    if job_id is not None:
        allocations = allocations.filter(job_id=job_id)
        accelerators = accelerators.filter(pk__in=allocations.values("accelerator_id"))
    else:
        accelerators = accelerators.filter(is_present=True)
    holders = {allocation.accelerator_id: allocation for allocation in allocations}
    slots = _virtual_nodes_by_slot({allocation.job_id for allocation in holders.values()})
    held_by = {allocation.job_id for allocation in holders.values()}
    visible = jobs_visible_to(person).filter(pk__in=held_by)
    seen = None if is_admin(person) else set(visible.values_list("pk", flat=True))
    cells: dict[Node, list[AcceleratorCell]] = {}
    for accelerator in accelerators.order_by("node__name", "index")[:MAX_ACCELERATORS]:
        cell = _cell(accelerator, holders.get(accelerator.pk), slots, seen)
        cells.setdefault(accelerator.node, []).append(cell)
    return [NodeMap(node_for(person, node), of_node) for node, of_node in cells.items()]


def with_use(maps: Iterable[NodeMap], now: datetime.datetime) -> list[NodeMap]:
    """Add the present use to the cells of a map, in three queries."""
    maps = list(maps)
    use = use_now([cell.accelerator.pk for row in maps for cell in row.cells], now)
    return [
        NodeMap(
            row.node,
            [
                dataclasses.replace(
                    cell,
                    reading=use.readings.get(cell.accelerator.pk),
                    idle=use.idle.get(cell.accelerator.pk),
                )
                for cell in row.cells
            ],
        )
        for row in maps
    ]


def _cell(
    accelerator: Accelerator,
    allocation: Allocation | None,
    slots: Mapping[tuple[int, int], tuple[int, ...]],
    seen: Collection[int] | None,
) -> AcceleratorCell:
    if allocation is None:
        status = accelerator.node.shown_status
        is_free = status is NodeStatus.ONLINE
        return AcceleratorCell(accelerator, state="free" if is_free else status.value)
    if not (seen is None or allocation.job_id in seen):
        return AcceleratorCell(accelerator, is_held=True, state="in use")
    return AcceleratorCell(
        accelerator,
        is_held=True,
        job=allocation.job,
        slot=allocation.slot,
        state=_allocation_state(allocation),
        virtual_nodes=slots.get((allocation.job_id, allocation.slot), ()),
    )


def _allocation_state(allocation: Allocation) -> str:
    if any(getattr(allocation, name) for name in LEAVING_TIMES):
        return "leaving"
    is_starting = allocation.joined_at is None or allocation.job.status == JobStatus.STARTING
    return "starting" if is_starting else "training"


def _virtual_nodes_by_slot(job_ids: Iterable[int]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Map (job, slot) to virtual nodes; the active generation takes precedence."""
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    generations = Generation.objects.filter(job_id__in=list(job_ids), phase__in=OPEN_PHASES)
    for generation in sorted(
        generations, key=lambda g: (g.phase != GenerationPhase.ACTIVE, g.number)
    ):
        for member in generation.membership.members:
            key = (generation.job_id, member.slot)
            found.setdefault(key, tuple(member.virtual_nodes))
    return found
