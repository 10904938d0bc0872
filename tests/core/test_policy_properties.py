"""What every policy of the registry must keep, on drawn clusters."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.cycle import decide, decision_check
from controlplane.core.placement import place
from controlplane.core.policies import POLICIES
from controlplane.core.types import Snapshot
from tests.core.snapshots import after, snapshots

every_policy = pytest.mark.parametrize("name", sorted(POLICIES))


@every_policy
@given(snapshot=snapshots())
def test_decision_keeps_capacity_bounds_kinds_and_explains_itself(
    name: str, snapshot: Snapshot
) -> None:
    decision = POLICIES[name](snapshot)
    decision_check(snapshot, decision)
    assert set(decision.reasons) == {job.id for job in snapshot.jobs}


@every_policy
@given(snapshot=snapshots(), random=st.randoms(use_true_random=False))
def test_order_of_the_input_does_not_matter(name: str, snapshot: Snapshot, random) -> None:
    jobs = list(snapshot.jobs)
    accelerators = list(snapshot.accelerators)
    random.shuffle(jobs)
    random.shuffle(accelerators)
    shuffled = dataclasses.replace(snapshot, jobs=tuple(jobs), accelerators=tuple(accelerators))
    assert place(shuffled, POLICIES[name](shuffled)) == place(snapshot, POLICIES[name](snapshot))


@every_policy
@given(snapshot=snapshots())
def test_cluster_comes_to_rest(name: str, snapshot: Snapshot) -> None:
    """Cycles reach a point where nothing changes, within a few rounds and for good."""
    for _ in range(4):
        plan = decide(snapshot, name)
        if not plan.resizes:
            break
        snapshot = after(snapshot, plan)
    assert decide(snapshot, name).resizes == ()


@every_policy
@given(snapshot=snapshots())
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


@settings(max_examples=200)
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
