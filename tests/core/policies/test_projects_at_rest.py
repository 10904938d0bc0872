"""Clusters with quotas of projects come to rest: no two decisions take turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.tiers import Tier
from controlplane.core.values.types import Snapshot
from tests.core.policies.projects import SPEECH, VISION, held
from tests.core.snapshots import (
    Speed,
    accelerators_make,
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
    snapshot = snapshot_make(
        accelerators_make(first_node, "fast fast fast", "fast fast fast"),
        *(replace(job, project=VISION, tier=Tier.URGENT) for job in jobs),
        held={1: held_by_one},
        projects={VISION: ProjectQuota(limit_by_kind={"fast": 3})},
    )
    rested(snapshot, name)


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
    snapshot = snapshot_make(
        accelerators_make("slow slow", "slow slow", "slow slow", "fast fast"),
        *(replace(job, tier=Tier.URGENT) for job in jobs),
        held={4: (7, 8)},
        projects={SPEECH: ProjectQuota(limit=4)},
    )
    assert set(rested(snapshot, "optimus").held[4]) == {7, 8}


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
    snapshot = snapshot_make(
        accelerators_make("slow slow", "slow slow", "fast fast"),
        *(replace(job, tier=Tier.URGENT) for job in jobs),
        held={2: (1,)},
        now=5000.0,
        projects={VISION: ProjectQuota(guaranteed=3), SPEECH: ProjectQuota(guaranteed=3)},
    )
    assert 1 in rested(snapshot, name).held


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
    snapshot = snapshot_make(
        accelerators_make("slow " * 7, "slow", "slow", "fast"),
        *(replace(job, running_since=500.0 if job.id in (1, 2, 4) else None) for job in jobs),
        held={1: (1, 2, 3, 4), 2: (5, 6, 7), 4: (10,)},
        now=1000.0,
        projects={VISION: ProjectQuota(guaranteed=5), SPEECH: ProjectQuota(guaranteed=5)},
    )
    assert 3 in rested(snapshot, name).held


def test_what_stays_idle_is_offered_of_the_kind_that_a_job_holds() -> None:
    """Job 4 leaves a slow one to job 1, whose group was offered one of the many fast ones."""
    jobs = [
        replace(job_make(1, least=3), project=VISION, user=1),
        replace(job_make(2, least=2, kinds="slow"), project=VISION, user=1),
        replace(job_make(3, most=1, kinds="fast"), project=SPEECH, user=2),
        replace(job_make(4, most=1, kinds="slow"), project=SPEECH, user=2),
    ]
    cluster = accelerators_make("slow slow slow slow", "fast fast fast fast fast fast")
    snapshot = snapshot_make(
        cluster,
        *jobs,
        held={1: (1, 2, 3), 3: (5,), 4: (4,)},
        projects={VISION: ProjectQuota(user_limit=4), SPEECH: ProjectQuota(user_limit=1)},
    )
    assert held(rested(snapshot, "weighted_fair")) == {1: 4, 3: 1}


def test_a_demand_does_not_depend_on_the_nodes_that_a_group_chose() -> None:
    """On a part with two on a node it was two, with three on a node it was three, in turn."""
    distant = replace(job_make(2, most=4), performance=Speed(distance=1.0), remaining_examples=1e4)
    snapshot = snapshot_make(
        accelerators_make("gpu gpu", "gpu", "gpu", "gpu gpu gpu"),
        job_make(1),
        replace(distant, project=VISION, running_since=0.0),
        replace(job_make(3, most=4), project=VISION),
        held={2: (1, 2, 3, 4)},
        projects={VISION: ProjectQuota(limit=5)},
    )
    assert held(rested(snapshot, "srtf")) == {1: 4, 2: 3}


def test_speeds_do_not_depend_on_the_nodes_that_a_group_chose() -> None:
    """Two were no faster than one on a part of single ones, and faster on one with a pair."""
    parallel = replace(job_make(1, most=4), performance=Speed(distance=1.0), tier=Tier.URGENT)
    blocked = replace(job_make(2, least=3, at=10.0), performance=Speed(), tier=Tier.URGENT)
    low = replace(job_make(3, at=5.0), performance=Speed())
    jobs = [replace(one, project=VISION, user=2) for one in (parallel, blocked, low)]
    snapshot = snapshot_make(
        accelerators_make("cpu cpu", "cpu", "cpu"),
        *(replace(job, remaining_examples=1e4) for job in jobs),
        held={1: (3, 4), 3: (1,)},
        projects={VISION: ProjectQuota(user_limit=3)},
    )
    rested(snapshot, "optimus")


def test_a_group_with_a_waiting_job_does_not_follow_what_it_holds() -> None:
    """Its job waited for the kind of another one, which ended there; then for the other kind."""
    nodes = accelerators_make("slow slow", "slow", "fast fast fast")
    jobs = [
        replace(job_make(1, at=500.0, kinds="slow", tier=Tier.URGENT), project=VISION),
        replace(job_make(2, least=3, most=6, tier=Tier.URGENT), project=VISION),
        job_make(3, least=2, most=6),
    ]
    snapshot = snapshot_make(
        nodes, *jobs, held={1: (3,), 3: (1, 2)}, projects={VISION: ProjectQuota(limit=4)}
    )
    rested(snapshot, "tiresias")


def test_a_group_keeps_what_its_jobs_are_lent() -> None:
    """A job whose leader is of a slow kind moved between like accelerators of the other one."""
    mixes = {"fast": linear(0.01), "slow": linear(0.03)}
    speed = Speed(by_kind={"slow": 0.0})
    job = replace(job_make(1, most=4, mixes=mixes), performance=speed, project=VISION)
    nodes = accelerators_make("fast fast", "fast", "slow", "fast fast")
    counts = {"fast": 3, "slow": 1}
    quota = ProjectQuota(limit=4, guaranteed_by_kind=counts, limit_by_kind=counts)
    snapshot = snapshot_make(nodes, job, held={1: (4, 1, 2, 3)}, projects={VISION: quota})
    rested(snapshot, "goodput_fair")


@pytest.mark.parametrize("name", ["fifo", "goodput_fair"])
def test_guarantees_of_the_same_accelerators_are_not_given_in_turns(name: str) -> None:
    """One project lost what it had to the other one, and took it back at the next decision."""
    jobs = [
        replace(job_make(1, least=3, most=3, at=9.0, kinds="slow"), project=VISION),
        replace(job_make(2, least=2, most=3, at=0.0, kinds="slow"), project=SPEECH),
    ]
    quota = ProjectQuota(guaranteed=3)
    snapshot = snapshot_make(
        accelerators_make("slow slow slow", "fast fast fast"),
        *jobs,
        projects={VISION: quota, SPEECH: quota},
    )
    rested(snapshot, name)


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
    rested(snapshot, name)


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
    snapshot = snapshot_make(
        accelerators_make("gpu", "gpu " * 4),
        *jobs,
        held={4: (1,)},
        now=50.0,
        projects={VISION: vision, SPEECH: ProjectQuota(guaranteed=4)},
    )
    assert 5 in rested(snapshot, name).held


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
    snapshot = snapshot_make(
        nodes,
        *jobs,
        held={1: (3,), 2: (1, 2), **held},
        now=1000.0,
        projects={VISION: ProjectQuota(guaranteed=4)},
    )
    snapshot = rested(snapshot, name)
    if name == "weighted_fair":
        assert len(snapshot.held[1]) == 2


@every_policy_but_search
def test_a_guarantee_with_a_part_of_a_kind_is_one_kind(name: str) -> None:
    """Two kinds would leave a job with half of its guarantee; it took turns with the other one."""
    jobs = [
        replace(job_make(2, least=2, most=2), project=SPEECH),
        replace(job_make(3, most=2, at=10.0), project=VISION),
        replace(job_make(5, most=1), project=SPEECH),
    ]
    snapshot = snapshot_make(
        accelerators_make("slow fast", "slow fast"),
        *(replace(job, tier=Tier.URGENT) for job in jobs),
        *(job_make(number, most=1) for number in (1, 4)),
        held={4: (1,)},
        projects={
            VISION: ProjectQuota(guaranteed=2, guaranteed_by_kind={"fast": 1}),
            SPEECH: ProjectQuota(guaranteed_by_kind={"fast": 1}),
        },
    )
    rested(snapshot, name)
