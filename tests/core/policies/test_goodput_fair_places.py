"""Places that goodput_fair gives its jobs, and the moves to them that wait for each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.policies.goodput_fair.placement import (
    PlacementMove,
    Tenant,
    arrange,
    turns_of,
    waits,
)
from tests.core.snapshots import Speed, job_make


def tenant(job_id: int, count: int, now: dict[int, int], distance: float = 1.0) -> Tenant:
    speed = Speed(distance=distance)
    job = replace(job_make(job_id), performance=speed, remaining_examples=1e6)
    return Tenant(job, count, now, worth=1.0, slope=1.0, change_s=10.0, lasts_s=240.0)


def test_scattered_jobs_come_together() -> None:
    rooms = {1: 4, 2: 4}
    found = arrange([tenant(1, 2, {1: 1, 2: 1}), tenant(2, 4, {}), tenant(3, 2, {1: 2})], rooms, "")
    assert found is not None
    assert [dict(places) for places in found] == [{1: 2}, {2: 4}, {1: 2}]


PLACES = st.dictionaries(st.integers(1, 4), st.integers(1, 2), max_size=3)


@given(moves=st.lists(st.tuples(st.none() | PLACES, PLACES), max_size=5))
def test_jobs_that_stay_hold_up_nobody(
    moves: list[tuple[dict[int, int] | None, dict[int, int]]],
) -> None:
    """Turns are the same as if all jobs were looked at; None: a job that stays."""
    held = [to if now is None else now for now, to in moves]
    wanted = [to for _, to in moves]
    rooms = {
        node: max(sum(place.get(node, 0) for place in each) for each in (held, wanted))
        for node in range(1, 5)
    }
    tenants = [tenant(1, sum(to.values()), now) for now, to in zip(held, wanted, strict=True)]
    all_moves = [PlacementMove(1, now, to) for now, to in zip(held, wanted, strict=True)]
    assert turns_of(tenants, rooms, wanted) == waits(rooms, all_moves)


def test_nobody_moves_for_nothing() -> None:
    scattered = tenant(1, 2, {1: 1, 2: 1}, distance=0.0)
    assert arrange([scattered], {1: 4, 2: 4}, "") == [{1: 1, 2: 1}]


def test_jobs_never_wait_for_each_other_in_a_ring() -> None:
    """Whole nodes for both would need each to leave what the other one waits for."""
    tenants = [tenant(i, 4, {1: 2, 2: 2}) for i in (1, 2)]
    tenants = [replace(one, job=replace(one.job, min_accelerators=4)) for one in tenants]
    assert arrange(tenants, {1: 4, 2: 4}, "") == [{1: 2, 2: 2}, {1: 2, 2: 2}]


def test_who_waits_for_whom_to_move() -> None:
    """Job 1 moves to where job 2 leaves; a third begins where job 1 was."""
    moves = [
        PlacementMove(2, {1: 2}, {2: 2}),
        PlacementMove(2, {2: 2}, {3: 2}),
        PlacementMove(2, {}, {1: 2}),
    ]
    assert waits({1: 2, 2: 2, 3: 2}, moves) == [1, 0, 2]
    assert waits({1: 2, 2: 2, 3: 0}, moves) is None
    back = [moves[0], PlacementMove(2, {2: 2}, {1: 2})]
    assert waits({1: 2, 2: 2}, back) is None


@pytest.mark.parametrize(
    ("slope", "expected"), [(1.0, [{1: 2, 2: 1}, {1: 2, 2: 1}]), (0.1, [{1: 3}, {2: 3}])]
)
def test_a_start_does_not_wait_for_others_to_move_but_for_its_gain(
    slope: float, expected: list[dict[int, int]]
) -> None:
    """On a node of its own each would gain 0.003 * 30 a second * 240 s * 1/11 = 2 s; 4 together.

    The second has to wait 5 s for that, until the first has moved.
    """
    first = replace(tenant(1, 3, {1: 2, 2: 1}, distance=0.1), worth=0.003, change_s=0.0)
    first = replace(first, job=replace(first.job, min_accelerators=3))
    second = replace(tenant(2, 3, {}, distance=0.1), worth=0.003, slope=slope)
    other = replace(tenant(3, 1, {2: 1}), is_fixed=True)
    found = arrange([first, second, other], {1: 4, 2: 4}, "")
    assert found is not None
    assert [dict(places) for places in found[:2]] == expected
