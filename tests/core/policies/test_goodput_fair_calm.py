"""Our own policy leaves jobs in peace: measured speeds err, and newcomers are unknown."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from controlplane.core.cycle import decide
from controlplane.core.policies.goodput_fair.counts import NEW_OWED_S, OWED_S
from controlplane.core.policies.goodput_fair.policy import goodput_fair
from controlplane.core.values.types import Accelerator, Job, Snapshot
from tests.core.snapshots import Speed, accelerators_make, after, job_make, snapshot_make
from tests.support.cases import pairs

CYCLE_S, NUM_CYCLES = 5.0, 50


@dataclass(frozen=True)
class Measured:
    """n accelerators do n ** `power` times as much as one, but measured with errors."""

    power: float
    errors: tuple[float, ...]

    def goodput(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        error = self.errors[num_accelerators % len(self.errors)]
        return 10.0 * num_accelerators**self.power * error if num_accelerators else 0.0

    def goodputs(self, kind: str, most: int, per_node: int) -> NDArray[np.float64]:
        return np.array([self.goodput(kind, count, 1) for count in range(most + 1)])

    def batch_size(self, kind: str, num_accelerators: int, num_nodes: int) -> int:
        return 64


def nodes(*sizes: int) -> tuple[Accelerator, ...]:
    return accelerators_make(*(" ".join(["cpu"] * size) for size in sizes))


def resizes_over_time(snapshot: Snapshot, power: float, num_errors: int, seed: int) -> Counter[int]:
    """Count changes of jobs that hold something over `NUM_CYCLES`, by job.

    In every cycle each job is as fast as measured now: up to 20 % more or less than the truth, in
    `num_errors` different ways.
    """
    draw = random.Random(seed)
    found: Counter[int] = Counter()
    for cycle in range(NUM_CYCLES):
        jobs = []
        for job in snapshot.jobs:
            count = len(snapshot.held.get(job.id, ()))
            errors = tuple(draw.uniform(0.8, 1.2) for _ in range(num_errors))
            assert job.remaining_examples is not None
            done = 10.0 * count**power * CYCLE_S if count else 0.0
            jobs.append(
                replace(
                    job,
                    performance=Measured(power, errors) if cycle else None,
                    remaining_examples=job.remaining_examples - done,
                    done_examples=job.done_examples + done,
                    attained_accelerator_s=job.attained_accelerator_s + count * CYCLE_S,
                )
            )
        snapshot = replace(snapshot, now=cycle * CYCLE_S, jobs=tuple(jobs))
        for _ in range(2):  # what waits for a release goes on at once
            plan = decide(snapshot, "goodput_fair")
            found.update(resize.job_id for resize in plan.resizes if resize.held)
            snapshot = after(snapshot, plan)
            if not plan.waiting:
                break
    return found


@pytest.mark.parametrize(
    ("num_errors", "most"), [(1, 3), (17, 8)], ids=["as a whole", "each count"]
)
@pytest.mark.parametrize(
    ("cluster", "power"), pairs([((4,), 3), ((2, 2), 3), ((4, 4, 4, 4), 5)], [0.6, 0.9])
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_errors_of_measurements_hardly_move_anybody(
    seed: int, cluster: tuple[tuple[int, ...], int], power: float, num_errors: int, most: int
) -> None:
    """At most so many changes a job in four minutes, however the errors fall."""
    sizes, num_jobs = cluster
    jobs = [
        replace(job_make(i, most=16), remaining_examples=50_000.0 * i)
        for i in range(1, num_jobs + 1)
    ]
    found = resizes_over_time(snapshot_make(nodes(*sizes), *jobs), power, num_errors, seed)
    assert sum(found.values()) <= most * num_jobs, found


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))))
def test_three_that_come_at_once_share_what_there_is(order: tuple[int, ...]) -> None:
    """Nothing is known of their speed; each could use all."""
    decision = goodput_fair(snapshot_make(nodes(4), *(job_make(i) for i in order)))
    assert sorted(share.count for share in decision.shares.values()) == [1, 1, 2]


def busy(weight: float = 1.0, number: int = 4) -> Snapshot:
    """Give a cluster that jobs of known speed fill, one accelerator each, for ten minutes now."""
    jobs = [
        replace(
            job_make(i, weight=weight, most=1),
            remaining_examples=1e4 * i,
            performance=Speed(),
            running_since=400.0,
            changed_at=400.0,
            attained_accelerator_s=600.0,
            most_accelerators=1,
        )
        for i in range(1, number + 1)
    ]
    held = {i: (i,) for i in range(1, number + 1)}
    return snapshot_make(nodes(4), *jobs, held=held, now=1000.0)


def with_newcomer(snapshot: Snapshot, **options: object) -> Snapshot:
    newcomer = job_make(9, **{"at": snapshot.now, **options})  # type: ignore[arg-type]
    return replace(snapshot, jobs=(*snapshot.jobs, newcomer))


def test_nobody_is_stopped_for_a_job_of_unknown_speed() -> None:
    decision = goodput_fair(with_newcomer(busy()))
    assert set(decision.shares) == {1, 2, 3, 4}
    assert str(decision.reasons[9]).startswith("Waits for 1 of kind cpu; 4 of 4 held by 4 jobs")


def test_what_has_just_begun_keeps_what_it_has_if_others_can_give_way() -> None:
    """Of one of known and one of unknown speed, two each, the known one makes room for a third."""
    old = replace(busy(number=1).jobs[0], max_accelerators=2, most_accelerators=2)
    begun = job_make(2, at=980.0, most=2)
    begun = replace(begun, running_since=980.0, changed_at=980.0, most_accelerators=2)
    snapshot = snapshot_make(nodes(4), old, begun, held={1: (1, 2), 2: (3, 4)}, now=1000.0)
    shares = goodput_fair(with_newcomer(snapshot)).shares
    assert {i: share.count for i, share in shares.items()} == {1: 1, 2: 2, 9: 1}


@pytest.mark.parametrize(
    "begun", [set(some) for n in range(4) for some in itertools.combinations((1, 2, 3, 4), n)]
)
def test_what_has_just_begun_does_not_hold_up_what_is_owed(begun: set[int]) -> None:
    """Two are new and have waited for a minute; one is owed its minimum.

    Who has just begun is not stopped for it, so one of the others is.
    """
    snapshot = busy()
    jobs = [
        replace(job, running_since=990.0, changed_at=990.0) if job.id in begun else job
        for job in snapshot.jobs
    ]
    waiting = [job_make(number, at=940.0) for number in (8, 9)]
    found = set(goodput_fair(replace(snapshot, jobs=(*jobs, *waiting))).shares)
    assert len(found & {8, 9}) == 1
    assert begun < found


@pytest.mark.parametrize(
    ("left_s", "resize_s", "is_stopped"),
    [(20.0, 1.0, False), (60.0, 1.0, True), (60.0, 30.0, False), (0.0, 1.0, True)],
)
def test_what_ends_within_three_starts_is_not_stopped(
    left_s: float, resize_s: float, is_stopped: bool
) -> None:
    """A start takes 10 s, or as long as a resize. Who goes on beyond its end is no such job."""
    jobs = [
        replace(job, remaining_examples=10.0 * left_s, resize_s=resize_s) for job in busy().jobs
    ]
    owed = job_make(9, at=900.0, weight=2.0)
    found = set(goodput_fair(replace(busy(), jobs=(*jobs, owed))).shares)
    assert (9 in found) == is_stopped


def test_somebody_is_stopped_for_a_more_important_one() -> None:
    assert 9 in goodput_fair(with_newcomer(busy(), weight=2.0)).shares


def test_somebody_is_stopped_for_one_that_has_waited_for_long() -> None:
    """The waiting job ran before, but its speed is unknown."""
    for waited_s, expected in ((OWED_S, {9}), (OWED_S - 1.0, set())):
        snapshot = with_newcomer(busy(), at=1000.0 - waited_s)
        jobs = (*snapshot.jobs[:-1], replace(snapshot.jobs[-1], changed_at=0.0))
        assert set(goodput_fair(replace(snapshot, jobs=jobs)).shares) - {1, 2, 3, 4} == expected


@pytest.mark.parametrize("num_fresh", [0, 1, 8])
def test_a_new_job_waits_for_half_a_minute_at_most(num_fresh: int) -> None:
    """A new job may be short: later arrivals wait, and do not hold it up."""
    waited = with_newcomer(busy(), at=1000.0 - NEW_OWED_S)
    fresh = [job_make(number, at=1000.0) for number in range(10, 10 + num_fresh)]
    shares = goodput_fair(replace(waited, jobs=(*waited.jobs, *fresh))).shares
    assert set(shares) == {1, 2, 3, 9}, "the longest job makes way"


def test_new_jobs_stop_others_on_a_quarter_of_a_kind() -> None:
    """Twelve come at once to eight accelerators, each held by a job of known speed."""
    kept = busy(number=8)
    kept = replace(kept, accelerators=nodes(8))
    newcomers = [job_make(number, at=1000.0 - NEW_OWED_S) for number in range(11, 23)]
    shares = goodput_fair(replace(kept, jobs=(*kept.jobs, *newcomers))).shares
    assert len(set(shares) & set(range(1, 9))) == 6


@given(data=st.data())
def test_what_others_hold_beyond_their_minimum_is_enough_for_newcomers(data: st.DataObject) -> None:
    """Whoever runs goes on, on its minimum at least, however many come of unknown speed."""
    free = list(range(1, 9))
    jobs, held = [], {}
    for number in range(1, 1 + data.draw(st.integers(1, 4))):
        least = data.draw(st.integers(1, 2))
        count = data.draw(st.integers(least, 3))
        if count > len(free):
            break
        speed = Measured(data.draw(st.sampled_from([0.3, 0.7, 1.0])), (1.0,))
        held[number] = tuple(free.pop(0) for _ in range(count))
        jobs.append(
            replace(
                job_make(number, least=least),
                performance=speed,
                remaining_examples=data.draw(st.sampled_from([1e3, 1e5])),
                running_since=0.0,
                changed_at=0.0,
                most_accelerators=count,
                attained_accelerator_s=600.0 * count,
            )
        )
    alone = snapshot_make(nodes(4, 4), *jobs, held=held, now=600.0)
    kept = goodput_fair(alone).shares
    newcomers = [
        job_make(100 + i, at=600.0, least=data.draw(st.integers(1, 2)))
        for i in range(data.draw(st.integers(1, 8)))
    ]
    both = goodput_fair(replace(alone, jobs=(*alone.jobs, *newcomers))).shares
    assert set(kept) <= set(both)


def on_kind_a(tried: str, left_s: float, others: int = 0) -> Snapshot:
    """Give a job that holds two of kind a and has so long to go; b is taken to be 5 times as slow.

    `others` of the four of kind b are held.
    """
    accelerators = accelerators_make("a a", "b b b b")
    speed = Speed(by_kind={"a": 1.0, "b": 0.2})
    job = replace(
        job_make(1, most=2),
        performance=speed,
        remaining_examples=20.0 * left_s,
        tried_kinds=frozenset(tried.split()),
        running_since=0.0,
        changed_at=0.0,
        most_accelerators=2,
    )
    other = replace(
        job, id=2, max_accelerators=4, min_accelerators=4, accepted_kinds=frozenset("b")
    )
    held = {1: (1, 2)} | ({2: (3, 4, 5, 6)} if others else {})
    jobs = (job, other) if others else (job,)
    return snapshot_make(accelerators, *jobs, held=held, now=1000.0)


@pytest.mark.parametrize(
    ("tried", "left_s", "others", "change_s", "expected"),
    [
        ("a", 3600.0, 0, 30.0, "b"),  # nobody knows how fast its code is there
        ("a b", 3600.0, 0, 30.0, "a"),
        ("a", 500.0, 0, 30.0, "a"),  # not worth it any more
        ("a", 500.0, 0, 1.0, "b"),  # changes cost it little
        ("a", 100.0, 0, 1.0, "a"),
        ("a", 3600.0, 4, 30.0, "a"),  # no room
        ("", 3600.0, 0, 30.0, "a"),  # nobody knows what was tried
    ],
)
def test_long_jobs_try_idle_kinds_that_their_code_was_never_on(
    tried: str, left_s: float, others: int, change_s: float, expected: str
) -> None:
    snapshot = on_kind_a(tried, left_s, others)
    jobs = tuple(replace(job, resize_s=change_s) for job in snapshot.jobs)
    snapshot = replace(snapshot, jobs=jobs)
    decision = goodput_fair(snapshot)
    assert (decision.shares[1].kind, decision.shares[1].count) == (expected, 2)
    told = "Moves to 2 of 4 b to measure its speed; "
    assert str(decision.reasons[1]).startswith(told) == (expected == "b")


@pytest.mark.parametrize(("tried", "expected"), [("a", "b"), ("a b", "a")])
def test_who_tries_a_kind_stays_until_its_speed_is_known(tried: str, expected: str) -> None:
    before = on_kind_a(tried, 36_000.0)
    jobs = tuple(replace(job, changed_at=880.0) for job in before.jobs)
    decision = goodput_fair(replace(before, jobs=jobs, held={1: (3, 4)}))
    assert decision.shares[1].kind == expected


@pytest.mark.parametrize(
    ("tried", "held", "expected"),
    [
        ("a", 0, "b"),  # its code was never on b
        ("a b", 0, "a"),
        ("", 0, "a"),  # nobody knows what was tried
        ("a", 2, "a"),  # another job measures b
        ("a", 4, "a"),  # no room
    ],
)
def test_new_jobs_start_on_an_idle_kind_that_their_code_was_never_on(
    tried: str, held: int, expected: str
) -> None:
    """A start costs the same on every kind, so short jobs find out, too; b seems half as fast."""
    kinds = {"a": 1.0, "b": 0.5}
    new = replace(job_make(1, most=1, at=1000.0), tried_kinds=frozenset(tried.split()))
    other = replace(new, id=2, max_accelerators=4, running_since=990.0, changed_at=990.0)
    jobs = [replace(job, kind_speeds=kinds) for job in ((new, other) if held else (new,))]
    rows = {2: (5, 6, 7, 8)[:held]} if held else {}
    snapshot = snapshot_make(accelerators_make("a a a a", "b b b b"), *jobs, held=rows, now=1000.0)
    decision = goodput_fair(snapshot)
    assert decision.shares[1].kind == expected
    told = "Tries 1 of 4 b to measure its speed, as there are idle ones; "
    assert str(decision.reasons[1]).startswith(told) == (expected == "b")


def known(job_id: int, kinds: dict[str, float]) -> Job:
    return replace(job_make(job_id, most=4), kind_speeds=kinds)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [({"a": 1.0, "b": 3.0}, "b"), ({"a": 2.0, "b": 0.5}, "a"), ({"b": 3.0}, "a")],
)
def test_unknown_jobs_go_to_the_kind_that_suits_their_code(
    kinds: dict[str, float], expected: str
) -> None:
    """Where only one kind is known nothing tells them apart, and the first is taken."""
    snapshot = snapshot_make(accelerators_make("a a a a", "b b b b"), known(1, kinds))
    assert goodput_fair(snapshot).shares[1].kind == expected


def test_nobody_gives_up_its_kind_for_one_of_which_nothing_is_left() -> None:
    """Job 1 is three times as fast on the kind of which job 2, which leaves it nothing, holds all.

    It was stopped for that kind, started where it had been, and stopped again, for ever.
    """
    faster = Speed(distance=1.0, by_kind={"b": 3.0})
    owed = replace(
        job_make(2, least=3, most=3),
        performance=Speed(company=2.0),
        remaining_examples=1e4,
        attained_accelerator_s=1e6,
    )
    jobs = replace(job_make(1, most=3), performance=faster, remaining_examples=1e8), owed
    snapshot = snapshot_make(accelerators_make("a a", "b b b"), *jobs, now=5000.0)
    begun = after(snapshot, decide(snapshot, "goodput_fair"))
    assert begun.held == {1: (1, 2), 2: (3, 4, 5)}
    assert decide(begun, "goodput_fair").resizes == ()


@pytest.mark.parametrize(("resize_s", "expected"), [(0.8, {2}), (30.0, {1})])
def test_what_has_just_started_runs_for_a_while(resize_s: float, expected: set[int]) -> None:
    """A job started three minutes ago, and a far shorter one that waits for the only place."""
    begun = replace(
        job_make(1, most=1),
        performance=Speed(),
        remaining_examples=1e6,
        running_since=820.0,
        changed_at=820.0,
        most_accelerators=1,
        resize_s=resize_s,
    )
    short = replace(begun, id=2, remaining_examples=600.0, running_since=None, pending_since=0.0)
    snapshot = snapshot_make(nodes(1), begun, short, held={1: (1,)}, now=1000.0)
    assert set(goodput_fair(snapshot).shares) == expected


def test_no_accelerator_is_kept_for_a_job_that_is_not_to_be_measured_soon() -> None:
    """A job that has run before would have its turn after half an hour."""
    running = replace(
        job_make(1, weight=10.0, least=5, most=5),
        performance=Measured(1.0, (1.0,)),
        remaining_examples=1e9,
        running_since=0.0,
        changed_at=0.0,
    )
    unmeasured = replace(
        job_make(2, weight=10.0, least=8, at=900.0), changed_at=950.0, pending_since=960.0
    )
    small = replace(
        job_make(3, most=2, at=990.0), performance=Measured(1.0, (1.0,)), remaining_examples=1e3
    )
    jobs = running, unmeasured, small
    snapshot = snapshot_make(nodes(4, 4), *jobs, held={1: (1, 2, 3, 4, 5)}, now=1000.0)
    assert set(goodput_fair(snapshot).shares) == {1, 3}


@pytest.mark.parametrize(("speed", "gain", "remaining"), [(None, 1.0, 1e5), (Speed(), 2.0, 1e8)])
def test_no_kind_is_left_idle_for_a_job_that_is_not_to_start_soon(
    speed: Speed | None, gain: float, remaining: float
) -> None:
    """As above, but the other job has its place on a kind that is full.

    The large job is not to be measured soon, or waits as others have more to gain.
    """
    running = [
        replace(
            job_make(job_id, weight=10.0, least=size, most=size, kinds=kind),
            performance=Speed(by_kind={"b": gain}),
            remaining_examples=1e9,
            running_since=-5000.0,
            changed_at=-5000.0,
        )
        for job_id, size, kind in [(1, 4, "a"), (2, 3, "a"), (3, 4, "b")]
    ]
    large = replace(
        job_make(4, weight=5.0, least=9, most=16, kinds="a"),
        performance=speed,
        remaining_examples=None if speed is None else 1e9,
        changed_at=-100.0,
        pending_since=0.0,
    )
    small = replace(
        job_make(5, least=4, most=4, at=10.0),
        performance=Speed(by_kind={"b": gain}),
        remaining_examples=remaining,
    )
    accelerators = accelerators_make("a " * 11, "b " * 4)
    held = {1: (1, 2, 3, 4), 2: (5, 6, 7), 3: (12, 13, 14, 15)}
    snapshot = snapshot_make(accelerators, *running, large, small, held=held, now=20.0)
    assert goodput_fair(snapshot).shares[5].kind == "a"
