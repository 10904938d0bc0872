"""Placement of the jobs of one kind: few nodes per job, and moves only where they pay.

Several arrangements are computed and the one of greatest worth is taken: all jobs are placed anew;
or only jobs whose count changes, around the others; or only the new part of these. A job is placed
on nodes that it already holds, if possible; whole nodes are dealt out first, then the largest
rests, each to the node with the least sufficient room. An arrangement in which jobs would wait for
each other in a ring is discarded; one in which jobs wait for others to move costs that time.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.policies.common.rates import rate
from controlplane.core.values.types import Job

NodeId = int

#: node -> number of accelerators on it.
Places = Mapping[NodeId, int]

#: Seconds until accelerators that a moving job gives up are free: the job trains on until its new
#: ones are ready.
MOVE_S = 5.0

#: The third arrangement is computed for at most so many jobs.
MOST_KEPT = 256


@dataclass(frozen=True, slots=True)
class Tenant:
    """One job to be placed.

    Attributes:
        count: accelerators it is given.
        now: the accelerators of this kind that it holds, by node.
        worth: weight-seconds of an example.
        slope: weight-seconds that a delay of one second costs.
        change_s: seconds of training that a move costs it.
        lasts_s: duration of the placement in seconds, at most until the job ends.
        is_fixed: whether a change is under way, so that the job cannot move.
    """

    job: Job
    count: int
    now: Places
    worth: float
    slope: float
    change_s: float
    lasts_s: float
    is_fixed: bool = False

    @property
    def is_same(self) -> bool:
        """Whether it keeps its count and can therefore stay."""
        return sum(self.now.values()) == self.count


def arrange(
    tenants: Sequence[Tenant], rooms: Mapping[NodeId, int], kind: str
) -> list[Places] | None:
    """Return the nodes of each tenant; None: the choice is left to `placement`.

    Args:
        rooms: accelerators of the kind on each node.
    """
    staying = {i: tenant.now for i, tenant in enumerate(tenants) if tenant.is_same}
    fixed = {i: places for i, places in staying.items() if tenants[i].is_fixed}
    candidates = [_pack(tenants, rooms, fixed)]
    if len(staying) > len(fixed):
        candidates.append(_pack(tenants, rooms, staying))
    if len(tenants) <= MOST_KEPT:
        kept = {i: _kept(tenant) for i, tenant in enumerate(tenants) if tenant.now}
        candidates.append(_pack(tenants, rooms, kept))
    found = [(places, turns_of(tenants, rooms, places)) for places in candidates]
    values = [
        (_value(tenants, places, kind, waiting), -number)
        for number, (places, waiting) in enumerate(found)
        if waiting is not None
    ]
    return candidates[-max(values)[1]] if values else None


def _kept(tenant: Tenant) -> Places:
    """Return the places that an unmoved job keeps: all, or those with most accelerators."""
    kept: dict[NodeId, int] = {}
    left = tenant.count
    for node, count in sorted(tenant.now.items(), key=lambda item: (-item[1], item[0])):
        if left > 0:
            kept[node] = min(count, left)
            left -= kept[node]
    return kept


def _value(
    tenants: Sequence[Tenant], arrangement: Sequence[Places], kind: str, waiting: Sequence[int]
) -> float:
    """Return the worth of an arrangement, less the cost of its changes.

    A start that has to wait for the moves of other jobs is later by that time.
    """
    total = 0.0
    for tenant, places, turns in zip(tenants, arrangement, waiting, strict=True):
        speed = rate(tenant.job, kind, tenant.count, len(places))
        if tenant.job.performance is None:  # the communication cost between nodes is unknown
            speed /= len(places)
        late_s = tenant.change_s if tenant.is_same and dict(places) != dict(tenant.now) else 0.0
        if not tenant.now:
            late_s += MOVE_S * turns
        total += tenant.worth * speed * tenant.lasts_s - tenant.slope * late_s
    return total


class _Nodes:
    """Room left on each node, with lookup of the best node for a piece."""

    def __init__(self, rooms: Mapping[NodeId, int], crowd: Mapping[NodeId, int]) -> None:
        self.left = dict(rooms)
        self.crowd = crowd
        self._heaps: dict[int, list[tuple[int, NodeId]]] = defaultdict(list)
        for node, room in self.left.items():
            self._heaps[room].append((crowd.get(node, 0), node))
        for heap in self._heaps.values():
            heapq.heapify(heap)
        self._largest = max(self.left.values(), default=0)

    def take(self, node: NodeId, count: int) -> None:
        self.left[node] -= count
        heapq.heappush(self._heaps[self.left[node]], (self.crowd.get(node, 0), node))

    def exactly(self, room: int) -> NodeId | None:
        """Return a node with exactly so much room, the one that fewest jobs would have to leave."""
        heap = self._heaps[room]
        while heap and self.left[heap[0][1]] != room:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def best(self, count: int) -> NodeId | None:
        """Return the node with the least sufficient room, else the one with most, else None."""
        enough = range(count, self._largest + 1)
        for room in (*enough, *range(min(count, self._largest + 1) - 1, 0, -1)):
            node = self.exactly(room)
            if node is not None:
                return node
        return None


def _pack(
    tenants: Sequence[Tenant], rooms: Mapping[NodeId, int], staying: Mapping[int, Places]
) -> list[Places]:
    """Place all tenants, or the rest of their counts, around the places that stay."""
    free = dict(rooms)
    for places in staying.values():
        for node, count in places.items():
            free[node] -= count
    crowd: dict[NodeId, int] = defaultdict(int)
    found: list[dict[NodeId, int]] = [dict(staying.get(i, {})) for i in range(len(tenants))]
    rests = {i: tenant.count - sum(found[i].values()) for i, tenant in enumerate(tenants)}
    movers = [i for i, rest in rests.items() if rest > 0]
    for i in movers:
        for node, count in tenants[i].now.items():
            crowd[node] += count
    nodes = _Nodes(free, crowd)
    whole = max(rooms.values(), default=1)
    for i in sorted(movers, key=lambda i: (-rests[i], i)):
        while rests[i] >= whole:
            own = _own(tenants[i].now, nodes, whole)
            chosen = nodes.exactly(whole) if own is None else own
            if chosen is None:
                break
            nodes.take(chosen, whole)
            found[i][chosen] = found[i].get(chosen, 0) + whole
            rests[i] -= whole
    for i in sorted(movers, key=lambda i: (-rests[i], i)):
        while rests[i] > 0:
            own = _own(tenants[i].now, nodes, rests[i])
            chosen = nodes.best(rests[i]) if own is None else own
            assert chosen is not None, "the counts of a kind fit into its nodes"
            count = min(rests[i], nodes.left[chosen])
            nodes.take(chosen, count)
            found[i][chosen] = found[i].get(chosen, 0) + count
            rests[i] -= count
    return list(found)


def _own(now: Places, nodes: _Nodes, count: int) -> NodeId | None:
    """Return the node that a job holds and that fits a piece, the one where it has most."""
    fitting = [node for node in now if nodes.left.get(node, 0) >= count]
    return min(fitting, key=lambda node: (-now[node], nodes.left[node], node), default=None)


@dataclass(frozen=True, slots=True)
class PlacementMove:
    """Places of one job now and after, and its minimum."""

    least: int
    now: Places
    wanted: Places


def waits(rooms: Places, moves: Sequence[PlacementMove]) -> list[int] | None:
    """Return for each job the number of moves that must precede its own, in sequence; None: a ring.

    A job can change as soon as all accelerators that it gets are free. Before that, the job gives
    up the accelerators that it does not keep, if the kept ones are at least its minimum.
    """
    free = dict(rooms)
    kept: list[Places] = []
    for move in moves:
        both = {n: min(c, move.wanted[n]) for n, c in move.now.items() if n in move.wanted}
        kept.append(both if sum(both.values()) >= move.least else move.now)
        for place, count in kept[-1].items():
            free[place] = free.get(place, 0) - count
    turns = [0] * len(moves)
    waiting = list(range(len(moves)))
    turn = 0
    while waiting:
        still, left = [], []
        for i in waiting:
            wanted = moves[i].wanted
            if all(free[n] + kept[i].get(n, 0) >= c for n, c in wanted.items()):
                turns[i] = turn
                for place, count in wanted.items():
                    free[place] -= max(count - kept[i].get(place, 0), 0)
                left += [(n, c - wanted.get(n, 0)) for n, c in kept[i].items()]
            else:
                still.append(i)
        if len(still) == len(waiting):
            return None
        for place, count in left:
            free[place] += max(count, 0)
        waiting, turn = still, turn + 1
    return turns


def turns_of(
    tenants: Sequence[Tenant], rooms: Mapping[NodeId, int], arrangement: Sequence[Places]
) -> list[int] | None:
    """Return `waits` of all tenants: of those that change, around those that stay."""
    free, moves, movers = dict(rooms), [], []
    for row, (tenant, places) in enumerate(zip(tenants, arrangement, strict=True)):
        if dict(tenant.now) == places:
            for node, count in places.items():
                free[node] -= count
        else:
            movers.append(row)
            moves.append(PlacementMove(tenant.job.min_accelerators, tenant.now, places))
    found = waits(free, moves)
    if found is None:
        return None
    turns = [0] * len(tenants)
    for row, turn in zip(movers, found, strict=True):
        turns[row] = turn
    return turns
