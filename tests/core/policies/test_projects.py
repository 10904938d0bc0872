"""Guarantees and limits of projects hold under every policy of the registry."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from controlplane.core.cycle import decide, decision_check
from controlplane.core.policies import POLICIES, POLICY_STATES, policy_state_decode
from controlplane.core.policies.common.quota_groups import users_in_projects
from controlplane.core.policies.common.quota_states import QuotaStates, joined
from controlplane.core.policies.tiresias import SecondQueue
from controlplane.core.protocol.codec import encode
from controlplane.core.scheduling.pools import capacity_by_kind
from controlplane.core.values.explanations import Reason
from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.tiers import TIERS, Tier
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
    accelerators_make,
    after,
    every_policy,
    job_make,
    rested,
    snapshot_make,
    snapshots,
)


@every_policy
@fewer
@given(snapshot=snapshots(tiers=TIERS), has_wide_limits=st.booleans())
def test_without_quotas_that_bind_nothing_changes(
    name: str, snapshot: Snapshot, has_wide_limits: bool
) -> None:
    """Shares, reasons and the state: without quotas, and with a limit above all demands."""
    jobs = tuple(replace(job, project=VISION + job.id % 2) for job in snapshot.jobs)
    of_kinds = {"slow": 100, "fast": 100, "absent": 0}
    wide = ProjectQuota(limit=100, user_limit=100, limit_by_kind=of_kinds)
    projects = {VISION: wide, SPEECH: wide} if has_wide_limits else {}
    expected = POLICIES[name](snapshot)
    found = POLICIES[name](replace(snapshot, jobs=jobs, projects=projects))
    assert found == expected


def test_a_limit_that_is_kept_changes_nothing_where_jobs_wait_for_others() -> None:
    """The newcomer displaces the other job, which would start on b once it has left."""
    jobs = [replace(job_make(1, least=3, most=3), project=VISION), job_make(2, weight=10, most=1)]
    snapshot = snapshot_make(accelerators_make("a a", "b b b", "a"), *jobs, held={1: (1, 2, 6)})
    limited = replace(snapshot, projects={VISION: ProjectQuota(limit=100)})
    assert POLICIES["weighted_fair"](limited) == POLICIES["weighted_fair"](snapshot)


@every_policy
@fewer
@given(snapshot=in_projects(tiers=TIERS[:2]))
def test_no_project_and_no_user_exceeds_a_limit(name: str, snapshot: Snapshot) -> None:
    """At every step, with quotas that change between decisions, and with lent accelerators."""
    for step in range(3):
        decision = POLICIES[name](snapshot)
        decision_check(snapshot, decision)
        if name in POLICY_STATES and decision.carried is not None:
            policy_state_decode(name, encode(decision.carried))
        snapshot = after(snapshot, decide(snapshot, name))
        one, two = snapshot.projects[VISION], snapshot.projects[SPEECH]
        turned = {VISION: two, SPEECH: one} if step == 1 else snapshot.projects
        snapshot = replace(snapshot, projects=turned, now=snapshot.now + 200.0)


@pytest.mark.nightly
@every_policy
@given(snapshot=in_projects(tiers=TIERS[:2]))
def test_a_cluster_with_quotas_comes_to_rest(name: str, snapshot: Snapshot) -> None:
    rested(snapshot, name)


def test_a_cluster_with_a_limit_comes_to_rest() -> None:
    """A decision that stops jobs is not taken back as soon as they have left."""
    cluster = accelerators_make("b b", "a", "b", "a", "b b")
    ending = replace(job_make(1, most=2, at=500.0), project=VISION, remaining_examples=50.0)
    long = replace(job_make(2, most=3), project=VISION)
    ended = replace(job_make(3, most=5, at=10.0), remaining_examples=0.0)
    snapshot = snapshot_make(cluster, ending, long, ended, held={1: (1, 2)})
    snapshot = replace(snapshot, projects={VISION: ProjectQuota(limit=4)})
    rested(snapshot, "srtf")


@every_policy
def test_a_guarantee_takes_no_more_than_its_users_may_have(name: str) -> None:
    """One guarantee is kept in full, as the other one's only user may have no more than one."""
    jobs = [
        fast(job_make(1, most=3), VISION, 10),
        fast(job_make(2, least=3, most=3), SPEECH, 20),
        fast(job_make(3, most=5)),
    ]
    snapshot = replace(
        snapshot_make(
            accelerators_make("cpu cpu cpu cpu cpu"), *jobs, held={3: (1, 2, 3, 4, 5)}, now=500.0
        ),
        projects={
            VISION: ProjectQuota(guaranteed=3, user_limit=1),
            SPEECH: ProjectQuota(guaranteed=3),
        },
    )
    decision = POLICIES[name](snapshot)
    decision_check(snapshot, decision)
    assert given_to(snapshot, decision, VISION) == 1
    assert given_to(snapshot, decision, SPEECH) == 3


@every_policy
@fewer
@given(snapshot=in_projects())
def test_a_guaranteed_job_starts_with_the_next_decision(name: str, snapshot: Snapshot) -> None:
    """Whatever the others hold, beyond their guarantees; there are none of these."""
    assume(snapshot.accelerators)
    kind = snapshot.accelerators[0].kind
    total = sum(one.kind == kind for one in snapshot.accelerators)
    job = fast(job_make(99, most=4, least=min(total, 2), kinds=kind, at=snapshot.now), 7)
    least = job.min_accelerators
    projects = {
        project: ProjectQuota(limit=one.limit) for project, one in snapshot.projects.items()
    }
    snapshot = replace(
        snapshot,
        jobs=(*snapshot.jobs, job),
        projects=projects | {7: ProjectQuota(guaranteed=least)},
    )
    assert POLICIES[name](snapshot).shares[99].count >= least


@every_policy
def test_a_guarantee_is_lent_and_given_back_within_one_decision(name: str) -> None:
    """Both jobs of one project take all; the other project has its part back at once."""
    lent = [fast(job_make(number, most=4, at=float(number)), VISION) for number in (1, 2)]
    projects = {SPEECH: ProjectQuota(guaranteed=4), VISION: ProjectQuota(guaranteed=4)}
    alone = replace(snapshot_make(EIGHT, *lent, now=500.0), projects=projects)
    alone = settled(alone, name)
    assert held(alone) == {1: 4, 2: 4}
    owners = [fast(job_make(number, most=4, at=alone.now), SPEECH) for number in (3, 4)]
    both = replace(alone, jobs=(*alone.jobs, *owners))
    plan = decide(both, name)
    assert plan.allocation is not None
    first = {job_id: len(row) for job_id, row in plan.allocation.accelerators.items()}
    assert first.get(3, 0) + first.get(4, 0) > 0
    assert first.get(1, 0) + first.get(2, 0) >= 4
    both = settled(both, name)
    now = held(both)
    assert (now.get(1, 0) + now.get(2, 0), now.get(3, 0) + now.get(4, 0)) == (4, 4)
    gone = {job_id: row for job_id, row in both.held.items() if job_id < 3}
    back = settled(replace(both, jobs=both.jobs[:2], held=gone), name)
    assert held(back) == {1: 4, 2: 4}


@every_policy
def test_a_full_project_blocks_nobody(name: str) -> None:
    """A waiting job at the head of the queue has no room below its project's limit."""
    running = fast(job_make(1, least=2, most=2), VISION)
    waiting = fast(job_make(2, weight=50.0, least=3, most=3, at=1.0), VISION)
    stranger = fast(job_make(3, least=4, most=4))
    other = fast(job_make(4, least=2, most=2, at=2.0))
    rows = {1: (1, 2), 3: (5, 6, 7, 8)}
    snapshot = snapshot_make(EIGHT, running, waiting, stranger, other, held=rows, now=500.0)
    snapshot = replace(snapshot, projects={VISION: ProjectQuota(limit=4)})
    decision = POLICIES[name](snapshot)
    idle = 8 - sum(share.count for share in decision.shares.values())
    assert 4 in decision.shares or idle < 2
    assert 0 < given_to(snapshot, decision, VISION) <= 4
    assert "at most 4" in "".join(map(str, decision.reasons.values()))


@every_policy
def test_a_job_above_its_projects_limit_is_skipped(name: str) -> None:
    jobs = [fast(job_make(1, least=4, most=4), VISION), fast(job_make(2, most=8, at=1.0), VISION)]
    snapshot = replace(
        snapshot_make(EIGHT, *jobs, now=500.0), projects={VISION: ProjectQuota(limit=2)}
    )
    decision = POLICIES[name](snapshot)
    assert str(decision.reasons[1]) == (
        "Waits for 4 accelerators: the limit of its project leaves 2."
    )
    assert held(settled(snapshot, name)) == {2: 2}


@every_policy
def test_a_user_has_no_more_of_a_project_than_the_limit(name: str) -> None:
    """And what a user may not have goes to the others of the project."""
    jobs = [
        fast(job_make(number, most=2, at=float(number)), VISION, user)
        for number, user in ((1, 10), (2, 10), (3, 10), (4, 20))
    ]
    snapshot = replace(
        snapshot_make(EIGHT, *jobs, now=500.0),
        projects={VISION: ProjectQuota(limit=7, user_limit=4)},
    )
    now = held(settled(snapshot, name))
    assert sum(now.get(number, 0) for number in (1, 2, 3)) == 4
    assert now[4] == 2


@every_policy
def test_tiers_share_a_limit_and_a_guarantee(name: str) -> None:
    jobs = [
        fast(job_make(1, most=2, tier=Tier.URGENT), VISION),
        fast(job_make(2, most=8, tier=Tier.IDLE), VISION),
        fast(job_make(3, most=4, tier=Tier.IDLE, at=-1.0), SPEECH),
    ]
    projects = {VISION: ProjectQuota(guaranteed=3, limit=3)}
    snapshot = replace(snapshot_make(EIGHT, *jobs, now=500.0), projects=projects)
    assert held(settled(snapshot, name)) == {1: 2, 2: 1, 3: 4}


def test_the_order_of_users_in_projects_is_not_that_of_their_jobs() -> None:
    """Groups choose in turns: a job that ends would change what other users get."""
    jobs = [replace(job_make(i, most=1), project=VISION, user=i % 3 or None) for i in range(1, 6)]
    projects = {VISION: ProjectQuota(user_limit=1)}
    orders = {
        tuple(group.key for group in users_in_projects(replace(snapshot, projects=projects)))
        for snapshot in (snapshot_make(EIGHT, *jobs), snapshot_make(EIGHT, *reversed(jobs)))
    }
    assert len(orders) == 1


def test_guarantees_above_the_cluster_are_shared_in_proportion() -> None:
    jobs = [fast(job_make(1, most=8), VISION), fast(job_make(2, most=8), SPEECH)]
    projects = {VISION: ProjectQuota(guaranteed=12), SPEECH: ProjectQuota(guaranteed=4)}
    snapshot = replace(snapshot_make(EIGHT, *jobs, now=500.0), projects=projects)
    decision = POLICIES["weighted_fair"](snapshot)
    assert {job_id: share.count for job_id, share in decision.shares.items()} == {1: 6, 2: 2}


def test_a_job_above_its_users_limit_is_told_so() -> None:
    """Although what is left for its project, or beside the projects, is too little as well."""
    jobs = [
        fast(job_make(1, least=4, most=4), VISION, 10),
        fast(job_make(2, most=8), VISION, 10),
        fast(job_make(3, least=7, most=7), SPEECH, 10),
        fast(job_make(4, weight=100.0, most=8)),
    ]
    quotas = {VISION: ProjectQuota(guaranteed=4, user_limit=2), SPEECH: ProjectQuota(user_limit=3)}
    snapshot = replace(snapshot_make(EIGHT, *jobs, now=500.0), projects=quotas)
    reasons = POLICIES["weighted_fair"](snapshot).reasons
    limits = "Waits for {} accelerators: the limit of its owner in this project leaves {}."
    assert str(reasons[1]).startswith(limits.format(4, 2))
    assert str(reasons[3]).startswith(limits.format(7, 3))


@pytest.mark.parametrize("name", ["fifo", "priority"])
def test_a_full_demand_is_that_on_the_cluster(name: str) -> None:
    """A project starts with the two that it is guaranteed; its job can use eight."""
    jobs = [fast(job_make(1, most=4)), fast(job_make(2, most=2)), fast(job_make(3, most=8), VISION)]
    snapshot = snapshot_make(EIGHT, *jobs, held={1: (1, 2, 3, 4), 2: (5, 6)}, now=500.0)
    snapshot = replace(snapshot, projects={VISION: ProjectQuota(guaranteed=2)})
    told = "Keeps 2 of kind cpu: its full demand would be 8"
    for _ in range(2):
        decision = POLICIES[name](snapshot)
        assert str(decision.reasons[3]).startswith(told), str(decision.reasons[3])
        snapshot = after(snapshot, decide(snapshot, name))


def _pools_told(reason: object) -> Iterator[tuple[str, int]]:
    """Yield the kinds of a reason, of each with the accelerators that the reason says there are."""
    if isinstance(reason, tuple):
        for one in reason:
            yield from _pools_told(one)
    elif isinstance(reason, Reason):
        if "capacity" in reason.fields:
            yield reason.fields["kind"], reason.fields["capacity"]
        yield from _pools_told(tuple(reason.fields.values()))


#: A job that held the whole cluster runs beside a project with a guarantee of seven.
_BESIDE = replace(
    snapshot_make(
        EIGHT, fast(job_make(1)), fast(job_make(2, least=2, at=400.0), VISION),
        held={1: tuple(range(1, 9))}, now=500.0,
    ),
    projects={VISION: ProjectQuota(guaranteed=7)},
)  # fmt: skip


@every_policy
@fewer
@given(snapshot=in_projects())
@example(snapshot=_BESIDE)
def test_counts_that_leave_out_accelerators_of_the_cluster_say_so(
    name: str, snapshot: Snapshot
) -> None:
    """A job that runs beside a project with a guarantee was told to have "1 of 1" of 8."""
    capacity = capacity_by_kind(snapshot)
    for reason in POLICIES[name](snapshot).reasons.values():
        if any(capacity[kind] != told for kind, told in _pools_told(reason)):
            assert " counted here" in str(reason)


def test_what_a_state_knows_outlives_being_apart() -> None:
    """Of the jobs that were apart, and of those that come to them."""
    states = QuotaStates({"": SecondQueue((1, 2)), "7": SecondQueue((3,))})
    assert joined(SecondQueue((9,)), states, {1, 3}) == SecondQueue((9, 1, 3))
    apart = QuotaStates({"7": SecondQueue((3,))})
    assert joined(apart, None, {1}) == apart
    jobs = [fast(job_make(number, most=4)) for number in (1, 2, 3)]
    snapshot = replace(snapshot_make(EIGHT, *jobs), carried=states)
    assert POLICIES["tiresias"](snapshot).carried == SecondQueue((1, 2, 3))


@pytest.mark.nightly
def test_quotas_that_bind_cost_a_few_decisions() -> None:
    """On 2,000 accelerators and 500 jobs of ten projects, half of them above or below quotas."""
    cluster = accelerators_make(*["cpu cpu cpu cpu cpu cpu cpu cpu"] * 250)
    jobs = [
        fast(job_make(number, weight=1.0 + number % 7, most=16), number % 10)
        for number in range(1, 501)
    ]
    plain = snapshot_make(cluster, *jobs, now=500.0)
    projects = {
        number: ProjectQuota(guaranteed=260) if number % 4 == 0 else ProjectQuota(limit=150)
        for number in range(0, 10, 2)
    }
    spent = []
    for snapshot in (plain, replace(plain, projects=projects)):
        before = time.process_time()
        POLICIES["weighted_fair"](snapshot)
        spent.append(time.process_time() - before)
    assert spent[1] < 5.0 * spent[0] + 0.5
