"""Cuts a trainer's part of a batch into pieces, so that not all of its examples are in memory.

At a fixed slice the batch grows with the number of virtual nodes, and so would the examples that a
trainer holds and prepares ahead. A piece is a run of virtual nodes; its rows are put on one stack
with those of the pieces before it, with the very additions of the whole, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

#: Bytes of examples in a piece of more than one virtual node.
PIECE_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class PiecePlan:
    """One piece of a trainer's part.

    Attributes:
        first, last: its places in the list of the trainer's virtual nodes, `last` excluded.
        merges: within the piece, after each of its virtual nodes.
        row_merges: after each of its rows is put on the common stack.
    """

    first: int
    last: int
    merges: tuple[int, ...]
    row_merges: tuple[int, ...]


_NO_VIRTUAL_NODES = PiecePlan(0, 0, (), ())


def virtual_nodes_per_piece(example_bytes: int, largest_slice: int) -> int:
    """Give how many virtual nodes a piece may hold: a power of two, as the tree's blocks are."""
    fitting = PIECE_BYTES // max(1, example_bytes * largest_slice)
    return 1 << max(0, fitting.bit_length() - 1)


def pieces_plan(
    virtual_nodes: Sequence[int], merges: Sequence[int], per_piece: int
) -> tuple[PiecePlan, ...]:
    """Cut a trainer's program into pieces; at least one, empty where it has no virtual nodes.

    Args:
        virtual_nodes: those with examples, ascending.
        merges: of the whole program, after each of them.
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
    """Make a piece with one row of each run (first, last excluded); all rows are added up."""
    plans = [
        PiecePlan(first, last, (0, *[1] * (last - first - 1)), (min(first, 1),))
        for first, last in runs
    ]
    return tuple(plans) or (_NO_VIRTUAL_NODES,)


def _piece(first: int, merges: Sequence[int]) -> PiecePlan:
    """Do what can be added within the piece there, and leave the rest to the common stack.

    An addition that reaches below the piece's own first row has to wait for the rows below it;
    nothing that comes later may be added to that row before.
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
