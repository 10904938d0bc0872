"""What every policy of the registry must keep, on drawn clusters."""

from __future__ import annotations

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.cycle import decide, decision_check
from controlplane.core.policies import POLICIES, POLICY_STATES, policy_state_decode
from controlplane.core.protocol.codec import encode
from controlplane.core.scheduling.kind_lending import mix
from controlplane.core.scheduling.placement import place
from controlplane.core.scheduling.pools import can_start, capacity_by_kind
from controlplane.core.values.tiers import TIERS
from controlplane.core.values.types import Plan, Snapshot
from tests.core.snapshots import after, every_policy, job_make, per_policy, rested, snapshots

#: Clusters with jobs of one tier, or of all tiers.
tiered = st.one_of(snapshots(), snapshots(tiers=TIERS))

#: Runs a test once for each policy of the registry.


@every_policy
@per_policy
@given(snapshot=tiered)
def test_decision_keeps_capacity_bounds_kinds_and_explains_itself(
    name: str, snapshot: Snapshot
) -> None:
    alone = POLICIES[name](snapshot)
    assert not any(share.extra for share in alone.shares.values())
    for decision in (alone, mix(snapshot, alone)):
        decision_check(snapshot, decision)
        assert set(decision.reasons) == {job.id for job in snapshot.jobs}


@every_policy
@per_policy
@given(snapshot=tiered, random=st.randoms(use_true_random=False))
def test_order_of_the_input_does_not_matter(name: str, snapshot: Snapshot, random) -> None:
    jobs = list(snapshot.jobs)
    accelerators = list(snapshot.accelerators)
    random.shuffle(jobs)
    random.shuffle(accelerators)
    shuffled = dataclasses.replace(snapshot, jobs=tuple(jobs), accelerators=tuple(accelerators))
    placed = [place(one, mix(one, POLICIES[name](one))) for one in (shuffled, snapshot)]
    assert placed[0] == placed[1]


@every_policy
@per_policy
@given(snapshot=tiered)
def test_cluster_comes_to_rest(name: str, snapshot: Snapshot) -> None:
    """Cycles reach a point where nothing changes, within a few rounds and for good."""
    rested(snapshot, name)


@every_policy
@per_policy
@given(snapshot=tiered)
def test_memory_is_part_of_the_input_and_may_be_missing_or_strange(
    name: str, snapshot: Snapshot
) -> None:
    """The same snapshot has the same answer, memory included; whatever is in it, a sound one."""
    first = decide(snapshot, name)
    assert _told(decide(snapshot, name)) == _told(first)
    then = after(snapshot, first)
    assert _told(decide(then, name)) == _told(decide(then, name))
    for carried in (None, first.carried, {"of": "another policy"}):
        decision = POLICIES[name](dataclasses.replace(then, carried=carried))
        decision_check(then, decision)


@every_policy
@per_policy
@given(snapshot=tiered)
def test_state_survives_its_storage(name: str, snapshot: Snapshot) -> None:
    first = decide(snapshot, name)
    then = after(snapshot, first)
    assert first.carried is None or name in POLICY_STATES
    if first.carried is not None:
        stored = json.loads(json.dumps(encode(first.carried)))
        carried = policy_state_decode(name, stored)
        assert _told(decide(dataclasses.replace(then, carried=carried), name)) == _told(
            decide(then, name)
        )


def _told(plan: Plan) -> object:
    return plan.resizes, plan.waiting, plan.reasons


@every_policy
@per_policy
@given(snapshot=tiered)
def test_sentences_have_numbers(name: str, snapshot: Snapshot) -> None:
    decision = POLICIES[name](snapshot)
    for job in snapshot.jobs:
        assert any(sign.isdigit() for sign in str(decision.reasons[job.id])), decision.reasons[
            job.id
        ]


@every_policy
@per_policy
@given(snapshot=tiered)
def test_plan_never_gives_away_what_is_in_use(name: str, snapshot: Snapshot) -> None:
    owner = {held: job for job, row in snapshot.held.items() for held in row}
    plan = decide(snapshot, name)
    seen: set[int] = set()
    for resize in plan.resizes:
        assert all(
            owner.get(accelerator, resize.job_id) == resize.job_id for accelerator in resize.wanted
        )
        assert not seen & set(resize.wanted)
        seen |= set(resize.wanted)
    changes = [len(resize.wanted) - len(resize.held) for resize in plan.resizes]
    assert changes == sorted(changes)


@every_policy
@per_policy
@given(snapshot=tiered)
def test_lending_takes_nothing_from_anybody(name: str, snapshot: Snapshot) -> None:
    """With mixing every job keeps what the policy gives it, and only idle ones come on top."""
    alone = POLICIES[name](snapshot)
    mixed = mix(snapshot, alone)
    assert {i: (s.kind, s.count) for i, s in alone.shares.items()} == {
        i: (s.kind, s.count) for i, s in mixed.shares.items()
    }
    for job in snapshot.jobs:
        share = mixed.shares.get(job.id)
        if share is not None and share.extra and set(share.extra) <= set(job.step_times):
            assert job.id in mixed.mixes
            assert " mixed: " in str(mixed.reasons[job.id])


@every_policy
@per_policy
@given(snapshot=tiered, data=st.data())
def test_job_that_cannot_start_changes_nothing_for_the_others(
    name: str, snapshot: Snapshot, data: st.DataObject
) -> None:
    """At the head of any queue, holding accelerators or not; in places and reasons as well."""
    capacity = capacity_by_kind(snapshot)
    jobs = tuple(job for job in snapshot.jobs if can_start(job, capacity))
    giant = job_make(99, weight=100.0, least=max(capacity.values()) + 1, most=16, at=-100.0)
    absent = dataclasses.replace(giant, accepted_kinds=frozenset({"absent"}), min_accelerators=1)
    free = {one.id for one in snapshot.accelerators}.difference(*snapshot.held.values())
    held = data.draw(st.sets(st.sampled_from(sorted(free)))) if free else set()
    without = dataclasses.replace(snapshot, jobs=jobs)
    with_it = dataclasses.replace(
        snapshot,
        jobs=(data.draw(st.sampled_from([giant, absent])), *jobs),
        held={**snapshot.held, 99: tuple(sorted(held))},
    )
    expected, found = (POLICIES[name](one) for one in (without, with_it))
    assert found.shares == expected.shares
    reasons = {job_id: str(text) for job_id, text in found.reasons.items()}
    assert reasons.pop(99).startswith("Cannot start")
    assert reasons == {job_id: str(text) for job_id, text in expected.reasons.items()}


@given(snapshot=snapshots())
def test_weighted_fair_leaves_nothing_idle_that_a_running_job_could_use(snapshot: Snapshot) -> None:
    decision = POLICIES["weighted_fair"](snapshot)
    for kind in {accelerator.kind for accelerator in snapshot.accelerators}:
        total = sum(accelerator.kind == kind for accelerator in snapshot.accelerators)
        inside = [job for job in snapshot.jobs if decision.shares.get(job.id, None)]
        inside = [job for job in inside if decision.shares[job.id].kind == kind]
        used = sum(decision.shares[job.id].count for job in inside)
        if used < total:
            assert all(decision.shares[job.id].count == job.max_accelerators for job in inside)
