"""Our own policy, on cases whose answer is known: by hand, by a closed form, or by force."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from controlplane.core.policies.goodput_fair.counts import _allot_by_envelopes, _allot_exactly
from controlplane.core.policies.goodput_fair.envelopes import Envelopes, envelopes_of
from controlplane.core.policies.goodput_fair.fairness_cost import (
    FairnessCost,
    crowds_of,
    standing_of,
)
from controlplane.core.policies.goodput_fair.forecast import Fluid
from controlplane.core.policies.goodput_fair.policy import goodput_fair
from controlplane.core.policies.goodput_fair.rate_tables import options_of
from controlplane.core.policies.goodput_fair.shadow_prices import Market
from controlplane.core.values.types import Accelerator, Job, Snapshot
from tests.core.snapshots import Falling, Speed, accelerators_make, job_make, snapshot_make


@dataclass(frozen=True)
class Power:
    """n accelerators do n ** `power` times as much as one."""

    power: float
    per_s: float = 1.0

    def goodput(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        return self.per_s * num_accelerators**self.power if num_accelerators else 0.0

    def goodputs(self, kind: str, most: int, per_node: int) -> NDArray[np.float64]:
        return np.array([self.goodput(kind, count, 1) for count in range(most + 1)])

    def batch_size(self, kind: str, num_accelerators: int, num_nodes: int) -> int:
        return 1


def cluster(num_nodes: int, per_node: int = 4, kind: str = "gpu") -> tuple[Accelerator, ...]:
    return accelerators_make(*[" ".join([kind] * per_node)] * num_nodes)


def known(job_id: int, work: float, performance: object = None, **options: object) -> Job:
    """Make a job of known speed with so many examples left."""
    job = job_make(job_id, **options)  # type: ignore[arg-type]
    return replace(
        job,
        remaining_examples=work,
        performance=performance or Power(1.0),  # type: ignore[arg-type]
    )


def holding(snapshot: Snapshot, counts: dict[int, int]) -> Snapshot:
    """Give jobs so many accelerators each, in order, since ten minutes ago."""
    free = [one.id for one in snapshot.accelerators]
    held = {job_id: tuple(free.pop(0) for _ in range(n)) for job_id, n in counts.items()}
    jobs = tuple(
        replace(
            job,
            running_since=snapshot.now - 600.0,
            most_accelerators=counts[job.id],
            attained_accelerator_s=counts[job.id] * snapshot.now,
        )
        if counts.get(job.id)
        else job
        for job in snapshot.jobs
    )
    return replace(snapshot, jobs=jobs, held=held)


def counts_of(snapshot: Snapshot) -> dict[int, int]:
    return {job_id: share.count for job_id, share in goodput_fair(snapshot).shares.items()}


@pytest.mark.parametrize("power", [0.3, 0.5, 0.8])
def test_equal_power_laws_come_near_the_known_optimum(power: float) -> None:
    """After heSRPT (SIGMETRICS 2020): the least sum of completion times has a closed form."""
    sizes, num = [9000.0, 4000.0, 2500.0, 700.0, 100.0], 64
    jobs = [known(i, x, Power(power), most=num) for i, x in enumerate(sizes, start=1)]
    snapshot = snapshot_make(cluster(16), *jobs)
    options = options_of(snapshot)
    far = np.full(len(jobs), 1e12)  # nobody is ever late
    nothing = np.zeros(len(jobs))
    standing = FairnessCost(np.ones(len(jobs)), nothing, far, nothing, far)
    found = Market(options).valuate(np.zeros(len(jobs), dtype=int), standing)

    def omega(k: int) -> float:
        return 0.0 if k == 1 else 1.0 / ((k / (k - 1)) ** (1.0 / (1.0 - power)) - 1.0)

    def cost(k: int) -> float:
        return float(k * (1.0 + omega(k)) ** power - (k - 1) * omega(k) ** power)

    optimum = sum(cost(k) * x for k, x in enumerate(sizes, start=1)) / num**power
    assert optimum * 0.98 < float(found.ends_s.sum()) < optimum * 1.06


def test_proportional_gain_is_shortest_first() -> None:
    jobs = [known(1, 40_000.0), known(2, 4_000.0), known(3, 400_000.0)]
    assert counts_of(snapshot_make(cluster(2), *jobs)) == {2: 8}


def test_no_gain_from_a_second_gives_one_each() -> None:
    jobs = [known(i, 1000.0 * i, Power(0.0)) for i in (1, 2, 3)]
    assert counts_of(snapshot_make(cluster(2), *jobs)) == {1: 1, 2: 1, 3: 1}


def test_two_jobs_that_scale_with_the_root_share_by_three_to_one() -> None:
    """By heSRPT the smaller of two has 1 - (1/2) ** (1 / (1 - 0.5)) = 3/4, whatever the sizes."""
    jobs = [known(1, 20_000.0, Power(0.5), most=32), known(2, 9000.0, Power(0.5), most=32)]
    counts = counts_of(snapshot_make(cluster(8), *jobs))
    assert sum(counts.values()) == 32
    assert 22 <= counts[2] <= 26


def test_weight_outdoes_size() -> None:
    jobs = [known(1, 40_000.0), known(2, 10_000.0)]
    assert counts_of(snapshot_make(cluster(2), *jobs)) == {2: 8}
    jobs[0] = replace(jobs[0], weight=10.0)
    assert counts_of(snapshot_make(cluster(2), *jobs)) == {1: 8}


def test_minimum_is_all_or_nothing() -> None:
    jobs = [known(1, 100.0, Speed(), least=3, most=3), known(2, 1e4, Speed(), least=3, most=8)]
    assert counts_of(snapshot_make(cluster(1, 5), *jobs)) == {1: 3}
    assert counts_of(snapshot_make(cluster(1, 7), *jobs)) == {1: 3, 2: 4}


@pytest.mark.parametrize(("resize_s", "expected"), [(0.5, {1: 8, 2: 8}), (60.0, {1: 15, 2: 1})])
def test_a_change_has_to_pay_for_itself(resize_s: float, expected: dict[int, int]) -> None:
    """Two equal jobs: 8 + 8 is best, by 16 %. It is not worth a long stop."""
    jobs = [replace(known(i, 5e4, Power(0.5), most=16), resize_s=resize_s) for i in (1, 2)]
    snapshot = holding(snapshot_make(cluster(4), *jobs, now=1000.0), {1: 15, 2: 1})
    assert counts_of(snapshot) == expected


@pytest.mark.parametrize(("resize_s", "expected"), [(30.0, {1: 8}), (75.0, {1: 1})])
def test_a_growth_pays_where_the_job_ends_sooner_with_it(
    resize_s: float, expected: dict[int, int]
) -> None:
    """80 s are left on one accelerator, 10 s on eight, and the stop."""
    job = replace(known(1, 80.0, Power(1.0), most=8), resize_s=resize_s)
    assert counts_of(holding(snapshot_make(cluster(2), job, now=1000.0), {1: 1})) == expected


@pytest.mark.parametrize(("ago_s", "expected"), [(600.0, {1: 8, 2: 8}), (5.0, {1: 15, 2: 1})])
def test_a_change_has_to_gain_more_soon_after_the_last_one(
    ago_s: float, expected: dict[int, int]
) -> None:
    """8 + 8 would be better by 16 %: at first that may be an error of what was measured."""
    power = Power(0.5)
    jobs = [replace(known(i, 5e4, power, most=16), changed_at=1000.0 - ago_s) for i in (1, 2)]
    snapshot = holding(snapshot_make(cluster(4), *jobs, now=1000.0), {1: 15, 2: 1})
    assert counts_of(snapshot) == expected


def test_a_gain_that_may_be_an_error_moves_nobody() -> None:
    """4 + 4 would be better by 3.5 %."""
    jobs = [known(i, 5e4, Power(0.5)) for i in (1, 2)]
    snapshot = holding(snapshot_make(cluster(2), *jobs, now=1000.0), {1: 6, 2: 2})
    assert counts_of(snapshot) == {1: 6, 2: 2}


def test_what_has_just_begun_is_not_stopped() -> None:
    jobs = [known(1, 1e6), known(2, 1e3)]
    snapshot = holding(snapshot_make(cluster(1), *jobs, now=1000.0), {1: 4})
    assert counts_of(snapshot) == {2: 4}
    fresh = replace(snapshot.jobs[0], running_since=990.0)
    assert counts_of(replace(snapshot, jobs=(fresh, snapshot.jobs[1]))) == {1: 1, 2: 3}


def test_each_goes_where_it_is_better_than_others() -> None:
    """Job 1 is 8 times as fast on a fast one, job 2 only 1.2 times."""
    jobs = [
        known(1, 1e5, Speed(by_kind={"fast": 8.0}), most=2),
        known(2, 1e5, Speed(by_kind={"fast": 1.2}), most=2),
    ]
    for order in itertools.permutations(jobs):
        decision = goodput_fair(snapshot_make(accelerators_make("fast fast", "slow slow"), *order))
        assert {i: (s.kind, s.count) for i, s in decision.shares.items()} == {
            1: ("fast", 2),
            2: ("slow", 2),
        }


def test_unknown_jobs_start_small_and_at_once() -> None:
    running = known(1, 1e6, Power(0.7))
    snapshot = holding(snapshot_make(cluster(2), running, job_make(2), now=1000.0), {1: 8})
    assert counts_of(snapshot) == {1: 4, 2: 4}


def test_unknown_jobs_get_a_look_in_a_full_cluster() -> None:
    """Whatever the others gain: nothing is known of it, so it may be short."""
    busy = [known(i, 50.0, weight=20.0, most=4) for i in (1, 2, 3, 4)]
    snapshot = snapshot_make(cluster(4), *busy, job_make(5), now=1000.0)
    assert 5 in counts_of(holding(snapshot, dict.fromkeys((1, 2, 3, 4), 4)))


def test_unknown_jobs_go_where_they_can_start_now() -> None:
    """All of the fast kind is under change; the slow one is idle."""
    running = [known(1, 1e5, Speed(by_kind={"fast": 4.0}), most=4)]
    snapshot = snapshot_make(
        accelerators_make("fast fast fast fast", "slow slow slow slow"),
        *running,
        job_make(2),
    )
    free = holding(replace(snapshot, now=1000.0), {1: 3})
    assert goodput_fair(free).shares[2].kind == "fast"
    full = replace(holding(replace(snapshot, now=1000.0), {1: 4}), resizing=frozenset({1}))
    assert goodput_fair(full).shares[2].kind == "slow"


def test_unknown_jobs_do_not_go_where_others_have_just_begun() -> None:
    """One holds three fast ones that it cannot give now, one that has just begun the fourth."""
    fixed = known(1, 1e5, Speed(by_kind={"fast": 4.0}), most=3)
    kinds = accelerators_make("fast fast fast fast", "slow slow slow slow")
    jobs = [fixed, job_make(2, most=1), job_make(3)]
    snapshot = holding(snapshot_make(kinds, *jobs, now=1000.0), {1: 3, 2: 1})
    begun = replace(snapshot.jobs[1], running_since=990.0, changed_at=990.0)
    jobs = [snapshot.jobs[0], begun, snapshot.jobs[2]]
    shares = goodput_fair(replace(snapshot, jobs=tuple(jobs), resizing=frozenset({1}))).shares
    assert (shares[2].kind, shares[2].count) == ("fast", 1)
    assert shares[3].kind == "slow"


def test_what_ends_soon_is_left_alone() -> None:
    """No growth beyond what it has shown, and no other kind: neither would be made good."""
    snapshot = snapshot_make(
        accelerators_make("slow slow slow slow", "fast fast fast fast", "slow slow slow slow"),
        known(1, 400.0, Speed(per_s=10.0, by_kind={"fast": 9.0}), most=12),
        now=1000.0,
    )
    held = holding(snapshot, {1: 4})
    share = goodput_fair(held).shares[1]
    assert (share.kind, share.count) == ("slow", 4)  # 10 s left
    later = replace(held, jobs=(replace(held.jobs[0], remaining_examples=60_000.0),))
    assert goodput_fair(later).shares[1].kind == "fast"


def test_jobs_swap_whole_kinds_while_another_goes_to_idle_accelerators() -> None:
    swap = [
        known(1, 1e6, Speed(by_kind={"a": 1.0, "b": 9.0, "c": 0.01}), least=4, most=4),
        known(2, 1e6, Speed(by_kind={"a": 9.0, "b": 1.0, "c": 0.01}), least=4, most=4),
        known(3, 1e6, Speed(by_kind={"a": 0.01, "b": 1.0, "c": 40.0}), least=1, most=1),
    ]
    snapshot = snapshot_make(accelerators_make("a a a a", "b b b b b", "c c"), *swap, now=1000.0)
    snapshot = holding(snapshot, {1: 4, 2: 4, 3: 1})
    assert [share.kind for _, share in sorted(goodput_fair(snapshot).shares.items())] == [
        "b", "a", "c",
    ]  # fmt: skip


@pytest.mark.parametrize("kinds", ["one", "two"])
def test_fair_time_is_that_of_a_job_that_starts_alone_on_its_share(kinds: str) -> None:
    """Two jobs, so half of 8: 4 for 1000 s; of two kinds each for its part of the time."""
    if kinds == "one":
        accelerators, work = cluster(2), 40_000.0
    else:  # 4 of the fast kind half of the time, 4 of the slow one the other half
        accelerators = accelerators_make("fast fast fast fast", "slow slow slow slow")
        work = 500.0 * 4 * 30.0 + 500.0 * 4 * 10.0
    jobs = [known(i, work, Speed(by_kind={"fast": 3.0})) for i in (1, 2)]
    snapshot = snapshot_make(accelerators, *jobs)
    found = standing_of(snapshot, options_of(snapshot), crowds_of(snapshot))
    assert found.fair_s.tolist() == pytest.approx([1010.0, 1010.0])


def test_work_left_is_told_from_the_loss_where_nothing_else_tells_it() -> None:
    job = replace(
        known(1, 0.0), remaining_examples=None, global_batch_size=10, loss=Falling(rate=0.001)
    )
    # exp(-x) - exp(-2x) < 0.001 with x = 0.001 * 10 * 2^k examples: k = 10.
    assert options_of(snapshot_make(cluster(1), job)).work.tolist() == [10_240.0]


values = st.lists(st.integers(0, 30), min_size=5, max_size=5)


@given(rows=st.lists(values, min_size=1, max_size=4), capacity=st.integers(1, 9))
def test_exact_split_is_the_best_of_all(rows: list[list[int]], capacity: int) -> None:
    worth = np.array([[0, *sorted(row)[1:]] for row in rows], dtype=float)
    counts = np.tile(np.arange(5), (len(rows), 1))
    best = max(
        sum(worth[i, n] for i, n in enumerate(split))
        for split in itertools.product(range(5), repeat=len(rows))
        if sum(split) <= capacity
    )
    for solve in (_allot_exactly, _allot_by_envelopes):
        given_counts = solve(counts, worth, capacity)
        assert given_counts.sum() <= capacity
    exact = _allot_exactly(counts, worth, capacity)
    assert sum(worth[i, n] for i, n in enumerate(exact)) == best


def test_envelope_skips_what_is_not_worth_it() -> None:
    found = envelopes_of(np.array([[0, 1, 2, 3, 4]]), np.array([[0.0, 0.0, 4.0, 4.5, 6.0]]))
    assert found.counts.tolist() == [[0.0, 2.0, 4.0]]
    assert found.values.tolist() == [[0.0, 4.0, 6.0]]


def test_a_job_of_unknown_speed_begins_on_one_node() -> None:
    """Three are idle, no two on one node: one is enough to begin with."""
    running = [known(i, 1e6, Power(0.7), least=3, most=3) for i in (1, 2, 3)]
    snapshot = holding(snapshot_make(cluster(3), *running, job_make(4), now=1000.0), {})
    held = {1: (1, 2, 3), 2: (5, 6, 7), 3: (9, 10, 11)}
    share = goodput_fair(replace(snapshot, held=held)).shares[4]
    assert (share.count, len(share.by_node)) == (1, 1)


def test_a_job_does_not_start_where_it_has_no_speed() -> None:
    """While a job that has just begun occupies its kind, its speed elsewhere was "not known"."""
    new = replace(job_make(1, most=2, kinds="slow"), running_since=0.0, changed_at=0.0)
    one_kind = replace(job_make(2), performance=Speed(by_kind={"fast": 0.0}))
    nodes = accelerators_make("slow slow", "fast fast")
    assert 2 not in goodput_fair(snapshot_make(nodes, new, one_kind, held={1: (1, 2)})).shares


def test_sentences_have_the_numbers_of_the_decision() -> None:
    jobs = [
        known(1, 1e5, Power(0.8), weight=5.0),
        known(2, 1e3, Power(0.8)),
        known(3, 1e7, least=9, most=9),
        known(4, 1e8, least=8, most=8),
    ]
    snapshot = holding(snapshot_make(cluster(2), *jobs, now=100.0), {1: 8})
    decision = goodput_fair(snapshot)
    assert set(decision.shares) == {1, 2}
    given_1, given_2 = decision.shares[1].count, decision.shares[2].count
    assert given_1 + given_2 == 8
    assert str(decision.reasons[1]).startswith(
        f"Is cut from 8 to {given_1} gpu for job 2, which should end sooner: all jobs together are "
    )
    assert str(decision.reasons[2]).startswith(f"Is given {given_2} of 8 gpu; ")
    assert str(decision.reasons[3]).startswith("Cannot start: needs 9")
    assert str(decision.reasons[4]).startswith(
        "Waits for 8 of kind gpu; 8 of 8 held by 2 jobs with more to gain from them, "
        f"{given_1} by jobs of higher priority; job {1 if given_1 >= given_2 else 2} holds "
        f"{max(given_1, given_2)}."
    )


def test_no_end_is_told_of_unknown_work() -> None:
    """The policy weighs the job by a guess, which told "done in about 13 min"."""
    job = replace(known(1, 1e5, Power(0.8)), remaining_examples=None, attained_accelerator_s=1e5)
    decision = goodput_fair(holding(snapshot_make(cluster(2), job, now=500.0), {1: 8}))
    assert "done in" not in str(decision.reasons[1])


def test_a_job_that_is_faster_on_fewer_is_told_so() -> None:
    slowed = known(1, 1e5, Speed(company=2.0, distance=1.0))
    decision = goodput_fair(holding(snapshot_make(cluster(2), slowed, now=500.0), {1: 8}))
    assert str(decision.reasons[1]) == (
        "Is cut from 8 to 1 gpu, on which it is 3.8 times as fast; 2 would make it no faster; "
        "done in about 2.8 h."
    )


def test_who_is_late_is_told_how_late() -> None:
    late, early = (replace(known(i, 1e4), submitted_at=at) for i, at in ((1, 0.0), (2, 1000.0)))
    decision = goodput_fair(holding(snapshot_make(cluster(1), late, now=1000.0), {1: 4}))
    assert str(decision.reasons[1]).endswith("times as long as alone on its share.")
    decision = goodput_fair(holding(snapshot_make(cluster(1), early, now=1000.0), {2: 4}))
    assert str(decision.reasons[2]).endswith("done in about 42 min.")


@pytest.mark.parametrize("end", [1e4, None], ids=["known end", "unknown end"])
@pytest.mark.parametrize("speed", [Speed(company=0.1), Power(0.5), Power(0.0), None])
def test_four_times_the_weight_gets_more_or_the_same_earlier(
    end: float | None, speed: Speed | Power | None
) -> None:
    jobs = [
        replace(job_make(i, weight=w, most=4), performance=speed, remaining_examples=end)
        for i, w in ((1, 1.0), (2, 4.0))
    ]
    alike = counts_of(snapshot_make(cluster(1), *jobs))
    assert alike.get(2, 0) > alike.get(1, 0) or speed == Power(0.0)
    scarce = counts_of(snapshot_make(cluster(1, 1), *jobs))
    assert scarce == {2: 1}


def test_fluid_serves_the_steepest_segments_and_then_those_that_are_left() -> None:
    """3 accelerators, jobs with 6, 8 and 3 examples: 2 per accelerator, then 1 of at most two."""
    counts = np.array([[0.0, 1.0, 3.0], [0.0, 1.0, 1.0], [0.0, 2.0, 2.0]])
    values = np.array([[0.0, 2.0, 4.0], [0.0, 2.0, 2.0], [0.0, 1.0, 1.0]])
    fluid = Fluid(Envelopes(counts, values), np.array([6.0, 8.0, 3.0]), 3)
    assert fluid.clear(np.ones(3)) == (5.0, 1.0, 1.0)
    found = fluid.forecast(np.ones(3))
    assert found.ends_s.tolist() == [2.0, 4.0, 5.0]
    assert found.prices.tolist() == [1.0, 0.0, 0.0]
    alone = Fluid(Envelopes(counts[:1], values[:1]), np.array([6.0]), 3)
    assert alone.clear(np.ones(1)) == (4.0, 1.0, 0.0)
