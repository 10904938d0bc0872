"""Cuts a trainer's part of a batch into pieces, so that not all of its examples are in memory.

With a fixed slice size the batch, and so the examples that a trainer holds and prefetches, would
grow with the number of virtual nodes. A piece is a run of virtual nodes; its rows are pushed on
one stack with the rows of earlier pieces, with the same additions in the same order as uncut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

#: Most bytes of examples in a piece of more than one virtual node.
PIECE_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class PiecePlan:
    """One piece of a trainer's part.

    Attributes:
        first, last: range in the list of the trainer's virtual nodes, `last` excluded.
        merges: additions within the piece, after each of its virtual nodes.
        row_merges: additions on the common stack, after each row of the piece is pushed.
    """

    first: int
    last: int
    merges: tuple[int, ...]
    row_merges: tuple[int, ...]


_NO_VIRTUAL_NODES = PiecePlan(0, 0, (), ())


def virtual_nodes_per_piece(example_bytes: int, largest_slice: int) -> int:
    """Return how many virtual nodes a piece may hold: a power of two, as the tree's blocks are."""
    fitting = PIECE_BYTES // max(1, example_bytes * largest_slice)
    return 1 << max(0, fitting.bit_length() - 1)


def pieces_plan(
    virtual_nodes: Sequence[int], merges: Sequence[int], per_piece: int
) -> tuple[PiecePlan, ...]:
    """Cut a trainer's program into pieces; at least one, empty where it has no virtual nodes.

    Args:
        virtual_nodes: virtual nodes with examples, ascending.
        merges: additions of the whole program, after each of these virtual nodes.
        per_piece: most virtual nodes in a piece.
    """
    plans = []
    first = 0
    for _, group in groupby(virtual_nodes, lambda virtual_node: virtual_node // per_piece):
        last = first + len(list(group))
        plans.append(_piece(first, merges[first:last]))
        first = last
    return tuple(plans) or (_NO_VIRTUAL_NODES,)


def order_free_pieces(runs: Iterable[tuple[int, int]]) -> tuple[PiecePlan, ...]:
    """Make a piece with one row for each run (first, last excluded); all rows are summed."""
    plans = [
        PiecePlan(first, last, (0, *[1] * (last - first - 1)), (min(first, 1),))
        for first, last in runs
    ]
    return tuple(plans) or (_NO_VIRTUAL_NODES,)


def _piece(first: int, merges: Sequence[int]) -> PiecePlan:
    """Plan a piece: additions among its own rows inside, all others on the common stack.

    An addition that reaches below the piece's first row waits for the rows of earlier pieces;
    later rows must not be added to that row before.
    """
    inner: list[int] = []
    waiting: list[int] = []  # per row so far: additions left to the common stack
    for merge in merges:
        waiting.append(0)
        done = 0
        while done < merge and len(waiting) > 1 and waiting[-2] == 0:
            waiting.pop()
            done += 1
        inner.append(done)
        waiting[-1] = merge - done
    return PiecePlan(first, first + len(merges), tuple(inner), tuple(waiting))
