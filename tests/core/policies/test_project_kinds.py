"""Quotas of projects on several kinds of accelerators."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controlplane.core.cycle import decide, decision_check
from controlplane.core.policies import DEMANDS, POLICIES
from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.tiers import TIERS
from controlplane.core.values.types import Snapshot
from tests.core.policies.projects import (
    EIGHT,
    SPEECH,
    VISION,
    fast,
    fewer,
    given_to,
    held,
    in_projects,
    settled,
)
from tests.core.snapshots import (
    Speed,
    accelerators_make,
    every_policy_but_search,
    job_make,
    rested,
    snapshot_make,
)


@pytest.mark.parametrize("name", ["gavel", "sia"])
def test_a_job_does_not_start_where_its_model_is_zero(name: str) -> None:
    """A guarantee has all accelerators of the kind on which it has a speed."""
    slow_only = replace(job_make(1, least=2, most=2), performance=Speed(by_kind={"fast": 0.0}))
    snapshot = snapshot_make(
        accelerators_make("slow slow", "fast fast"),
        replace(slow_only, remaining_examples=50.0),
        replace(job_make(2, least=2, most=2, kinds="slow"), project=VISION, submitted_at=1.0),
        now=2.0,
        projects={VISION: ProjectQuota(guaranteed=2)},
    )
    assert held(rested(snapshot, name)) == {2: 2}


@pytest.mark.parametrize("name", ["fifo", "goodput_fair"])
def test_a_limit_is_not_used_up_by_a_kind_that_nobody_can_use(name: str) -> None:
    """The second accelerator of the project was one more of the kind of its first job."""
    jobs = [
        replace(job_make(1, most=1, kinds="slow"), project=VISION),
        replace(job_make(2, most=1, at=1.0, kinds="fast"), project=VISION),
        replace(job_make(3, least=2, most=2, at=2.0), project=VISION),
    ]
    snapshot = snapshot_make(
        accelerators_make("slow slow slow slow", "fast fast"),
        *jobs,
        held={1: (1,)},
        projects={VISION: ProjectQuota(limit=2)},
    )
    assert held(rested(snapshot, name)) == {1: 1, 2: 1}


def test_a_job_starts_on_a_kind_that_its_group_would_leave_idle() -> None:
    """Job 3 does not fit in what the limit leaves; the other project does not use the slow one."""
    jobs = [job_make(1, most=1, kinds="slow"), job_make(2, most=1), job_make(3, least=2, most=2)]
    snapshot = snapshot_make(
        accelerators_make("slow", "fast fast fast"),
        *(replace(job, project=VISION) for job in jobs),
        replace(job_make(4, most=2), project=SPEECH),
        held={2: (2,), 4: (4,)},
        projects={
            VISION: ProjectQuota(limit=2),
            SPEECH: ProjectQuota(guaranteed_by_kind={"slow": 2}),
        },
    )
    assert rested(snapshot, "fifo").held == {1: (1,), 2: (2,), 4: (4,)}


@every_policy_but_search
@pytest.mark.parametrize("num_users", [1, 2])
@pytest.mark.parametrize("is_held", [False, True])
def test_a_guarantee_of_a_kind_keeps_the_limits_of_users(
    name: str, num_users: int, is_held: bool
) -> None:
    """The guaranteed accelerators are idle, or jobs of others hold them."""
    jobs = [
        replace(job_make(number, most=1), project=VISION, user=number % num_users)
        for number in (1, 2, 3)
    ]
    others = [job_make(number, most=1) for number in (4, 5)]
    snapshot = snapshot_make(
        accelerators_make("slow slow"),
        *jobs,
        *others,
        held={4: (1,), 5: (2,)} if is_held else None,
        projects={VISION: ProjectQuota(user_limit=1, guaranteed_by_kind={"slow": 2})},
    )
    decision = POLICIES[name](snapshot)
    decision_check(snapshot, decision)
    assert given_to(snapshot, decision, VISION) == num_users


@every_policy_but_search
@fewer
@given(snapshot=in_projects(tiers=TIERS[:1]), guaranteed=st.integers(1, 4))
def test_a_guarantee_of_a_kind_is_given_to_jobs_that_wait(
    name: str, snapshot: Snapshot, guaranteed: int
) -> None:
    """With the third decision, whatever the others hold, and behind a job that cannot start.

    No job of the project waits that fits on what it is guaranteed and does not have.
    """
    assume(snapshot.accelerators)
    kinds = {one.id: one.kind for one in snapshot.accelerators}
    kind = kinds[1]
    total = sum(one == kind for one in kinds.values())
    first = fast(job_make(97, weight=20.0, least=3, most=8, at=-1.0), 7)
    jobs = [
        fast(job_make(number, least=least, most=most, kinds=kind, at=snapshot.now), 7)
        for number, least, most in ((98, 1, 2), (99, 2, 4))
    ]
    projects = {**snapshot.projects, 7: ProjectQuota(guaranteed_by_kind={kind: guaranteed})}
    projects |= {one: replace(projects[one], guaranteed_by_kind={}) for one in (VISION, SPEECH)}
    snapshot = replace(snapshot, jobs=(*snapshot.jobs, first, *jobs), projects=projects)
    allocation = decide(settled(snapshot, name, 2), name).allocation
    assert allocation is not None
    rows = {job.id: allocation.accelerators.get(job.id, ()) for job in (first, *jobs)}
    has = sum(kinds[one] == kind for row in rows.values() for one in row)
    left = min(guaranteed, total) - has
    for job in (first, *jobs):
        assert rows[job.id] or job.min_accelerators > max(left, 0)


@every_policy_but_search
def test_a_guarantee_of_a_kind_is_lent_and_given_back(name: str) -> None:
    """Borrowers keep what is not guaranteed, and have all again when the owners have gone."""
    nodes = accelerators_make("fast fast fast fast", "fast fast fast fast", "slow slow")
    lent = [fast(job_make(number, most=4, kinds="fast"), VISION) for number in (1, 2)]
    projects = {SPEECH: ProjectQuota(guaranteed_by_kind={"fast": 4, "slow": 2})}
    alone = settled(snapshot_make(nodes, *lent, now=500.0, projects=projects), name)
    assert held(alone) == {1: 4, 2: 4}
    owners = [
        fast(job_make(number, weight=0.1, most=4, kinds="fast", at=alone.now), SPEECH)
        for number in (3, 4)
    ]
    both = replace(alone, jobs=(*alone.jobs, *owners))
    decision = POLICIES[name](both)
    assert given_to(both, decision, SPEECH) > 0
    assert given_to(both, decision, VISION) >= 4
    both = settled(both, name)
    decision = POLICIES[name](both)
    assert (given_to(both, decision, VISION), given_to(both, decision, SPEECH)) == (4, 4)
    gone = {job_id: row for job_id, row in both.held.items() if job_id < 3}
    back = settled(replace(both, jobs=both.jobs[:2], held=gone), name)
    assert held(back) == {1: 4, 2: 4}


@pytest.mark.parametrize("name", [name for name, one in DEMANDS.items() if not one.is_rigid])
def test_quotas_of_the_only_kind_are_those_of_all(name: str) -> None:
    """Rigid policies may leave a guarantee of all kinds unused, behind the head of a queue."""
    jobs = [fast(job_make(number, most=4, at=float(number)), number % 2) for number in range(1, 6)]
    of_all = {0: ProjectQuota(guaranteed=5, limit=6), 1: ProjectQuota(limit=3)}
    of_kind = {
        0: ProjectQuota(guaranteed_by_kind={"cpu": 5}, limit_by_kind={"cpu": 6}),
        1: ProjectQuota(limit_by_kind={"cpu": 3}),
    }
    snapshot = snapshot_make(EIGHT, *jobs, now=500.0)
    expected = settled(replace(snapshot, projects=of_all), name)
    found = settled(replace(snapshot, projects=of_kind), name)
    assert found.held == expected.held


@every_policy_but_search
def test_a_limit_of_a_kind_leads_to_others(name: str) -> None:
    """A job does not start on a kind of which its project may have too few."""
    nodes = accelerators_make("fast fast fast fast", "slow slow")
    jobs = [
        fast(job_make(1, least=2, most=2), VISION),
        fast(job_make(2, least=2, most=4, kinds="fast"), VISION),
    ]
    projects = {VISION: ProjectQuota(limit_by_kind={"fast": 1})}
    snapshot = snapshot_make(nodes, *jobs, now=500.0, projects=projects)
    assert str(POLICIES[name](snapshot).reasons[2]) == (
        "Waits for 2 accelerators: the limit of its project leaves 1."
    )
    assert settled(snapshot, name).held == {1: (5, 6)}


@pytest.mark.parametrize("name", ["fifo", "weighted_fair"])
def test_a_limit_of_the_only_kind_that_is_large_enough_holds_back_one_job(name: str) -> None:
    """A job that its project's limit holds back says so, and keeps no other job waiting."""
    limited = replace(job_make(1, least=4, weight=9.0), project=VISION)
    snapshot = snapshot_make(
        accelerators_make("fast " * 4, "slow"),
        limited,
        job_make(2, most=1, at=1.0),
        projects={VISION: ProjectQuota(limit_by_kind={"fast": 2})},
    )
    plan = decide(snapshot, name)
    assert [*plan.allocation.accelerators] == [2]
    assert plan.reasons[1] == "Waits for 4 accelerators: the limit of its project leaves 2."


def test_guarantees_of_a_kind_above_the_cluster_are_shared_in_proportion() -> None:
    jobs = [fast(job_make(number, most=8, kinds="cpu"), number % 2 + VISION) for number in range(4)]
    projects = {
        VISION: ProjectQuota(guaranteed_by_kind={"cpu": 12}),
        SPEECH: ProjectQuota(guaranteed=4, guaranteed_by_kind={"cpu": 4}),
    }
    snapshot = snapshot_make(EIGHT, *jobs, now=500.0, projects=projects)
    decision = POLICIES["weighted_fair"](snapshot)
    assert (given_to(snapshot, decision, VISION), given_to(snapshot, decision, SPEECH)) == (6, 2)


@pytest.mark.parametrize("name", ["fifo", "weighted_fair", "goodput_fair"])
def test_a_guarantee_is_not_split_over_kinds_of_which_enough_is_held(name: str) -> None:
    """Job 1 has its four a; for job 2 the project is given three b, not the fifth a and two b."""
    jobs = (
        replace(job_make(1, least=4, most=4), project=VISION),
        replace(job_make(2, least=3, most=3, at=9.0), project=VISION),
        job_make(3, most=1, kinds="a", weight=9.0),
        job_make(4, least=4, most=7, kinds="b", weight=9.0),
    )
    snapshot = snapshot_make(
        accelerators_make("a " * 5, "b " * 7),
        *jobs,
        held={1: (1, 2, 3, 4), 3: (5,), 4: (6, 7, 8, 9, 10, 11, 12)},
        now=500.0,
        projects={VISION: ProjectQuota(guaranteed=7)},
    )
    found = rested(snapshot, name).held
    assert (len(found.get(1, ())), len(found.get(2, ()))) == (4, 3)
