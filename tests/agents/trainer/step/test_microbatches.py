"""Cutting a trainer's part of a batch into pieces changes no addition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agents.trainer.data.arrays import ArraySource
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.step.functions import example_specs
from agents.trainer.step.microbatches import (
    PIECE_BYTES,
    PiecePlan,
    order_free_pieces,
    pieces_plan,
    virtual_nodes_per_piece,
)
from agents.trainer.step.prefetch import TEXT_BYTES, JobData
from controlplane.core.virtual_nodes.reduction_tree import (
    Schedule,
    plan_reduction,
    running_sum,
)
from tests.agents.trainer.local_jobs import training_spec
from tests.support.reduction import execute

Sum = tuple["Sum", "Sum"] | int


def _add(left: Sum, right: Sum) -> Sum:
    return (left, right)


def _sums_by_pieces(program: Schedule, pieces: Sequence[PiecePlan]) -> tuple[list[Sum], int]:
    """Run a program piece by piece; gives its sums and the most rows of a piece."""
    stack: list[Sum] = []
    most = 0
    for piece in pieces:
        items = program.items[piece.first : piece.last]
        rows = execute(Schedule(items, piece.merges), lambda item: item, _add)
        assert len(rows) == len(piece.row_merges)
        most = max(most, len(rows))
        for row, merges in zip(rows, piece.row_merges, strict=True):
            stack.append(row)
            for _ in range(merges):
                right = stack.pop()
                stack.append(_add(stack.pop(), right))
    assert sum(piece.last - piece.first for piece in pieces) == len(program.items)
    return stack, most


def test_eight_virtual_nodes_in_pieces_of_four() -> None:
    """Leaves 0..7 of a full tree: 0 1+ 2 3++ per half; the second half's sum meets the first's."""
    program = plan_reduction(8, [True] * 8, [range(8)]).local[0]
    first, second = pieces_plan(program.items, program.merges, 4)
    assert (first.first, first.last, second.first, second.last) == (0, 4, 4, 8)
    assert first.merges == second.merges == (0, 1, 0, 2)
    assert (first.row_merges, second.row_merges) == ((0,), (1,))


def test_a_row_that_waits_for_one_below_is_left_alone() -> None:
    """Worker with 1, 2, 3 of 4 in pieces of two: 1 | 2+3; with 0 elsewhere nothing else is added.

    With leaves 0..2 and 3 absent, 2 is added to (0+1) only on the common stack.
    """
    program = plan_reduction(4, [True, True, True, False], [range(4)]).local[0]
    assert program.merges == (0, 1, 1)
    first, second = pieces_plan(program.items, program.merges, 2)
    assert (first.merges, first.row_merges) == ((0, 1), (0,))
    assert (second.merges, second.row_merges) == ((0,), (1,))


def test_no_virtual_nodes_make_one_empty_piece() -> None:
    (piece,) = pieces_plan((), (), 4)
    assert (piece.first, piece.last, piece.merges, piece.row_merges) == (0, 0, (), ())


@given(
    owners=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    absent=st.sets(st.integers(0, 39)),
    power=st.integers(0, 5),
)
def test_pieces_make_the_same_sums_in_the_same_order(
    owners: list[int], absent: set[int], power: int
) -> None:
    present = [leaf not in absent for leaf in range(len(owners))]
    owned = [[leaf for leaf, owner in enumerate(owners) if owner == w] for w in range(3)]
    for program in plan_reduction(len(owners), present, owned).local:
        expected = execute(program, lambda item: item, _add)
        assert (
            _sums_by_pieces(program, pieces_plan(program.items, program.merges, 2**power))[0]
            == expected
        )


@given(cuts=st.sets(st.integers(1, 39)), count=st.integers(1, 40))
def test_sums_without_an_order_leave_one_row_a_piece(cuts: set[int], count: int) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < count), count]
    rows, most = _sums_by_pieces(running_sum(range(count)), order_free_pieces(pairwise(edges)))
    assert len(rows) == most == 1
    assert sorted(_leaves(rows[0])) == list(range(count))


def _leaves(sums: Sum) -> list[int]:
    return [sums] if isinstance(sums, int) else [*_leaves(sums[0]), *_leaves(sums[1])]


def test_pieces_are_sized_by_bytes_and_never_empty() -> None:
    assert virtual_nodes_per_piece(example_bytes=512, largest_slice=64) == 32
    assert virtual_nodes_per_piece(example_bytes=1000, largest_slice=350) == 2
    assert virtual_nodes_per_piece(example_bytes=PIECE_BYTES, largest_slice=9) == 1


def test_text_counts_though_its_length_is_not_known() -> None:
    source = ArraySource((np.full((9, 3), "word"), np.zeros(9, "float32")), "data.train")
    spec = training_spec()
    course = TrainingSchedule(len(source), 0, spec.global_batch_size, spec.stop)
    specs = tuple(example_specs(source.fetch(np.arange(2))))
    assert JobData(spec, course, source, None, specs, 0).example_bytes == 3 * TEXT_BYTES + 4
