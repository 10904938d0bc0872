"""Accelerators of each share: keep a job's own ones, pack nodes, leave large gaps whole."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from controlplane.core.scheduling.consolidation import repack
from controlplane.core.scheduling.free_capacity import FreeCapacity, NodeId, take_packed
from controlplane.core.values.types import (
    Accelerator,
    AcceleratorId,
    Allocation,
    Decision,
    Job,
    JobId,
    Share,
    Snapshot,
)


def place(snapshot: Snapshot, decision: Decision, *, is_repacked: bool = True) -> Allocation:
    """Assign accelerators to every share.

    A job keeps its accelerators of the share's kinds, in slot order; when it holds too many of one
    kind it releases those on the nodes where it has fewest, never its first (that trainer leads the
    job). Missing ones are taken from unheld accelerators, those that are free now first, then from
    nodes where the job already is, then from the node with the least sufficient room. Extra
    accelerators of other kinds are placed last. Accelerators excluded for a job are given to it
    only when there are no others; the plan leaves them out then.

    A share with places of its own (`Share.by_node`) is served before all others, exactly there.
    Finally, where `is_repacked`, jobs that fit on fewer nodes are moved, where that pays
    (`consolidation`).

    Raises:
        ValueError: the shares of a kind exceed its capacity in the cluster or on a node.
    """
    by_id = {accelerator.id: accelerator for accelerator in snapshot.accelerators}
    held = {
        job.id: [by_id[one] for one in snapshot.held.get(job.id, ()) if one in by_id]
        for job in snapshot.jobs
        if job.id in decision.shares
    }
    kept, added = _placed_by_node(snapshot, decision, held)
    taken = {one.id for row in added.values() for one in row}
    for job_id, row in held.items():
        kept[job_id] |= _kept(row, decision.shares[job_id], taken)
    for ids in kept.values():
        taken |= ids
    free, busy = _rooms(snapshot, taken)
    _fill(snapshot, decision, held, kept, added, free, busy)
    placed = {
        job_id: [*(one for one in row if one.id in kept[job_id]), *added[job_id]]
        for job_id, row in held.items()
    }
    moved, reasons = repack(snapshot, decision, placed, free) if is_repacked else ({}, {})
    chosen = {job_id: tuple(one.id for one in row) for job_id, row in (placed | moved).items()}
    return Allocation(
        {job_id: row for job_id, row in chosen.items() if row},
        {**decision.reasons, **reasons},
    )


def _fill(
    snapshot: Snapshot,
    decision: Decision,
    held: Mapping[JobId, list[Accelerator]],
    kept: Mapping[JobId, set[AcceleratorId]],
    added: Mapping[JobId, list[Accelerator]],
    free: Mapping[str, FreeCapacity],
    busy: Mapping[str, FreeCapacity],
) -> None:
    """Take the accelerators that every share still lacks, and record them in `added`."""
    for job, kind, count in _placement_order(snapshot, decision):
        own = [one for one in held[job.id] if one.id in kept[job.id]] + added[job.id]
        needed = count - sum(one.kind == kind for one in own)
        if needed <= 0:
            continue
        nodes = {one.node_id for one in own}
        excluded = snapshot.excluded.get(job.id, frozenset())
        found = _take(free[kind], busy[kind], needed, nodes, excluded)
        if len(found) < needed:
            raise ValueError(
                f"job {job.id} needs {needed} more of kind {kind}, {len(found)} are left"
            )
        added[job.id].extend(found)


def _placed_by_node(
    snapshot: Snapshot, decision: Decision, held: Mapping[JobId, list[Accelerator]]
) -> tuple[dict[JobId, set[AcceleratorId]], dict[JobId, list[Accelerator]]]:
    """Serve the shares with `by_node`: accelerators kept and accelerators added, by job."""
    kept: dict[JobId, set[AcceleratorId]] = {job_id: set() for job_id in held}
    added: dict[JobId, list[Accelerator]] = {job_id: [] for job_id in held}
    jobs = [job for job in snapshot.jobs if job.id in held and decision.shares[job.id].by_node]
    if not jobs:
        return kept, added
    for job in jobs:
        share, left = decision.shares[job.id], dict(decision.shares[job.id].by_node)
        for one in held[job.id]:
            if one.kind == share.kind and left.get(one.node_id, 0) > 0:
                left[one.node_id] -= 1
                kept[job.id].add(one.id)
    rooms = _rooms_by_node(snapshot, decision, kept)
    for job in sorted(jobs, key=lambda job: (job.tier.rank, job.submitted_at, job.id)):
        share = decision.shares[job.id]
        excluded = snapshot.excluded.get(job.id, frozenset())
        here = Counter(one.node_id for one in held[job.id] if one.id in kept[job.id])
        for node, count in sorted(share.by_node.items()):
            room = rooms[node, share.kind]
            needed = count - here[node]
            if needed > len(room):
                raise ValueError(
                    f"job {job.id} needs {needed} more of kind {share.kind} on node {node}, "
                    f"{len(room)} are left"
                )
            if excluded:
                room.sort(key=lambda one: one.id in excluded)
            added[job.id] += room[:needed]
            del room[:needed]
    return kept, added


def _rooms_by_node(
    snapshot: Snapshot, decision: Decision, kept: Mapping[JobId, set[AcceleratorId]]
) -> dict[tuple[NodeId, str], list[Accelerator]]:
    """List unkept accelerators by (node, kind): free ones first, last those others could keep."""
    gone = {one for ids in kept.values() for one in ids}
    urgency = dict.fromkeys(snapshot.releasing, 1)
    for job_id, row in snapshot.held.items():
        share = decision.shares.get(job_id)
        urgency |= dict.fromkeys(row, 1 if share is None or share.by_node else 2)
    rooms: dict[tuple[NodeId, str], list[Accelerator]] = defaultdict(list)
    left = [one for one in snapshot.accelerators if one.id not in gone]
    for one in sorted(left, key=lambda one: (urgency.get(one.id, 0), one.index)):
        rooms[one.node_id, one.kind].append(one)
    return rooms


def _rooms(
    snapshot: Snapshot, taken: set[AcceleratorId]
) -> tuple[dict[str, FreeCapacity], dict[str, FreeCapacity]]:
    """Divide unassigned accelerators into free ones and ones in use, by kind."""
    in_use = snapshot.in_use
    free: dict[str, list[Accelerator]] = defaultdict(list)
    busy: dict[str, list[Accelerator]] = defaultdict(list)
    for one in snapshot.accelerators:
        if one.id not in taken:
            (busy if one.id in in_use else free)[one.kind].append(one)
    kinds = {one.kind for one in snapshot.accelerators}
    return (
        defaultdict(FreeCapacity, {kind: FreeCapacity(free[kind]) for kind in kinds}),
        defaultdict(FreeCapacity, {kind: FreeCapacity(busy[kind]) for kind in kinds}),
    )


def _kept(
    held: Iterable[Accelerator], share: Share, taken: set[AcceleratorId]
) -> set[AcceleratorId]:
    """Choose the accelerators that a job keeps, by kind, without its own kind if placed by node."""
    kept: set[AcceleratorId] = set()
    for kind, count in (share.extra if share.by_node else share.by_kind).items():
        kept |= _keep([one for one in held if one.kind == kind and one.id not in taken], count)
    return kept


def _keep(held: list[Accelerator], count: int) -> set[AcceleratorId]:
    if len(held) <= count:
        return {accelerator.id for accelerator in held}
    if count == 0:
        return set()
    per_node = Counter(accelerator.node_id for accelerator in held)
    leader_node = held[0].node_id
    order = sorted(
        range(1, len(held)),
        key=lambda i: (held[i].node_id != leader_node, -per_node[held[i].node_id], i),
    )
    return {held[i].id for i in (0, *order[: count - 1])}


def _placement_order(snapshot: Snapshot, decision: Decision) -> list[tuple[Job, str, int]]:
    """List (job, kind, count) for placement: the largest share first while gaps are whole.

    Higher tiers come first, so that they get what is free now, then jobs for which accelerators are
    excluded, which could not start on what others leave. Extra accelerators follow after all own
    ones.
    """
    wanted = [job for job in snapshot.jobs if job.id in decision.shares]
    wanted.sort(
        key=lambda j: (
            j.tier.rank,
            j.id not in snapshot.excluded,
            -decision.shares[j.id].count,
            j.submitted_at,
            j.id,
        )
    )
    own = [(job, decision.shares[job.id].kind, decision.shares[job.id].count) for job in wanted]
    extra = [
        (job, kind, count)
        for job in wanted
        for kind, count in sorted(decision.shares[job.id].extra.items())
    ]
    return [*own, *extra]


def _take(
    free: FreeCapacity,
    busy: FreeCapacity,
    needed: int,
    nodes: set[NodeId],
    excluded: frozenset[AcceleratorId],
) -> list[Accelerator]:
    """Take up to `needed`: free ones before those in use, excluded ones after both."""
    aside = [rooms.withdraw(excluded) for rooms in (free, busy)] if excluded else []
    taken: list[Accelerator] = []
    for rooms in (free, busy):
        taken += take_packed(rooms, needed - len(taken), nodes.union(one.node_id for one in taken))
    for rooms, withdrawn in zip((free, busy), aside, strict=False):
        rooms.give_back(withdrawn)
        if withdrawn:
            nodes_now = nodes.union(one.node_id for one in taken)
            taken += take_packed(rooms, needed - len(taken), nodes_now)
    return taken
