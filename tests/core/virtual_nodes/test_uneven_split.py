"""The planner of uneven splits against numbers made by hand and against trying everything."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimates.step_time import Sample, StepTime, step_time_fit, sync_time_fit
from controlplane.core.virtual_nodes.mapping import even_mapping
from controlplane.core.virtual_nodes.uneven_split import (
    MixVerdict,
    SecondsBySplit,
    exchange_by_rows,
    finish_s,
    mapping_for,
    mix_verdict,
    plan_counts,
    rows_of,
    team_plan,
)
from tests.support.present import present

Seconds = Callable[[int], float]


def linear(per_virtual_node_s: float, base_s: float = 0.0) -> StepTime:
    """Make an exactly straight step time."""
    points = {
        number: Sample(
            10, base_s + per_virtual_node_s * number, base_s + per_virtual_node_s * number
        )
        for number in (1, 2)
    }
    return present(step_time_fit(points))


FAST, SLOW = linear(0.01), linear(0.03)


def test_three_to_one_is_split_three_to_one() -> None:
    assert plan_counts([FAST, SLOW], 8) == (6, 2)
    assert plan_counts([SLOW, FAST, FAST], 14) == (2, 6, 6)


def test_a_fixed_cost_counts() -> None:
    # 0.05 + 0.01 v against 0.01 w: 6 + 11 take 0.11 s, 5 + 12 and 7 + 10 take 0.12 s.
    assert plan_counts([linear(0.01, 0.05), FAST], 17) == (6, 11)


def test_everybody_gets_one_however_slow() -> None:
    assert plan_counts([FAST, linear(10.0), FAST], 9) == (4, 1, 4)


def test_equal_ones_are_split_evenly() -> None:
    assert sorted(plan_counts([FAST] * 3, 8)) == [2, 3, 3]


@pytest.mark.parametrize("num", [0, 5])
def test_too_many_or_no_accelerators_are_refused(num: int) -> None:
    with pytest.raises(ValueError, match="4 virtual nodes cannot occupy"):
        plan_counts([FAST] * num, 4)


def rising(steps: list[int]) -> Seconds:
    """Make a function that never falls from its rises, plateaus included."""
    return lambda number: 0.001 * sum(steps[: min(number, len(steps))]) + 0.0


@given(
    st.lists(st.lists(st.integers(0, 20), min_size=9, max_size=9), min_size=1, max_size=4),
    st.integers(0, 5),
)
def test_no_split_is_better(rises: list[list[int]], more: int) -> None:
    step_times = [rising(row) for row in rises]
    num_virtual_nodes = len(step_times) + more
    counts = plan_counts(step_times, num_virtual_nodes)
    assert sum(counts) == num_virtual_nodes
    assert min(counts) >= 1
    splits = product(range(1, more + 2), repeat=len(step_times))
    best = min(finish_s(step_times, row) for row in splits if sum(row) == num_virtual_nodes)
    assert finish_s(step_times, counts) == best


def test_large_clusters_are_planned() -> None:
    step_times = [FAST.scaled(1.0 + 0.01 * number) for number in range(256)]
    counts = plan_counts(step_times, 1024)
    assert sum(counts) == 1024
    # Nobody could take one from whoever is last and be done earlier.
    last = finish_s(step_times, counts)
    assert all(f(c + 1) >= last for f, c in zip(step_times, counts, strict=True))


def test_mapping_is_even_where_speeds_are_unknown_or_alike() -> None:
    assert mapping_for(8, [FAST, None]) == even_mapping(8, 2)
    assert mapping_for(8, [None]) == even_mapping(8, 1)
    assert mapping_for(7, [FAST] * 3) == even_mapping(7, 3)
    # 8 + 8 of 100 and 101 ms each: the even split is within two percent of any other.
    assert mapping_for(16, [FAST, FAST.scaled(1.01)]) == even_mapping(16, 2)


def test_mapping_is_contiguous_in_the_order_given() -> None:
    assert mapping_for(8, [SLOW, FAST]) == ((0, 1), (2, 3, 4, 5, 6, 7))


@pytest.mark.parametrize(
    ("counts", "rows"), [((8, 8), 1), ((12, 4), 2), ((13, 3), 3), ((11, 5), 3), ((15, 1), 4)]
)
def test_rows_are_the_aligned_blocks_of_the_longest_part(
    counts: tuple[int, ...], rows: int
) -> None:
    # 13 are 8 + 4 + 1; 11 are 8 + 2 + 1 and the other 5 are 1 + 4.
    assert rows_of(counts) == rows


def test_a_costly_exchange_asks_for_fewer_rows() -> None:
    step_times = [FAST, linear(0.04)]

    def known(**seconds: float) -> SecondsBySplit:
        by_rows = {int(rows[1:]): linear(0.0001, value) for rows, value in seconds.items()}
        return exchange_by_rows(by_rows, is_exact=True)

    # 13 + 3 take 130 ms in three rows, 12 + 4 take 160 ms in two, 8 + 8 take 320 ms in one.
    assert [len(run) for run in mapping_for(16, step_times, known(r1=0.1))] == [13, 3]
    assert [len(run) for run in mapping_for(16, step_times, known(r2=0.1, r3=0.12))] == [13, 3]
    assert [len(run) for run in mapping_for(16, step_times, known(r2=0.1, r3=0.2))] == [12, 4]
    far = known(r1=0.1, r2=0.4, r3=0.5)
    assert mapping_for(16, step_times, far) == even_mapping(16, 2)
    # In the fast mode everything travels in one row.
    fast = exchange_by_rows({1: linear(0.0001, 0.1)}, is_exact=False)
    assert [len(run) for run in mapping_for(16, step_times, fast)] == [13, 3]
    assert exchange_by_rows({}, is_exact=True)((8, 8)) == 0.0
    assert far((16,)) == 0.0


def test_mapping_refuses_idle_accelerators() -> None:
    with pytest.raises(ValueError, match="cannot occupy"):
        mapping_for(1, [FAST, FAST])


def test_a_team_pays_for_its_exchange() -> None:
    sync = sync_time_fit({2: Sample(1, 0.005, 0.005)})
    team = team_plan({"fast": 1, "slow": 1}, {"fast": FAST, "slow": SLOW}, sync, 8)
    assert team.counts == (6, 2)
    assert team.step_s == pytest.approx(0.065)


def verdict(offered: dict[str, int], sync_s: float, own: int = 1) -> MixVerdict | None:
    return mix_verdict(
        "fast",
        own,
        offered,
        {"fast": FAST, "slow": SLOW},
        sync_time_fit({2: Sample(1, sync_s, sync_s)}),
        num_virtual_nodes=8,
        max_accelerators=4,
        least_gain=0.05,
    )


def known(offered: dict[str, int], sync_s: float) -> MixVerdict:
    return present(verdict(offered, sync_s))


def test_a_mix_that_pays() -> None:
    found = known({"slow": 1}, sync_s=0.005)
    assert found.is_mix
    assert found.mixed.kinds == {"fast": 1, "slow": 1}
    assert found.sentence() == "1 fast + 1 slow mixed: 65 ms a step instead of 80 ms on 1 fast"


def test_a_mix_that_does_not_pay_says_both_numbers() -> None:
    found = known({"slow": 1}, sync_s=0.018)
    assert not found.is_mix
    assert (
        found.sentence() == "not mixed: 1 fast + 1 slow would need 78 ms a step, 1 fast need 80 ms"
    )


def test_no_more_than_help_are_taken() -> None:
    # With 5 + 1 + 1 + 1 the step takes 0.05 s; with 6 + 2 and 6 + 1 + 1 it takes 0.06 s.
    assert known({"slow": 9}, sync_s=0.001).mixed.kinds == {"fast": 1, "slow": 3}
    assert known({"slow": 2}, sync_s=0.001).mixed.kinds == {"fast": 1, "slow": 1}


def test_nothing_is_said_without_a_choice() -> None:
    assert verdict({}, 0.001) is None
    assert verdict({"unmeasured": 3}, 0.001) is None
    assert verdict({"slow": 3}, 0.001, own=4) is None


def test_numbers_tried_never_skip_the_last() -> None:
    found = mix_verdict(
        "fast",
        1,
        {"slow": 100},
        {"fast": FAST, "slow": SLOW},
        None,
        num_virtual_nodes=1000,
        max_accelerators=101,
        least_gain=0.05,
    )
    assert found is not None
    assert found.mixed.kinds == {"fast": 1, "slow": 100}  # no exchange cost: all of them help
