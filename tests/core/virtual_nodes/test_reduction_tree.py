"""The reduction tree: the same bits for every mapping, hand-computed programs, few rows."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.virtual_nodes.mapping import even_mapping
from controlplane.core.virtual_nodes.reduction_tree import (
    Schedule,
    plan_reduction,
    running_sum,
)
from tests.support.reduction import execute


def add(left: float, right: float) -> float:
    return left + right


def recursive_sum(values: list[float | None]) -> float | None:
    """Sum a power-of-two list by halves; None is absent."""
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    left, right = recursive_sum(values[:middle]), recursive_sum(values[middle:])
    if left is None or right is None:
        return right if left is None else left
    return left + right


def reduce_by_plan(values: list[float | None], owned: list[list[int]]) -> float | None:
    plan = plan_reduction(len(values), [value is not None for value in values], owned)
    rows: dict[int, float] = {}
    for worker, schedule in enumerate(plan.local):
        sums = execute(schedule, lambda leaf: values[leaf], add)
        assert len(sums) <= plan.rows_per_worker
        rows |= {worker * plan.rows_per_worker + row: total for row, total in enumerate(sums)}
    total = execute(plan.across, rows.__getitem__, add)
    return total[0] if total else None


@st.composite
def mapped_values(draw: st.DrawFn) -> tuple[list[float | None], list[list[int]]]:
    number = draw(st.integers(1, 37))
    floats = st.floats(-1e6, 1e6, allow_nan=False, width=32)
    values = draw(st.lists(st.one_of(floats, floats, st.none()), min_size=number, max_size=number))
    workers = draw(st.integers(1, number))
    order = draw(st.permutations(range(number)))
    owned: list[list[int]] = [[leaf] for leaf in order[:workers]]
    for leaf in order[workers:]:
        owned[draw(st.integers(0, workers - 1))].append(leaf)
    return values, [sorted(leaves) for leaves in owned]


@given(mapped_values())
def test_any_mapping_gives_the_bits_of_the_recursive_sum(
    case: tuple[list[float | None], list[list[int]]],
) -> None:
    values, owned = case
    padded = values + [None] * ((1 << (len(values) - 1).bit_length()) - len(values))
    expected, got = recursive_sum(padded), reduce_by_plan(values, owned)
    if expected is None:
        assert got is None
    else:
        assert got is not None
        assert struct.pack("d", got) == struct.pack("d", expected)


@given(st.integers(1, 200), st.data())
def test_contiguous_mappings_send_logarithmically_many_rows(
    number: int, data: st.DataObject
) -> None:
    workers = data.draw(st.integers(1, number))
    plan = plan_reduction(number, [True] * number, even_mapping(number, workers))
    assert plan.rows_per_worker <= max(1, 2 * math.ceil(math.log2(number)))


def test_order_matters_so_the_tree_is_worth_having() -> None:
    values: list[float | None] = [1e16, 1.0, -1e16, 1.0]
    assert recursive_sum(values) == 0.0
    assert sum(value for value in values if value is not None) == 1.0
    assert reduce_by_plan(values, [[0], [1, 2], [3]]) == 0.0


def test_programs_of_three_workers_over_eight_virtual_nodes() -> None:
    plan = plan_reduction(8, [True] * 8, [[0, 1, 2], [3, 4, 5], [6, 7]])
    assert plan.local == (
        Schedule((0, 1, 2), (0, 1, 0)),  # 0+1, 2
        Schedule((3, 4, 5), (0, 0, 1)),  # 3, 4+5
        Schedule((6, 7), (0, 1)),  # 6+7
    )
    assert plan.rows_per_worker == 2
    # rows: 0 = 0+1, 1 = 2, 2 = 3, 3 = 4+5, 4 = 6+7, 5 = padding
    assert plan.across == Schedule((0, 1, 2, 3, 4), (0, 0, 2, 0, 2))


def test_absent_leaves_are_skipped_and_join_their_neighbours() -> None:
    plan = plan_reduction(4, [True, False, True, False], [[0, 3], [1, 2]])
    assert plan.local == (Schedule((0,), (0,)), Schedule((2,), (0,)))
    assert plan.across == Schedule((0, 1), (0, 1))


def test_a_worker_without_present_leaves_sends_nothing_of_its_own() -> None:
    plan = plan_reduction(2, [True, False], [[0], [1]], rows_per_worker=3)
    assert plan.local[1] == Schedule((), ())
    assert plan.rows_per_worker == 3
    assert plan.across == Schedule((0,), (0,))


def test_fewer_examples_never_need_more_rows() -> None:
    owned = [[0, 3, 5], [1, 2, 4], [6]]
    full = plan_reduction(7, [True] * 7, owned).rows_per_worker
    for mask in range(1, 2**7):
        present = [bool(mask >> leaf & 1) for leaf in range(7)]
        assert plan_reduction(7, present, owned).rows_per_worker <= full


def test_running_sum_leaves_one_row() -> None:
    assert running_sum([4, 2, 7]) == Schedule((4, 2, 7), (0, 1, 1))
    assert running_sum([]).num_rows == 0
    assert execute(running_sum([1, 2, 3]), float, add) == [6.0]


@pytest.mark.parametrize(
    ("number", "present", "owned", "message"),
    [
        (0, [], [], "num_virtual_nodes must be at least 1"),
        (2, [True], [[0, 1]], "present must have 2 entries"),
        (2, [True, True], [[0], [0, 1]], "virtual node 0 is mapped twice"),
        (2, [True, True], [[0]], "virtual node 1 is not mapped"),
        (2, [True, True], [[0, 2], [1]], "virtual node 2 is not in 0..1"),
    ],
)
def test_bad_input_is_named(
    number: int, present: list[bool], owned: list[list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plan_reduction(number, present, owned)


def test_too_few_padded_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="rows_per_worker is 1"):
        plan_reduction(4, [True] * 4, [[0, 2], [1, 3]], rows_per_worker=1)
