"""Moves jobs onto fewer nodes, where that makes up for what the move costs them.

Jobs come and go, and what they leave lies scattered: a job may sit on three nodes although there is
room for it on one. A move is a resize to the same size. It goes to accelerators that are free now,
so nobody waits for it, and each one leaves its job on fewer nodes than before, so they end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.core.scheduling.free_capacity import FreeCapacity, NodeId
from controlplane.core.values.performance import Performance
from controlplane.core.values.types import (
    Accelerator,
    AcceleratorId,
    Decision,
    Job,
    JobId,
    Snapshot,
)

#: So many jobs are moved in one decision at most; the next one may go on.
MOST_MOVES = 8

#: For so many jobs in one decision it is worked out at most what a move would bring.
MOST_LOOKS = 64

#: A placement is not expected to last longer than this: allocations change.
HORIZON_S = 600.0

#: Less than this is within the error of a throughput model.
LEAST_GAIN = 0.02


@dataclass(slots=True)
class Moves:
    """Jobs that are moved: where to, and why (their whole sentence)."""

    placed: dict[JobId, list[Accelerator]] = field(default_factory=dict)
    reasons: dict[JobId, str] = field(default_factory=dict)


def repack(
    snapshot: Snapshot,
    decision: Decision,
    placed: Mapping[JobId, Sequence[Accelerator]],
    free: Mapping[str, FreeCapacity],
) -> Moves:
    """Move jobs that could sit on fewer nodes, those on most nodes too many first.

    A move pays when the goodput gained over the rest of the job (or `HORIZON_S`, if that is
    shorter) is more than what the job does in the seconds that a resize costs it. Jobs that begin,
    wait for others to let go, mix kinds, have places of their own, or of which nothing is known
    stay.
    """
    moves = Moves()
    busy = snapshot.releasing | {held for row in snapshot.held.values() for held in row}
    for job in _candidates(snapshot, decision, placed, busy)[:MOST_LOOKS]:
        if len(moves.placed) == MOST_MOVES:
            break
        assert job.performance is not None, "only jobs of known performance are candidates"
        now = placed[job.id]
        rooms = free[now[0].kind]
        here = Counter(one.node_id for one in now)
        held = frozenset(snapshot.held[job.id])
        found = _fewest_nodes(now, rooms, len(here) - 1, held)
        if found is None:
            continue
        kept, added = found
        nodes = len({one.node_id for one in (*kept, *added)})
        cost_s = job.resize_s if held.issuperset(one.id for one in now) else 0.0
        gain = _gain(job, job.performance, now, nodes, snapshot.now, cost_s)
        if gain is None:
            rooms.give_back(added)
            continue
        kept_ids = {one.id for one in kept}
        rooms.give_back(one for one in now if one.id not in held and one.id not in kept_ids)
        moves.placed[job.id] = [*kept, *added]
        moves.reasons[job.id] = (
            f"{decision.reasons.get(job.id, '')} Moves from {len(here)} nodes to {nodes}: "
            f"{gain:.0%} faster there, for {job.resize_s:.1f} s of training."
        ).strip()
    return moves


def _candidates(
    snapshot: Snapshot,
    decision: Decision,
    placed: Mapping[JobId, Sequence[Accelerator]],
    busy: frozenset[AcceleratorId],
) -> list[Job]:
    """List running jobs on more nodes than they must be, the most scattered first."""
    largest: Counter[str] = Counter()
    sizes = Counter((one.kind, one.node_id) for one in snapshot.accelerators)
    for (kind, _), size in sizes.items():
        largest[kind] = max(largest[kind], size)
    ranked: list[tuple[int, float, JobId, Job]] = []
    for job in snapshot.jobs:
        now = placed.get(job.id, ())
        held = snapshot.held.get(job.id, ())
        if job.performance is None or not held or len(now) < 2 or job.id in snapshot.resizing:
            continue
        share = decision.shares[job.id]
        num_nodes = len({one.node_id for one in now})
        excess = num_nodes - -(-share.count // largest[share.kind])
        if excess < 1 or share.extra or share.by_node or job.id in snapshot.excluded:
            continue
        if all(one.id in held or one.id not in busy for one in now):
            ranked.append((-excess, job.submitted_at, job.id, job))
    return [job for *_, job in sorted(ranked, key=lambda row: row[:3])]


def _fewest_nodes(
    now: Sequence[Accelerator], rooms: FreeCapacity, most_nodes: int, held: frozenset[AcceleratorId]
) -> tuple[list[Accelerator], list[Accelerator]] | None:
    """Find the same number of accelerators on at most `most_nodes`: what is kept, what is new.

    A node on which the job already has most of them is preferred. What is new is taken from
    `rooms`; on None nothing is.
    """
    mine = Counter(one.node_id for one in now)
    needed, chosen = len(now), dict[NodeId, int]()
    added: list[Accelerator] = []
    while needed > 0 and len(chosen) < most_nodes:
        node = _next_node(mine, chosen, rooms, needed)
        if node is None:
            break
        stay = min(mine[node], needed)
        fresh = rooms.take(node, needed - stay)
        chosen[node] = stay
        added += fresh
        needed -= stay + len(fresh)
    if needed > 0:
        rooms.give_back(added)
        return None
    kept: list[Accelerator] = []
    # What it holds stays before what it would only have been given now.
    for one in sorted(now, key=lambda one: one.id not in held):
        if chosen.get(one.node_id, 0) > 0:
            chosen[one.node_id] -= 1
            kept.append(one)
    return kept, added


def _next_node(
    mine: Counter[NodeId], chosen: Mapping[NodeId, int], rooms: FreeCapacity, needed: int
) -> NodeId | None:
    own = [node for node in mine if node not in chosen]
    fitting = [node for node in own if mine[node] + rooms.room(node) >= needed]
    if fitting:
        return min(fitting, key=lambda node: (-mine[node], rooms.room(node), node))
    other = rooms.best_node(needed)
    if other is not None and rooms.room(other) >= needed:
        return other
    options = own if other is None or other in own else [*own, other]
    return min(options, key=lambda node: (-mine[node] - rooms.room(node), node), default=None)


def _gain(
    job: Job,
    performance: Performance,
    now: Sequence[Accelerator],
    num_nodes: int,
    moment: float,
    cost_s: float,
) -> float | None:
    """Say by how much a job would be faster on `num_nodes`, or None where that does not pay."""
    kind, count = now[0].kind, len(now)
    before = performance.goodput(kind, count, len({one.node_id for one in now}))
    then = performance.goodput(kind, count, num_nodes)
    if before <= 0.0 or then < before * (1.0 + LEAST_GAIN):
        return None
    if job.remaining_examples is not None:
        left_s = job.remaining_examples / before
    else:  # as long again as it has been running
        left_s = moment - (moment if job.running_since is None else job.running_since)
    left_s = min(left_s, HORIZON_S)
    return then / before - 1.0 if (then - before) * left_s > cost_s * before else None
