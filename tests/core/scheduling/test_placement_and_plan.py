"""Placement and plans, worked out by hand."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from controlplane.core.cycle import decide, decision_check
from controlplane.core.scheduling.free_capacity import FreeCapacity
from controlplane.core.scheduling.placement import place
from controlplane.core.scheduling.plan import plan_between
from controlplane.core.values.types import Allocation, Decision, Share
from tests.core.snapshots import accelerators_make, job_make, snapshot_make

SIX = accelerators_make("cpu cpu", "cpu cpu", "cpu cpu")


def placed(snapshot, **shares: int) -> dict[int, tuple[int, ...]]:
    wanted = {int(name[1:]): Share("cpu", count) for name, count in shares.items()}
    return dict(place(snapshot, Decision(wanted, {})).accelerators)


def test_growth_keeps_what_is_held_and_fills_the_own_node_first() -> None:
    snapshot = snapshot_make(SIX, job_make(1), held={1: (3,)})
    assert placed(snapshot, j1=2) == {1: (3, 4)}


def test_shrink_keeps_the_leader_and_its_node() -> None:
    snapshot = snapshot_make(SIX, job_make(1), held={1: (3, 1, 2, 4)})
    assert placed(snapshot, j1=2) == {1: (3, 4)}


def test_new_job_takes_the_node_with_the_least_room_that_is_enough() -> None:
    snapshot = snapshot_make(SIX, job_make(1), job_make(2), held={1: (1,)})
    assert placed(snapshot, j1=1, j2=1) == {1: (1,), 2: (2,)}
    assert placed(snapshot, j1=1, j2=2) == {1: (1,), 2: (3, 4)}


def test_free_accelerators_come_before_those_still_in_use() -> None:
    snapshot = snapshot_make(SIX, job_make(1), held={}, releasing=(1, 2, 3))
    assert placed(snapshot, j1=3) == {1: (5, 6, 4)}


def test_places_that_a_policy_chose_are_kept_to() -> None:
    nodes = accelerators_make("cpu cpu", "cpu cpu", "cpu cpu cpu")
    snapshot = snapshot_make(
        nodes, job_make(1), job_make(2), job_make(3), held={1: (1, 3), 2: (5,)}
    )
    by_node = Decision(
        {
            1: Share("cpu", 3, by_node={2: 1, 3: 2}),
            2: Share("cpu", 1, by_node={1: 1}),
            3: Share("cpu", 2),
        },
        {1: "x", 2: "x", 3: "x"},
    )
    decision_check(snapshot, by_node)
    # Job 1 keeps 3, gives up 1 and goes to the free 6 and 7; job 2 leaves 5 for 2, which is free.
    # Job 3, without a wish, gets 4, which is free, and then one that is in use.
    assert place(snapshot, by_node).accelerators == {1: (3, 6, 7), 2: (2,), 3: (4, 1)}


def test_chosen_places_win_over_what_others_hold() -> None:
    snapshot = snapshot_make(SIX, job_make(1), job_make(2), held={2: (1, 2)})
    wanted = Decision({1: Share("cpu", 1, by_node={1: 1}), 2: Share("cpu", 2)}, {})
    assert place(snapshot, wanted).accelerators == {1: (1,), 2: (2, 3)}


def test_more_than_a_node_has_is_refused() -> None:
    snapshot = snapshot_make(SIX, job_make(1))
    wanted = Decision({1: Share("cpu", 3, by_node={2: 3})}, {1: "x"})
    with pytest.raises(AssertionError, match="3 of 2 cpu on node 2 are given out"):
        decision_check(snapshot, wanted)
    with pytest.raises(ValueError, match="job 1 needs 3 more of kind cpu on node 2, 2 are left"):
        place(snapshot, wanted)


def test_rooms_give_the_best_fitting_node_whatever_was_taken() -> None:
    nodes = accelerators_make("a a a", "a", "a a", "a a")
    rooms = FreeCapacity(nodes)
    assert [rooms.best_node(needed) for needed in (1, 2, 3, 4)] == [2, 3, 1, 1]
    taken = rooms.take(3, 1) + rooms.take(2, 1)
    assert [rooms.best_node(needed) for needed in (1, 2)] == [3, 4]
    assert rooms.withdraw(frozenset({1, 2, 7})) == [nodes[0], nodes[1], nodes[6]]
    assert [rooms.best_node(needed) for needed in (1, 2)] == [1, 1]
    rooms.give_back(taken)
    assert [rooms.best_node(needed) for needed in (1, 2)] == [1, 3]
    assert [one.id for one in rooms.take(3, 9)] == [5, 6]


def test_thousands_of_jobs_are_placed_at_once() -> None:
    """Time grows with what is given out, not with its square: minutes otherwise."""
    nodes = accelerators_make(*["cpu cpu cpu cpu cpu cpu cpu cpu"] * 640)
    jobs = [job_make(i) for i in range(1, 2501)]
    held = {i: (2 * i - 1,) for i in range(1, 2501, 2)}
    snapshot = snapshot_make(nodes, *jobs, held=held)
    decision = Decision({job.id: Share("cpu", 2) for job in jobs}, {job.id: "x" for job in jobs})
    began = time.process_time()
    decision_check(snapshot, decision)
    plan = plan_between(snapshot, place(snapshot, decision))
    assert time.process_time() - began < 1.5
    assert len(plan.resizes) == 2500
    assert plan.waiting == {}


def test_too_large_a_share_is_refused() -> None:
    with pytest.raises(ValueError, match="job 1 needs 7 more of kind cpu, 6 are left"):
        placed(snapshot_make(SIX, job_make(1)), j1=7)


def test_grow_waits_until_the_shrunk_job_has_let_go() -> None:
    four = accelerators_make("cpu cpu", "cpu cpu")
    jobs = (job_make(1), job_make(2, at=5))
    first = decide(snapshot_make(four, *jobs, held={1: (1, 2, 3, 4)}, now=5), "weighted_fair")
    assert [(resize.job_id, resize.wanted) for resize in first.resizes] == [(1, (1, 2))]
    assert first.waiting == {2: (3, 4)}
    letting_go = snapshot_make(four, *jobs, held={1: (1, 2)}, releasing=(3, 4), now=5)
    assert decide(letting_go, "weighted_fair").resizes == ()
    gone = snapshot_make(four, *jobs, held={1: (1, 2)}, now=5)
    then = decide(gone, "weighted_fair")
    assert [(resize.job_id, resize.wanted) for resize in then.resizes] == [(2, (3, 4))]


def test_job_in_a_resize_is_left_alone() -> None:
    four = accelerators_make("cpu cpu", "cpu cpu")
    snapshot = snapshot_make(four, job_make(1), job_make(2), held={1: (1, 2, 3, 4)}, resizing=(1,))
    assert decide(snapshot, "weighted_fair").resizes == ()


def test_job_whose_node_goes_away_moves_or_saves_its_state() -> None:
    left = accelerators_make("cpu cpu")
    job = job_make(1, most=2)
    moves = plan_between(snapshot_make(left, job, held={1: (7,)}), Allocation({1: (1,)}))
    assert moves.resizes[0].wanted == (1,)
    blocked = snapshot_make(left, job, held={1: (7,)}, releasing=(1,))
    saves = plan_between(blocked, Allocation({1: (1,)}))
    assert not saves.resizes[0].wanted
    assert saves.waiting == {1: (1,)}


@pytest.mark.parametrize("num_vacating", [0, 1, 2])
def test_job_on_a_node_that_it_has_to_leave_stays_until_its_new_places_are_free(
    num_vacating: int,
) -> None:
    """Both of its accelerators go; where one of them has gone already it cannot go on."""
    left = accelerators_make("cpu cpu")[:2]
    snapshot = snapshot_make(left, job_make(1), held={1: (3, 4)}, releasing=(1,))
    snapshot = replace(snapshot, vacating=frozenset((3, 4)[:num_vacating]))
    plan = plan_between(snapshot, Allocation({1: (1, 2)}, {1: "moves"}))
    assert plan.waiting == {1: (1,)}
    assert [resize.wanted for resize in plan.resizes] == ([] if num_vacating == 2 else [()])
    free = replace(snapshot, releasing=frozenset())
    plan = plan_between(free, Allocation({1: (1, 2)}, {1: "moves"}))
    assert [(resize.held, resize.wanted) for resize in plan.resizes] == [((3, 4), (1, 2))]


def test_job_below_its_minimum_waits_where_it_is_until_others_need_that() -> None:
    two = accelerators_make("cpu cpu")
    job = job_make(1, least=3, most=4)
    held = {1: (1,)}
    assert plan_between(snapshot_make(two, job, held=held), Allocation({})).resizes == ()
    other = Allocation({2: (1, 2)})
    saves = plan_between(snapshot_make(two, job, job_make(2), held=held), other)
    assert [(resize.job_id, resize.wanted) for resize in saves.resizes] == [(1, ())]
    elsewhere = snapshot_make(accelerators_make("cpu cpu"), job, held={1: (7,)})
    assert not plan_between(elsewhere, Allocation({})).resizes[0].wanted


def test_what_a_job_shuns_is_given_to_it_last_and_left_out_of_the_plan() -> None:
    two = accelerators_make("cpu cpu")
    excluded = {1: frozenset({1})}
    snapshot = replace(snapshot_make(two, job_make(1)), excluded=excluded)
    assert placed(snapshot, j1=1) == {1: (2,)}
    three = snapshot_make(accelerators_make("cpu cpu", "cpu"), job_make(1), job_make(2))
    beside = placed(replace(three, excluded={1: frozenset({3})}), j1=1, j2=2)
    assert beside[1] != (3,), "what is shunned is left to the larger job"
    plan = plan_between(snapshot, Allocation({1: (2, 1)}, {1: "Gets 2 of 2."}))
    assert [resize.wanted for resize in plan.resizes] == [(2,)]
    assert plan.reasons[1].startswith("Gets 2 of 2. 1 of these are left out for a while")
    whole = replace(snapshot_make(two, job_make(1, least=2)), excluded=excluded)
    assert plan_between(whole, Allocation({1: (2, 1)})).resizes == ()
    held = replace(snapshot_make(two, job_make(1), held={1: (1,)}), excluded=excluded)
    assert [r.wanted for r in plan_between(held, Allocation({1: (1, 2)})).resizes] == [(1, 2)]


def test_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match=r"policy must be one of .*fifo, .*weighted_fair"):
        decide(snapshot_make(SIX), "best")
