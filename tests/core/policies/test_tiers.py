"""Tiers are strict in every policy of the registry."""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controlplane.core.cycle import decide, decision_check
from controlplane.core.policies import POLICIES, SHARING, _skipping
from controlplane.core.policies.common.tiers import TierStates
from controlplane.core.policies.common.user_shares import shares_by_user
from controlplane.core.policies.gavel.policy import GavelState
from controlplane.core.policies.tiresias import SecondQueue, tiresias
from controlplane.core.scheduling.replacements import replacements_kept
from controlplane.core.values.tiers import TIERS, Tier
from controlplane.core.values.types import Decision, Job, Snapshot
from tests.core.snapshots import (
    Speed,
    accelerators_make,
    after,
    every_policy,
    job_make,
    per_policy,
    rested,
    snapshot_make,
    snapshots,
)

mixed = snapshots(tiers=TIERS)
FOUR = accelerators_make("cpu cpu", "cpu cpu")


def without_tiers(name: str, snapshot: Snapshot) -> Decision:
    """Decide by a policy without the frame of tiers."""
    policy = inspect.unwrap(POLICIES[name])
    shared = shares_by_user(policy, SHARING[name]) if name in SHARING else policy
    return _skipping(shared)(snapshot)


def only(snapshot: Snapshot, *tiers: Tier) -> Snapshot:
    """Remove all jobs but those of some tiers, with what they hold."""
    jobs = tuple(job for job in snapshot.jobs if job.tier in tiers)
    ids = {job.id for job in jobs}
    held = {job_id: row for job_id, row in snapshot.held.items() if job_id in ids}
    return replace(snapshot, jobs=jobs, held=held)


def fast(job: Job) -> Job:
    """Tell a policy how fast a job is and how much is left to do."""
    return replace(job, performance=Speed(company=0.05), remaining_examples=1e6)


def counts(decision: Decision) -> dict[int, int]:
    return {job_id: share.count for job_id, share in decision.shares.items()}


@every_policy
@per_policy
@given(snapshot=snapshots(), tier=st.sampled_from(TIERS))
def test_with_one_tier_nothing_changes(name: str, snapshot: Snapshot, tier: Tier) -> None:
    """Shares, reasons and the carried state, in this decision and in the next one."""
    alike = replace(snapshot, jobs=tuple(replace(job, tier=tier) for job in snapshot.jobs))
    expected, found = without_tiers(name, snapshot), POLICIES[name](alike)
    assert found == expected
    assert without_tiers(name, replace(snapshot, carried=expected.carried)) == POLICIES[name](
        replace(alike, carried=found.carried)
    )


@every_policy
@per_policy
@given(snapshot=mixed, highest=st.integers(0, 1))
def test_lower_tiers_change_nothing_for_higher_ones(
    name: str, snapshot: Snapshot, highest: int
) -> None:
    """Now and, with the carried state, in the next decision.

    So no job of a lower tier holds what a waiting one of a higher tier could be started with: such
    a job waits in an empty cluster as well.
    """
    tiers = TIERS[: highest + 1]
    for _ in range(2):
        alone = POLICIES[name](only(snapshot, *tiers))
        decision = POLICIES[name](snapshot)
        ids = alone.reasons.keys()
        assert {i: share for i, share in decision.shares.items() if i in ids} == alone.shares
        top = {job.id for job in snapshot.jobs if job.tier is TIERS[0]}
        assert {i: decision.reasons[i] for i in top} == {i: alone.reasons[i] for i in top & ids}
        if highest == 1:
            break  # the places of the highest tier, and so what is left, may depend on the lowest
        snapshot = replace(snapshot, now=snapshot.now + 30.0)


@every_policy
@per_policy
@given(snapshot=mixed)
def test_a_lone_job_of_the_highest_tier_is_never_kept_waiting(
    name: str, snapshot: Snapshot
) -> None:
    """Whatever lower tiers hold, it has accelerators that it can run on after one decision."""
    assume(snapshot.jobs and snapshot.accelerators)
    lower = tuple(replace(job, tier=Tier.IDLE) for job in snapshot.jobs if job.tier is Tier.IDLE)
    kind = snapshot.accelerators[0].kind
    job = fast(job_make(99, most=4, kinds=kind, tier=Tier.URGENT, at=snapshot.now))
    snapshot = replace(only(snapshot, Tier.IDLE), jobs=(*lower, job))
    assert job.id in POLICIES[name](snapshot).shares
    for _ in range(3):
        snapshot = after(snapshot, decide(snapshot, name))
    assert snapshot.held.get(job.id)


@every_policy
def test_the_highest_tier_takes_all_that_it_can_use_and_no_more(name: str) -> None:
    """An idle job with a great priority gives way, at its minimum too, and comes back."""
    idle = fast(job_make(1, weight=1000.0, least=2, most=4, tier=Tier.IDLE))
    normal = fast(job_make(2, weight=1.0, most=2, tier=Tier.NORMAL, at=500.0))
    urgent = fast(job_make(3, weight=1.0, most=1, tier=Tier.URGENT, at=500.0))
    alone = snapshot_make(FOUR, idle, now=500.0)
    for _ in range(4):
        alone = after(alone, decide(alone, name))
    assert len(alone.held[1]) == 4
    three = replace(alone, jobs=(*alone.jobs, normal, urgent), now=510.0)
    for _ in range(4):
        three = after(three, decide(three, name))
    assert {job_id: len(row) for job_id, row in three.held.items()} == {2: 2, 3: 1}
    assert decide(three, name).resizes == ()
    reason = str(POLICIES[name](three).reasons[1])
    assert reason == (
        "Waits for 2 accelerators of one kind: higher tiers come first, job 3 (urgent), "
        "job 2 (normal) got 3 of 4 cpu, and idle jobs share what is left."
    )
    back = replace(three, jobs=(three.jobs[0], *three.jobs[2:]), held={3: three.held[3]})
    for _ in range(4):
        back = after(replace(back, now=back.now + 400.0), decide(back, name))
    assert len(back.held[1]) >= 2


@every_policy
def test_a_kind_that_a_tier_cannot_use_is_left_alone(name: str) -> None:
    cluster = accelerators_make("cpu cpu", "gpu gpu")
    idle = fast(job_make(1, most=2, kinds="cpu", tier=Tier.IDLE))
    idle = replace(idle, running_since=0.0, changed_at=0.0, most_accelerators=2)
    urgent = fast(job_make(2, most=4, kinds="gpu", tier=Tier.URGENT))
    snapshot = snapshot_make(cluster, idle, held={1: (1, 2)}, now=500.0)
    found = POLICIES[name](replace(snapshot, jobs=(*snapshot.jobs, urgent)))
    assert counts(found)[1] == 2
    assert found.shares[2].kind == "gpu"
    assert "Higher tiers" not in str(found.reasons[1])


@every_policy
@per_policy
@given(snapshot=mixed)
def test_decisions_with_tiers_are_sound_at_every_step(name: str, snapshot: Snapshot) -> None:
    """Tiers that change between decisions, with the state that the others left."""
    for step in range(4):
        decision = POLICIES[name](snapshot)
        decision_check(snapshot, decision)
        is_mixed = len({job.tier for job in snapshot.jobs}) > 1
        assert isinstance(decision.carried, TierStates) <= is_mixed
        moved = [
            replace(job, tier=TIERS[(TIERS.index(job.tier) + (job.id + step) % 2) % 3])
            for job in snapshot.jobs
        ]
        snapshot = after(snapshot, decide(snapshot, name))
        tiers = {job.id: job.tier for job in moved}
        jobs = tuple(replace(job, tier=tiers[job.id]) for job in snapshot.jobs)
        snapshot = replace(snapshot, jobs=jobs, now=snapshot.now + 200.0)


def test_a_job_keeps_its_place_in_memory_when_its_tier_changes() -> None:
    """And when nothing is left for it for a while."""
    jobs = [job_make(number, most=4, tier=Tier.IDLE) for number in (1, 2, 3)]
    before = SecondQueue((3, 1))
    urgent = job_make(9, least=4, most=4, tier=Tier.URGENT)
    snapshot = replace(snapshot_make(FOUR, *jobs, urgent), carried=before)
    first = POLICIES["tiresias"](snapshot)
    assert counts(first) == {9: 4}
    assert isinstance(first.carried, TierStates)
    moved = replace(jobs[0], tier=Tier.NORMAL)
    then = snapshot_make(FOUR, moved, *jobs[1:])
    second = POLICIES["tiresias"](replace(then, carried=first.carried))
    assert isinstance(second.carried, TierStates)
    assert second.carried.by_tier[Tier.NORMAL] == SecondQueue((1,))
    back = snapshot_make(FOUR, *jobs)
    third = POLICIES["tiresias"](replace(back, carried=second.carried))
    assert third.carried == SecondQueue((3, 1))
    assert third.shares == tiresias(replace(back, carried=before)).shares


def test_time_received_is_remembered_across_tiers() -> None:
    job = job_make(1, most=4, tier=Tier.NORMAL)
    idle = job_make(2, most=4, tier=Tier.IDLE)
    received = {1: {"cpu": 300.0}, 2: {"cpu": 20.0}}
    carried = GavelState(0.0, 500.0, received, {})
    snapshot = replace(snapshot_make(FOUR, job, idle, now=500.0), carried=carried)
    first = POLICIES["gavel"](snapshot).carried
    lowered = snapshot_make(FOUR, replace(job, tier=Tier.IDLE), idle, now=500.0)
    then = POLICIES["gavel"](replace(lowered, carried=first)).carried
    assert isinstance(then, GavelState)
    assert then.received_s == received


def test_a_short_job_of_a_higher_tier_chooses_its_replacement_first() -> None:
    low = job_make(1, weight=99.0, least=2, tier=Tier.IDLE)
    high = job_make(2, least=2, tier=Tier.URGENT)
    snapshot = snapshot_make(FOUR[:3], low, high, held={1: (1,), 2: (2,)})
    found = replacements_kept(snapshot, {1: frozenset(), 2: frozenset()}).kept
    assert found == {2: (3,)}


@every_policy
def test_free_accelerators_go_to_the_higher_tier(name: str) -> None:
    """A job need not wait for trainers of others while a lower tier starts on free ones."""
    jobs = [fast(job_make(1, most=2, tier=Tier.IDLE)), fast(job_make(2, most=2, tier=Tier.URGENT))]
    cluster = accelerators_make("cpu cpu cpu cpu")
    snapshot = dataclasses.replace(
        snapshot_make(cluster, *jobs, now=500.0), releasing=frozenset({1, 2})
    )
    plan = decide(snapshot, name)
    assert 2 not in plan.waiting
    assert Counter(resize.job_id for resize in plan.resizes)[2] == 1


@every_policy
@pytest.mark.parametrize("held", [(1,), (1, 5), (5,)], ids=["beside", "both", "in the way"])
def test_a_higher_job_on_several_nodes_comes_to_rest(name: str, held: tuple[int, ...]) -> None:
    """Job 1 of two accelerators fits on one node, half of which job 3 of a lower tier holds."""
    speed = Speed(distance=1.0)
    scattered = replace(job_make(1, least=2, most=2), performance=speed, running_since=0.0)
    packed = replace(job_make(2, least=2, most=2), performance=speed, running_since=0.0)
    lower = replace(job_make(3, most=2, tier=Tier.IDLE), performance=speed, running_since=0.0)
    snapshot = snapshot_make(
        accelerators_make("gpu gpu", "gpu gpu", "gpu gpu"),
        *(replace(job, remaining_examples=1e5) for job in (scattered, packed, lower)),
        held={1: (2, 6), 2: (3, 4), 3: held},
        now=1000.0,
    )
    rested(snapshot, name)
