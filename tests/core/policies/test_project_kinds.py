"""Quotas of projects on several kinds of accelerators, and what groups lend each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controlplane.core.cycle import decide, decision_check
from controlplane.core.policies import DEMANDS, POLICIES
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
    Speed,
    accelerators_make,
    after,
    every_policy_but_search,
    job_make,
    linear,
    rested,
    snapshot_make,
)


@every_policy_but_search
@pytest.mark.parametrize(("first_node", "held_by_one"), [("fast", (1,)), ("fast fast", (1, 2))])
def test_a_count_for_the_nodes_of_a_part_is_placed_on_these(
    name: str, first_node: str, held_by_one: tuple[int, ...]
) -> None:
    """A job that is slow on two nodes has three on one, two beside one elsewhere, three again."""
    slow_apart = replace(job_make(3, most=3), performance=Speed(company=0.05, distance=0.5))
    jobs = [job_make(1, most=2), job_make(2, most=1), replace(slow_apart, remaining_examples=0.0)]
    snapshot = replace(
        snapshot_make(
            accelerators_make(first_node, "fast fast fast", "fast fast fast"),
            *(replace(job, project=VISION, tier=Tier.URGENT) for job in jobs),
            held={1: held_by_one},
        ),
        projects={VISION: ProjectQuota(limit_by_kind={"fast": 3})},
    )
    for _ in range(4):
        snapshot = after(snapshot, decide(snapshot, name))
    assert decide(snapshot, name).resizes == ()


def test_a_group_keeps_what_its_jobs_need_to_run() -> None:
    """Its older job gave up and took back one accelerator, as half of the other was set apart."""
    jobs = [
        job_make(1, most=1),
        job_make(2, most=1, kinds="fast"),
        replace(job_make(3, most=3), project=SPEECH),
        replace(job_make(4, least=2, most=2), project=SPEECH),
        job_make(5, most=1),
        job_make(6, most=1),
    ]
    snapshot = replace(
        snapshot_make(
            accelerators_make("slow slow", "slow slow", "slow slow", "fast fast"),
            *(replace(job, tier=Tier.URGENT) for job in jobs),
            held={4: (7, 8)},
        ),
        projects={SPEECH: ProjectQuota(limit=4)},
    )
    for _ in range(6):
        snapshot = after(snapshot, decide(snapshot, "optimus"))
    assert decide(snapshot, "optimus").resizes == ()
    assert set(snapshot.held[4]) == {7, 8}


@every_policy_but_search
def test_a_waiting_job_starts_on_what_another_group_leaves_idle(name: str) -> None:
    """A job that runs was moved to and fro between the kinds, as each of its places was needed."""
    jobs = [
        replace(job_make(1, most=2, weight=2.0), project=SPEECH),
        replace(
            job_make(2, most=1),
            project=SPEECH,
            performance=Speed(company=0.0),
            num_resizes=2,
            changed_at=500.0,
            running_since=500.0,
        ),
        replace(job_make(3, most=3), project=VISION),
        job_make(4, least=2, most=2),
    ]
    snapshot = replace(
        snapshot_make(
            accelerators_make("slow slow", "slow slow", "fast fast"),
            *(replace(job, tier=Tier.URGENT) for job in jobs),
            held={2: (1,)},
            now=5000.0,
        ),
        projects={VISION: ProjectQuota(guaranteed=3), SPEECH: ProjectQuota(guaranteed=3)},
    )
    for _ in range(24 if name == "pollux" else 6):
        snapshot = after(snapshot, decide(snapshot, name))
    assert decide(snapshot, name).resizes == ()
    assert 1 in snapshot.held


@every_policy_but_search
def test_a_job_keeps_what_another_group_leaves_idle(name: str) -> None:
    """The other group has five and uses four of them, rounded down to a power of two."""
    jobs = [
        replace(job_make(1, most=8), project=VISION),
        replace(job_make(2, least=4, most=4, weight=50.0), project=SPEECH),
        replace(job_make(3, most=1), project=SPEECH),
        job_make(4, most=1, weight=7.0),
        job_make(5, least=4, most=4, weight=100.0),
    ]
    snapshot = replace(
        snapshot_make(
            accelerators_make("slow " * 7, "slow", "slow", "fast"),
            *(replace(job, running_since=500.0 if job.id in (1, 2, 4) else None) for job in jobs),
            held={1: (1, 2, 3, 4), 2: (5, 6, 7), 4: (10,)},
            now=1000.0,
        ),
        projects={VISION: ProjectQuota(guaranteed=5), SPEECH: ProjectQuota(guaranteed=5)},
    )
    for _ in range(24 if name == "pollux" else 8):
        snapshot = after(snapshot, decide(snapshot, name))
    assert decide(snapshot, name).resizes == ()
    assert 3 in snapshot.held


def test_what_stays_idle_is_offered_of_the_kind_that_a_job_holds() -> None:
    """Job 4 leaves a slow one to job 1, whose group was offered one of the many fast ones."""
    jobs = [
        replace(job_make(1, least=3), project=VISION, user=1),
        replace(job_make(2, least=2, kinds="slow"), project=VISION, user=1),
        replace(job_make(3, most=1, kinds="fast"), project=SPEECH, user=2),
        replace(job_make(4, most=1, kinds="slow"), project=SPEECH, user=2),
    ]
    cluster = accelerators_make("slow slow slow slow", "fast fast fast fast fast fast")
    snapshot = replace(
        snapshot_make(cluster, *jobs, held={1: (1, 2, 3), 3: (5,), 4: (4,)}),
        projects={VISION: ProjectQuota(user_limit=4), SPEECH: ProjectQuota(user_limit=1)},
    )
    found = rested(snapshot, "weighted_fair")
    assert decide(found, "weighted_fair").resizes == ()
    assert held(found) == {1: 4, 3: 1}


@pytest.mark.parametrize("name", ["gavel", "sia"])
def test_a_job_does_not_start_where_its_model_is_zero(name: str) -> None:
    """A guarantee has all accelerators of the kind on which it has a speed."""
    slow_only = replace(job_make(1, least=2, most=2), performance=Speed(by_kind={"fast": 0.0}))
    snapshot = replace(
        snapshot_make(
            accelerators_make("slow slow", "fast fast"),
            replace(slow_only, remaining_examples=50.0),
            replace(job_make(2, least=2, most=2, kinds="slow"), project=VISION, submitted_at=1.0),
            now=2.0,
        ),
        projects={VISION: ProjectQuota(guaranteed=2)},
    )
    assert held(rested(snapshot, name)) == {2: 2}


def test_a_demand_does_not_depend_on_the_nodes_that_a_group_chose() -> None:
    """On a part with two on a node it was two, with three on a node it was three, in turn."""
    distant = replace(job_make(2, most=4), performance=Speed(distance=1.0), remaining_examples=1e4)
    snapshot = replace(
        snapshot_make(
            accelerators_make("gpu gpu", "gpu", "gpu", "gpu gpu gpu"),
            job_make(1),
            replace(distant, project=VISION, running_since=0.0),
            replace(job_make(3, most=4), project=VISION),
            held={2: (1, 2, 3, 4)},
        ),
        projects={VISION: ProjectQuota(limit=5)},
    )
    rested_at = rested(snapshot, "srtf")
    assert decide(rested_at, "srtf").resizes == ()
    assert held(rested_at) == {1: 4, 2: 3}


@pytest.mark.parametrize("name", ["fifo", "goodput_fair"])
def test_a_limit_is_not_used_up_by_a_kind_that_nobody_can_use(name: str) -> None:
    """The second accelerator of the project was one more of the kind of its first job."""
    jobs = [
        replace(job_make(1, most=1, kinds="slow"), project=VISION),
        replace(job_make(2, most=1, at=1.0, kinds="fast"), project=VISION),
        replace(job_make(3, least=2, most=2, at=2.0), project=VISION),
    ]
    snapshot = replace(
        snapshot_make(accelerators_make("slow slow slow slow", "fast fast"), *jobs, held={1: (1,)}),
        projects={VISION: ProjectQuota(limit=2)},
    )
    assert held(rested(snapshot, name)) == {1: 1, 2: 1}


def test_speeds_do_not_depend_on_the_nodes_that_a_group_chose() -> None:
    """Two were no faster than one on a part of single ones, and faster on one with a pair."""
    parallel = replace(job_make(1, most=4), performance=Speed(distance=1.0), tier=Tier.URGENT)
    blocked = replace(job_make(2, least=3, at=10.0), performance=Speed(), tier=Tier.URGENT)
    low = replace(job_make(3, at=5.0), performance=Speed())
    jobs = [replace(one, project=VISION, user=2) for one in (parallel, blocked, low)]
    snapshot = replace(
        snapshot_make(
            accelerators_make("cpu cpu", "cpu", "cpu"),
            *(replace(job, remaining_examples=1e4) for job in jobs),
            held={1: (3, 4), 3: (1,)},
        ),
        projects={VISION: ProjectQuota(user_limit=3)},
    )
    assert decide(rested(snapshot, "optimus"), "optimus").resizes == ()


def test_a_group_with_a_waiting_job_does_not_follow_what_it_holds() -> None:
    """Its job waited for the kind of another one, which ended there; then for the other kind."""
    nodes = accelerators_make("slow slow", "slow", "fast fast fast")
    jobs = [
        replace(job_make(1, at=500.0, kinds="slow", tier=Tier.URGENT), project=VISION),
        replace(job_make(2, least=3, most=6, tier=Tier.URGENT), project=VISION),
        job_make(3, least=2, most=6),
    ]
    snapshot = replace(
        snapshot_make(nodes, *jobs, held={1: (3,), 3: (1, 2)}),
        projects={VISION: ProjectQuota(limit=4)},
    )
    assert decide(rested(snapshot, "tiresias"), "tiresias").resizes == ()


def test_a_group_keeps_what_its_jobs_are_lent() -> None:
    """A job whose leader is of a slow kind moved between like accelerators of the other one."""
    mixes = {"fast": linear(0.01), "slow": linear(0.03)}
    speed = Speed(by_kind={"slow": 0.0})
    job = replace(job_make(1, most=4, mixes=mixes), performance=speed, project=VISION)
    nodes = accelerators_make("fast fast", "fast", "slow", "fast fast")
    counts = {"fast": 3, "slow": 1}
    quota = ProjectQuota(limit=4, guaranteed_by_kind=counts, limit_by_kind=counts)
    snapshot = replace(snapshot_make(nodes, job, held={1: (4, 1, 2, 3)}), projects={VISION: quota})
    assert decide(rested(snapshot, "goodput_fair"), "goodput_fair").resizes == ()


@pytest.mark.parametrize("name", ["fifo", "goodput_fair"])
def test_guarantees_of_the_same_accelerators_are_not_given_in_turns(name: str) -> None:
    """One project lost what it had to the other one, and took it back at the next decision."""
    jobs = [
        replace(job_make(1, least=3, most=3, at=9.0, kinds="slow"), project=VISION),
        replace(job_make(2, least=2, most=3, at=0.0, kinds="slow"), project=SPEECH),
    ]
    quota = ProjectQuota(guaranteed=3)
    snapshot = replace(
        snapshot_make(accelerators_make("slow slow slow", "fast fast fast"), *jobs),
        projects={VISION: quota, SPEECH: quota},
    )
    assert decide(rested(snapshot, name), name).resizes == ()


def _decided_kind() -> Snapshot:
    """Among all jobs, job 2 is given 3 fast ones; its group is to have 3 slow ones besides."""
    jobs = [
        job_make(1, most=6, kinds="slow"),
        replace(job_make(2), project=VISION),
        replace(job_make(3, most=7, at=9.0), project=VISION),
    ]
    cluster = accelerators_make("slow slow slow slow", "fast fast fast")
    quota = ProjectQuota(guaranteed=2, guaranteed_by_kind={"slow": 3, "fast": 1})
    snapshot = snapshot_make(cluster, *jobs, held={3: (1, 2, 3), 1: (4,)})
    return replace(snapshot, projects={VISION: quota})


def _idle_kind() -> Snapshot:
    """Job 1 does not fit on fast ones beside job 2, which could use all of the slow ones."""
    jobs = [
        replace(job_make(1, least=3, most=7, kinds="fast"), project=VISION, user=1),
        replace(job_make(2, most=5), project=VISION, user=1),
        replace(job_make(3, most=1, kinds="slow", at=9.0), project=VISION),
        job_make(4, most=3, kinds="slow"),
    ]
    cluster = accelerators_make("slow slow slow", "fast " * 6)
    quota = ProjectQuota(guaranteed=6, limit=8, user_limit=3, limit_by_kind={"fast": 4})
    snapshot = snapshot_make(cluster, *jobs, held={2: (1, 2), 4: (3,)})
    return replace(snapshot, projects={VISION: quota})


def _order_in_a_part() -> Snapshot:
    """On what the group leaves, without 4 of the 5 fast ones, job 4 seems shorter than job 3."""
    speeds = {1: Speed(company=2.0), 2: Speed(company=0.2), 3: Speed(company=0.2), 4: Speed()}
    jobs = [
        replace(job_make(1, least=2, most=7, at=9.0), project=VISION),
        replace(job_make(2, most=7, at=9.0, kinds="fast"), project=VISION),
        job_make(3, most=4),
        job_make(4, least=3, most=3, at=9.0),
    ]
    jobs = [replace(job, performance=speeds[job.id], remaining_examples=1e4) for job in jobs]
    cluster = accelerators_make("slow slow slow", "fast " * 5)
    snapshot = snapshot_make(cluster, *jobs, held={2: (4, 5), 3: (1, 2, 3)})
    return replace(snapshot, projects={VISION: ProjectQuota(guaranteed=2, limit=4)})


@pytest.mark.parametrize(
    ("name", "snapshot"),
    [("tiresias", _decided_kind()), ("optimus", _idle_kind()), ("srtf", _order_in_a_part())],
)
def test_what_a_group_gets_does_not_follow_what_it_holds(name: str, snapshot: Snapshot) -> None:
    """The group was given one thing and another in turns."""
    assert decide(rested(snapshot, name), name).resizes == ()


@every_policy_but_search
def test_a_guarantee_starts_on_what_another_group_leaves_idle(name: str) -> None:
    """The job of no project moved to the idle one in each cycle, and the other one waited."""
    jobs = [
        replace(job_make(1, least=4, most=4), project=VISION),
        replace(job_make(2, most=2), project=VISION, performance=Speed(company=2.0)),
        replace(job_make(3, most=2), project=VISION, user=1),
        replace(job_make(4, most=1), running_since=10.0),
        replace(job_make(5, most=2), project=SPEECH),
    ]
    vision = ProjectQuota(guaranteed=0, limit=None, user_limit=2, guaranteed_by_kind={"gpu": 12})
    snapshot = replace(
        snapshot_make(accelerators_make("gpu", "gpu " * 4), *jobs, held={4: (1,)}, now=50.0),
        projects={VISION: vision, SPEECH: ProjectQuota(guaranteed=4)},
    )
    for _ in range(24 if name == "pollux" else 8):
        snapshot = after(snapshot, decide(snapshot, name))
    assert decide(snapshot, name).resizes == ()
    assert 5 in snapshot.held


def test_a_job_starts_on_a_kind_that_its_group_would_leave_idle() -> None:
    """Job 3 does not fit in what the limit leaves; the other project does not use the slow one."""
    jobs = [job_make(1, most=1, kinds="slow"), job_make(2, most=1), job_make(3, least=2, most=2)]
    snapshot = replace(
        snapshot_make(
            accelerators_make("slow", "fast fast fast"),
            *(replace(job, project=VISION) for job in jobs),
            replace(job_make(4, most=2), project=SPEECH),
            held={2: (2,), 4: (4,)},
        ),
        projects={
            VISION: ProjectQuota(limit=2),
            SPEECH: ProjectQuota(guaranteed_by_kind={"slow": 2}),
        },
    )
    assert rested(snapshot, "fifo").held == {1: (1,), 2: (2,), 4: (4,)}


@every_policy_but_search
@pytest.mark.parametrize("held", [{}, {3: (4,)}])
def test_a_guarantee_is_on_the_kind_that_its_only_job_holds(
    name: str, held: dict[int, tuple[int, ...]]
) -> None:
    """On another kind it is of no use; the job that makes way for it moves there."""
    jobs = [
        replace(job_make(1, most=2), project=VISION, running_since=900.0),
        replace(job_make(2, weight=1000.0, least=2, most=2), running_since=900.0),
        job_make(3, most=1),
    ]
    nodes = accelerators_make("gpu gpu gpu", "cpu cpu")
    snapshot = replace(
        snapshot_make(nodes, *jobs, held={1: (3,), 2: (1, 2), **held}, now=1000.0),
        projects={VISION: ProjectQuota(guaranteed=4)},
    )
    for _ in range(24 if name == "pollux" else 8):
        snapshot = after(snapshot, decide(snapshot, name))
    assert decide(snapshot, name).resizes == ()
    if name == "weighted_fair":
        assert len(snapshot.held[1]) == 2


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
    snapshot = replace(
        snapshot_make(
            accelerators_make("slow slow"), *jobs, *others,
            held={4: (1,), 5: (2,)} if is_held else None,
        ),
        projects={VISION: ProjectQuota(user_limit=1, guaranteed_by_kind={"slow": 2})},
    )  # fmt: skip
    decision = POLICIES[name](snapshot)
    decision_check(snapshot, decision)
    assert given_to(snapshot, decision, VISION) == num_users


@every_policy_but_search
def test_a_guarantee_with_a_part_of_a_kind_is_one_kind(name: str) -> None:
    """Two kinds would leave a job with half of its guarantee; it took turns with the other one."""
    jobs = [
        replace(job_make(2, least=2, most=2), project=SPEECH),
        replace(job_make(3, most=2, at=10.0), project=VISION),
        replace(job_make(5, most=1), project=SPEECH),
    ]
    snapshot = replace(
        snapshot_make(
            accelerators_make("slow fast", "slow fast"),
            *(replace(job, tier=Tier.URGENT) for job in jobs),
            *(job_make(number, most=1) for number in (1, 4)),
            held={4: (1,)},
        ),
        projects={
            VISION: ProjectQuota(guaranteed=2, guaranteed_by_kind={"fast": 1}),
            SPEECH: ProjectQuota(guaranteed_by_kind={"fast": 1}),
        },
    )
    for _ in range(6):
        snapshot = after(snapshot, decide(snapshot, name))
    assert decide(snapshot, name).resizes == ()


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
    alone = settled(replace(snapshot_make(nodes, *lent, now=500.0), projects=projects), name)
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
    snapshot = replace(snapshot_make(nodes, *jobs, now=500.0), projects=projects)
    assert str(POLICIES[name](snapshot).reasons[2]) == (
        "Waits for 2 accelerators: the limit of its project leaves 1."
    )
    assert settled(snapshot, name).held == {1: (5, 6)}


@pytest.mark.parametrize("name", ["fifo", "weighted_fair"])
def test_a_limit_of_the_only_kind_that_is_large_enough_holds_back_one_job(name: str) -> None:
    """A job that its project's limit holds back says so, and keeps no other job waiting."""
    limited = replace(job_make(1, least=4, weight=9.0), project=VISION)
    snapshot = replace(
        snapshot_make(accelerators_make("fast " * 4, "slow"), limited, job_make(2, most=1, at=1.0)),
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
    snapshot = replace(snapshot_make(EIGHT, *jobs, now=500.0), projects=projects)
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
    snapshot = replace(
        snapshot_make(
            accelerators_make("a " * 5, "b " * 7),
            *jobs,
            held={1: (1, 2, 3, 4), 3: (5,), 4: (6, 7, 8, 9, 10, 11, 12)},
            now=500.0,
        ),
        projects={VISION: ProjectQuota(guaranteed=7)},
    )
    found = rested(snapshot, name).held
    assert (len(found.get(1, ())), len(found.get(2, ()))) == (4, 3)
