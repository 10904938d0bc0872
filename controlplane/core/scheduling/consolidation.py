"""Consolidation: moves jobs onto fewer nodes, where the gain exceeds the cost of the move.

As jobs come and go, free accelerators become scattered: a job may run on three nodes although it
fits on one. A move is a resize to the same size, onto accelerators that are free now, so that no
other job waits for it. Each move leaves its job on fewer nodes than before, so moves terminate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from controlplane.core.scheduling.free_capacity import FreeCapacity, NodeId
from controlplane.core.values.explanations import percent
from controlplane.core.values.performance import Performance
from controlplane.core.values.types import (
    Accelerator,
    AcceleratorId,
    Decision,
    Job,
    JobId,
    Snapshot,
)

#: Largest number of moves in one decision; the next decision may continue.
MOST_MOVES = 8

#: Largest number of jobs in one decision for which the gain of a move is computed.
MOST_LOOKS = 64

#: Assumed lifetime of a placement in seconds, as allocations change.
HORIZON_S = 600.0

#: Least relative gain of a move; smaller ones are within the error of a throughput model.
LEAST_GAIN = 0.02


def repack(
    snapshot: Snapshot,
    decision: Decision,
    placed: Mapping[JobId, Sequence[Accelerator]],
    free: Mapping[str, FreeCapacity],
) -> tuple[dict[JobId, list[Accelerator]], dict[JobId, str]]:
    """Move jobs that fit on fewer nodes, those with the most excess nodes first.

    Returns their accelerators, and their reasons (whole texts).

    A move pays when the goodput gained over the rest of the job (or `HORIZON_S`, if that is
    shorter) exceeds the job's work during the seconds that a resize costs. Jobs stay that are
    starting, wait for releases, mix kinds, have places of their own, or are of unknown performance.
    """
    moved: dict[JobId, list[Accelerator]] = {}
    reasons: dict[JobId, str] = {}
    busy = snapshot.releasing | {held for row in snapshot.held.values() for held in row}
    for job in _candidates(snapshot, decision, placed, busy)[:MOST_LOOKS]:
        if len(moved) == MOST_MOVES:
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
        moved[job.id] = [*kept, *added]
        reasons[job.id] = (
            f"{decision.reasons.get(job.id, '')} Moves from {len(here)} nodes to {nodes}: "
            f"{percent(gain)} faster there, for {job.resize_s:.1f} s of training."
        ).strip()
    return moved, reasons


def _candidates(
    snapshot: Snapshot,
    decision: Decision,
    placed: Mapping[JobId, Sequence[Accelerator]],
    busy: frozenset[AcceleratorId],
) -> list[Job]:
    """List running jobs on more nodes than necessary, the most scattered first."""
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
    """Find the same number of accelerators on at most `most_nodes`: (kept ones, new ones).

    Nodes on which the job already has most of them are preferred. New ones are taken from `rooms`;
    on None no accelerator is taken.
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
    # Held accelerators stay in preference to ones that are only about to be given.
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
    """Return the relative speed-up of a job on `num_nodes`, or None where that does not pay."""
    kind, count = now[0].kind, len(now)
    before = performance.goodput(kind, count, len({one.node_id for one in now}))
    then = performance.goodput(kind, count, num_nodes)
    if before <= 0.0 or then < before * (1.0 + LEAST_GAIN):
        return None
    if job.remaining_examples is not None:
        left_s = job.remaining_examples / before
    else:  # assume as long again as the job has been running
        left_s = moment - (moment if job.running_since is None else job.running_since)
    left_s = min(left_s, HORIZON_S)
    return then / before - 1.0 if (then - before) * left_s > cost_s * before else None
