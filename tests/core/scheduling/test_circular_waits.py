"""Jobs that are to swap places do so, whatever they hold and are to hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from controlplane.core.cycle import decide
from controlplane.core.policies import POLICIES
from controlplane.core.scheduling.plan import plan_between
from controlplane.core.values.types import Allocation, Plan, Snapshot
from tests.core.snapshots import (
    Speed,
    accelerators_make,
    after,
    job_make,
    per_policy,
    snapshot_make,
    snapshots,
)

EIGHT = accelerators_make("x x x x", "y y y y")


def swap(least: int = 1, **other: object) -> Snapshot:
    """Make two jobs that hold x and y and a third one that waits."""
    jobs = (
        job_make(1, least=least, most=4),
        job_make(2, least=least, most=4),
        job_make(3, kinds="x", most=1),
    )
    held = {1: (1, 2, 3, 4), 2: (5, 6, 7, 8)}
    return replace(snapshot_make(EIGHT, *jobs, held=held), **other)


SWAPPED = Allocation({1: (5, 6, 7, 8), 2: (1, 2, 3), 3: (4,)}, {1: "Gets y.", 2: "Gets x."})


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ((5,), "Another job still has to leave it."),
        ((4, 5), "Other jobs still have to leave 1 of these 2."),
        ((5, 6), "Other jobs still have to leave all of these 2."),
    ],
)
def test_accelerators_that_others_hold_are_counted_in_words(
    wanted: tuple[int, ...], told: str
) -> None:
    plan = plan_between(swap(), Allocation({1: wanted, 2: ()}, {1: "Gets y.", 2: "Is stopped."}))
    assert plan.reasons[1].startswith(f"Gets y. {told}")


def test_jobs_shrink_before_any_stops() -> None:
    first = plan_between(swap(), SWAPPED)
    (resize,) = first.resizes
    assert resize.job_id == 1
    assert resize.wanted == (4,)
    assert resize.reason == (
        "Gets y. Other jobs still have to leave all of these 4. Gives up 3 of 4 "
        "accelerators first, because jobs that are to swap places would wait for each other."
    )
    second = plan_between(after(swap(), first), SWAPPED)
    assert [(resize.job_id, resize.wanted) for resize in second.resizes] == [(2, (1, 2, 3))]
    third = plan_between(after(after(swap(), first), second), SWAPPED)
    assert [(resize.job_id, resize.wanted) for resize in third.resizes] == [(1, (5, 6, 7, 8))]


def test_jobs_move_by_way_of_idle_accelerators_before_any_shrinks() -> None:
    more = accelerators_make("x x x x", "y y y y", "z z")
    plan = plan_between(swap(accelerators=more), SWAPPED)
    assert [(resize.job_id, resize.wanted) for resize in plan.resizes] == [(1, (9, 10))]
    assert "Moves to 2 idle accelerators first" in plan.resizes[0].reason
    shunned = swap(accelerators=more, excluded={1: frozenset({10}), 2: frozenset({9, 10})})
    assert plan_between(shunned, SWAPPED).resizes[0].wanted == (9,)


def test_the_lighter_job_stops_where_nothing_else_helps() -> None:
    heavy, light, third = swap(least=4).jobs
    snapshot = swap(least=4, jobs=(replace(heavy, weight=5.0), light, third))
    target = Allocation({1: (5, 6, 7, 8), 2: (1, 2, 3, 4)})
    plan = plan_between(snapshot, target)
    assert [(resize.job_id, resize.wanted) for resize in plan.resizes] == [(2, ())]
    assert "Stops until its new accelerators are free" in plan.resizes[0].reason


def test_releases_under_way_are_waited_for() -> None:
    """Job 1 has given up three, which are not free yet: nobody gives up more."""
    snapshot = swap(held={1: (4,), 2: (5, 6, 7, 8)}, releasing=frozenset({1, 2, 3}))
    assert plan_between(snapshot, SWAPPED).resizes == ()


@st.composite
def full_clusters(draw: st.DrawFn) -> Snapshot:
    """Draw jobs that hold a whole cluster, most of them on the kind that is ten times as slow."""
    accelerators = accelerators_make(*["slow slow", "fast fast"] * draw(st.integers(1, 3)))
    jobs, held = [], {}
    for number in range(1, draw(st.integers(2, 6)) + 1):
        least = draw(st.integers(1, 2))
        job = job_make(number, least=least, most=draw(st.integers(least, 4)))
        is_misplaced = draw(st.sampled_from([True, True, True, False]))
        kind = draw(st.sampled_from(["slow", "fast"]))
        better = "fast" if (kind == "slow") is is_misplaced else "slow"
        speed = Speed(by_kind={better: 10.0})
        taken = {one for row in held.values() for one in row}
        usable = [a.id for a in accelerators if a.kind == kind and a.id not in taken]
        if len(usable) >= least:
            held[number] = tuple(usable[: job.max_accelerators])
        jobs.append(replace(job, performance=speed, remaining_examples=1e6, resize_s=0.1))
    return snapshot_make(accelerators, *jobs, held=held, now=500.0)


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[Snapshot, Allocation]:
    """Draw a full cluster in which jobs get what others of them hold."""
    snapshot = draw(full_clusters())
    rows = draw(st.permutations(list(snapshot.held.values())))
    pairs = zip(snapshot.held, rows, strict=True)
    jobs = {job.id: job for job in snapshot.jobs}
    wanted = {
        number: row[: jobs[number].max_accelerators]
        for number, row in pairs
        if len(row) >= jobs[number].min_accelerators
    }
    return snapshot, Allocation(wanted)


def applied(snapshot: Snapshot, plan: Plan, delays: st.DataObject) -> Snapshot:
    """Apply a plan; accelerators that were given up may take a while to be free."""
    then = after(snapshot, plan)
    leaving = snapshot.in_use.difference(*then.held.values())
    slow = frozenset(one for one in sorted(leaving) if delays.draw(st.booleans()))
    return replace(then, releasing=slow)


@given(drawn=exchanges(), delays=st.data())
def test_whatever_is_wanted_is_reached(
    drawn: tuple[Snapshot, Allocation], delays: st.DataObject
) -> None:
    snapshot, allocation = drawn
    for _ in range(40):
        plan = plan_between(snapshot, allocation)
        note(f"{snapshot.held} -> {[(one.job_id, one.wanted) for one in plan.resizes]}")
        if not plan.resizes and not snapshot.releasing:
            break
        snapshot = applied(snapshot, plan, delays)
    assert not plan.waiting
    held = {job_id: set(row) for job_id, row in snapshot.held.items()}
    assert held == {job_id: set(row) for job_id, row in allocation.accelerators.items()}


@pytest.mark.parametrize("name", ["gavel", "goodput_fair", "sia"])
def test_jobs_that_are_faster_on_each_others_kind_swap(name: str) -> None:
    snapshot = ten_times_as_fast_elsewhere()
    for _ in range(6):
        snapshot = after(snapshot, decide(snapshot, name))
    assert set(snapshot.held[1]) <= {5, 6, 7, 8}
    assert set(snapshot.held[2]) <= {1, 2, 3, 4}


@pytest.mark.parametrize("name", ["goodput_fair", "sia"])
def test_job_that_is_given_a_part_of_what_is_swapped_starts(name: str) -> None:
    """A third job of unknown speed waits for one of kind x."""
    pair = ten_times_as_fast_elsewhere()
    snapshot = replace(pair, jobs=(*pair.jobs, swap().jobs[2]))
    assert decide(snapshot, name).reasons[3].startswith("Is given 1 of 4 x;")
    for _ in range(6):
        snapshot = after(snapshot, decide(snapshot, name))
    assert set(snapshot.held[1]) <= {5, 6, 7, 8}
    assert set(snapshot.held[2]) | set(snapshot.held[3]) <= {1, 2, 3, 4}


def ten_times_as_fast_elsewhere() -> Snapshot:
    """Make two jobs, each of which holds the kind on which the other one is ten times as fast."""
    first, second = swap().jobs[:2]
    jobs = (
        replace(first, performance=Speed(by_kind={"y": 10.0}), remaining_examples=1e6),
        replace(second, performance=Speed(by_kind={"x": 10.0}), remaining_examples=1e6),
    )
    return swap(jobs=jobs, now=500.0)


@pytest.mark.parametrize("name", sorted(POLICIES))
@per_policy
@given(snapshot=full_clusters() | snapshots(), delays=st.data())
def test_nobody_waits_for_ever(name: str, snapshot: Snapshot, delays: st.DataObject) -> None:
    """Once nothing changes any more, every job holds what its policy gives it."""
    for _ in range(40):
        plan = decide(snapshot, name)
        note(f"{snapshot.held} -> {[(one.job_id, one.wanted) for one in plan.resizes]}")
        if not plan.resizes and not snapshot.releasing:
            break
        snapshot = applied(snapshot, plan, delays)
    assert plan.resizes == ()
    assert plan.waiting == {}


def test_jobs_of_equal_claims_do_not_take_turns() -> None:
    """Four accelerators of the kind on which three jobs, one of them of two, are ten times as fast.

    With time passing, the job on the other kind falls behind, and an exchange would only let
    another one fall behind. Seen before: they exchanged kinds every 140 s for ever.
    """
    accelerators = accelerators_make("slow slow", "fast fast", "slow slow", "fast fast")
    sizes = {1: ("slow", 1, 3), 2: ("fast", 1, 3), 3: ("slow", 1, 3), 4: ("slow", 2, 2)}
    jobs = [
        replace(
            job_make(number, least=least, most=most),
            performance=Speed(by_kind={kind: 10.0}),
            remaining_examples=1e6,
            resize_s=0.1,
        )
        for number, (kind, least, most) in sizes.items()
    ]
    held = {1: (3, 4, 7), 2: (1, 2, 5), 3: (6,)}
    snapshot = snapshot_make(accelerators, *jobs, held=held, now=500.0)
    changes = []
    for _ in range(120):  # ten minutes
        plan = decide(snapshot, "goodput_fair")
        changes += [snapshot.now for _ in plan.resizes]
        snapshot = replace(after(snapshot, plan), now=snapshot.now + 5.0)
    assert snapshot.held.keys() == sizes.keys()
    assert max(changes) < 600.0
