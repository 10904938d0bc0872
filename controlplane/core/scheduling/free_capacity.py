"""Free capacity of one kind of accelerator by node, with lookup of the best-fitting node.

Nodes are kept in one heap for each number of free accelerators. Heap entries are validated lazily
on lookup, so that taking costs O(log nodes) without any search.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable

from controlplane.core.values.types import Accelerator, AcceleratorId

NodeId = int


class FreeCapacity:
    """Free accelerators of one kind, in order of their index on each node."""

    def __init__(self, accelerators: Iterable[Accelerator] = ()) -> None:
        self._on: dict[NodeId, list[Accelerator]] = {}
        for accelerator in accelerators:
            self._on.setdefault(accelerator.node_id, []).append(accelerator)
        self._nodes_with: dict[int, list[NodeId]] = {}
        for node, left in self._on.items():
            left.sort(key=lambda accelerator: accelerator.index)
            self._nodes_with.setdefault(len(left), []).append(node)
        for nodes in self._nodes_with.values():
            heapq.heapify(nodes)
        self.num_left = sum(len(left) for left in self._on.values())

    def room(self, node: NodeId) -> int:
        """Count the free accelerators of `node`."""
        return len(self._on.get(node, ()))

    def best_node(self, needed: int) -> NodeId | None:
        """Return the node with the least sufficient room, else with the most; None: all are empty.

        Ties go to the lowest id.
        """
        sizes = sorted(size for size in self._nodes_with if size > 0)
        enough = bisect_left(sizes, needed)
        for size in (*sizes[enough:], *reversed(sizes[:enough])):
            nodes = self._nodes_with[size]
            while nodes and self.room(nodes[0]) != size:
                heapq.heappop(nodes)  # its room has changed since
            if nodes:
                return nodes[0]
            del self._nodes_with[size]
        return None

    def take(self, node: NodeId, most: int) -> list[Accelerator]:
        """Take up to `most` accelerators of `node`, lowest index first."""
        left = self._on.get(node, [])
        taken, self._on[node] = left[:most], left[most:]
        self._changed(node, -len(taken))
        return taken

    def withdraw(self, ids: frozenset[AcceleratorId]) -> list[Accelerator]:
        """Take the free accelerators among `ids`."""
        withdrawn = [one for row in self._on.values() for one in row if one.id in ids]
        for node in sorted({one.node_id for one in withdrawn}):
            before = self._on[node]
            self._on[node] = [one for one in before if one.id not in ids]
            self._changed(node, len(self._on[node]) - len(before))
        return withdrawn

    def give_back(self, accelerators: Iterable[Accelerator]) -> None:
        """Put taken accelerators back."""
        for accelerator in accelerators:
            left = self._on.setdefault(accelerator.node_id, [])
            left.append(accelerator)
            left.sort(key=lambda one: one.index)
            self._changed(accelerator.node_id, 1)

    def _changed(self, node: NodeId, by: int) -> None:
        self.num_left += by
        heapq.heappush(self._nodes_with.setdefault(self.room(node), []), node)


def take_packed(rooms: FreeCapacity, needed: int, own_nodes: Iterable[NodeId]) -> list[Accelerator]:
    """Take up to `needed`: first on nodes that the job already uses, then by best fit."""
    taken: list[Accelerator] = []
    own = sorted((rooms.room(node), node) for node in own_nodes if rooms.room(node))
    while own and len(taken) < needed:
        place = bisect_left(own, (needed - len(taken),))
        if place == len(own):
            place = bisect_left(own, (own[-1][0],))
        taken += rooms.take(own.pop(place)[1], needed - len(taken))
    while len(taken) < needed:
        node = rooms.best_node(needed - len(taken))
        if node is None:
            break
        taken += rooms.take(node, needed - len(taken))
    return taken
