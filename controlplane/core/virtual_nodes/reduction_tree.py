"""The one binary tree over virtual-node index that every exact reduction follows.

Floating-point sums depend on the order of the additions. Here that order is a property of the job
alone: virtual nodes are the leaves of a complete binary tree (padded to the next power of two), a
node of the tree is `left + right`, an absent leaf (a virtual node without examples, or padding) is
skipped: `combine(x, absent) = x`. A worker that holds all present leaves below a tree node can add
them up alone, so a worker sends only its maximal subtree sums, and any mapping of virtual nodes to
workers gives the same bits.

Both halves, the sums inside a worker and the sums over all workers, are programs for one stack
machine: push an item, then replace the two topmost entries by their sum a number of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """A program for the stack machine.

    Attributes:
        items: items to push, in this order.
        merges: number of additions of the two topmost entries after each push.
        num_rows: number of entries left at the end.
    """

    items: tuple[int, ...]
    merges: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Number of entries that the program leaves on the stack."""
        return len(self.items) - sum(self.merges)


@dataclass(frozen=True, slots=True)
class ReductionPrograms:
    """Programs by which the workers of one membership reduce one batch.

    Attributes:
        local: per worker, a program over its own present virtual nodes (items are virtual nodes).
        rows_per_worker: number of rows to which each worker pads, at least 1.
        across: a program over all rows; row r of worker w is item `w * rows_per_worker + r`.
    """

    local: tuple[Schedule, ...]
    rows_per_worker: int
    across: Schedule


def plan_reduction(
    num_virtual_nodes: int,
    present: Sequence[bool],
    owned: Sequence[Sequence[int]],
    rows_per_worker: int | None = None,
) -> ReductionPrograms:
    """Plan the exact reduction of one batch over the workers of a membership.

    Args:
        present: per virtual node, whether it has examples in this batch.
        owned: per worker, its virtual nodes; together each virtual node exactly once.
        rows_per_worker: pad to this many rows instead of the fewest possible.

    Raises:
        ValueError: `owned` is not a partition of the virtual nodes, `present` has another length,
            or a worker needs more rows than `rows_per_worker`.
    """
    owners = _owners(num_virtual_nodes, owned)
    if len(present) != num_virtual_nodes:
        raise ValueError(f"present must have {num_virtual_nodes} entries, got {len(present)}")
    planner = _Planner(owners, present, len(owned))
    planner.visit(0, _padded(num_virtual_nodes))
    local = tuple(
        Schedule(tuple(items), tuple(merges))
        for items, merges in zip(planner.items, planner.merges, strict=True)
    )
    needed = max(1, *(schedule.num_rows for schedule in local))
    stride = needed if rows_per_worker is None else rows_per_worker
    if stride < needed:
        raise ValueError(f"rows_per_worker is {stride}, but a worker has {needed} subtree sums")
    across = Schedule(
        tuple(worker * stride + row for worker, row in planner.rows), tuple(planner.row_merges)
    )
    assert across.num_rows == (1 if any(present) else 0)
    return ReductionPrograms(local=local, rows_per_worker=stride, across=across)


def running_sum(items: Sequence[int]) -> Schedule:
    """Return the program that adds its items from left to right: one row for any items.

    Used where the order need not survive another mapping (the fast mode).
    """
    return Schedule(tuple(items), tuple(min(index, 1) for index in range(len(items))))


class _Planner:
    """Walks the tree once, left to right, and writes all programs."""

    def __init__(self, owners: Sequence[int], present: Sequence[bool], num_workers: int) -> None:
        self.owners = owners
        self.present = present
        self.items: list[list[int]] = [[] for _ in range(num_workers)]
        self.merges: list[list[int]] = [[] for _ in range(num_workers)]
        self.num_rows = [0] * num_workers
        self.rows: list[tuple[int, int]] = []
        self.row_merges: list[int] = []

    def visit(self, low: int, high: int) -> bool:
        """Plan the tree node over leaves [low, high); return whether it has a present leaf."""
        holders = self._holders(low, high)
        if not holders:
            return False
        if len(holders) == 1:
            (worker,) = holders
            self._sum_locally(worker, low, high)
            self.rows.append((worker, self.num_rows[worker]))
            self.row_merges.append(0)
            self.num_rows[worker] += 1
            return True
        middle = (low + high) // 2
        left = self.visit(low, middle)
        right = self.visit(middle, high)
        if left and right:
            self.row_merges[-1] += 1
        return True

    def _sum_locally(self, worker: int, low: int, high: int) -> bool:
        """Plan a subtree whose present leaves one worker holds; return whether there are any."""
        if not self._holders(low, high):
            return False
        if high - low == 1:
            self.items[worker].append(low)
            self.merges[worker].append(0)
            return True
        middle = (low + high) // 2
        left = self._sum_locally(worker, low, middle)
        right = self._sum_locally(worker, middle, high)
        if left and right:
            self.merges[worker][-1] += 1
        return True

    def _holders(self, low: int, high: int) -> set[int]:
        """Find the workers with a present leaf in [low, high)."""
        last = min(high, len(self.owners))
        return {self.owners[leaf] for leaf in range(low, last) if self.present[leaf]}


def _owners(num_virtual_nodes: int, owned: Sequence[Sequence[int]]) -> list[int]:
    """Turn worker -> virtual nodes into virtual node -> worker, checking that it is a partition."""
    if num_virtual_nodes < 1:
        raise ValueError(f"num_virtual_nodes must be at least 1, got {num_virtual_nodes}")
    owners = [-1] * num_virtual_nodes
    for worker, virtual_nodes in enumerate(owned):
        for virtual_node in virtual_nodes:
            if not 0 <= virtual_node < num_virtual_nodes:
                raise ValueError(
                    f"virtual node {virtual_node} is not in 0..{num_virtual_nodes - 1}"
                )
            if owners[virtual_node] != -1:
                raise ValueError(f"virtual node {virtual_node} is mapped twice")
            owners[virtual_node] = worker
    if -1 in owners:
        raise ValueError(f"virtual node {owners.index(-1)} is not mapped to any worker")
    return owners


def _padded(num_virtual_nodes: int) -> int:
    """Round up to the next power of two."""
    return 1 << (num_virtual_nodes - 1).bit_length()
