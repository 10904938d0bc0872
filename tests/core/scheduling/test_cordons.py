"""Cordons: a node is given no trainer, and no job is moved, by any policy."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.cycle import decide
from controlplane.core.expected_starts import expected_starts
from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.types import Snapshot
from tests.core.scheduling.test_circular_waits import full_clusters
from tests.core.snapshots import (
    accelerators_make,
    after,
    every_policy,
    job_make,
    per_policy,
    snapshot_make,
    snapshots,
)

TWO_NODES = accelerators_make("cpu cpu", "cpu cpu")


@every_policy
@per_policy
@given(snapshot=snapshots() | full_clusters(), data=st.data())
def test_a_cordon_moves_nobody_and_lets_nobody_in(
    name: str, snapshot: Snapshot, data: st.DataObject
) -> None:
    nodes = sorted({one.node_id for one in snapshot.accelerators})
    cordoned = data.draw(st.sets(st.sampled_from(nodes), min_size=1))
    there = {one.id for one in snapshot.accelerators if one.node_id in cordoned}
    snapshot = replace(snapshot, cordoned=frozenset(cordoned))
    for _ in range(3):
        plan = decide(snapshot, name)
        assert {job.id for job in snapshot.jobs} == plan.reasons.keys()
        for resize in plan.resizes:
            assert there.isdisjoint(resize.wanted)
            assert there.isdisjoint(resize.held)
        snapshot = after(snapshot, plan)


@every_policy
def test_a_job_on_a_cordoned_node_keeps_its_size_and_says_so(name: str) -> None:
    snapshot = snapshot_make(TWO_NODES, job_make(1, most=4), held={1: (1, 3)})
    plan = decide(replace(snapshot, cordoned=frozenset({1})), name)
    assert plan.resizes == ()
    assert plan.reasons[1].startswith("Stays on 2 accelerators and is not resized: 1 of them on")


@every_policy
def test_what_stays_on_a_cordoned_node_counts_for_a_limit_of_its_kind(name: str) -> None:
    staying, other = (replace(job_make(number, most=2), project=7) for number in (1, 2))
    snapshot = snapshot_make(TWO_NODES, staying, other, held={1: (1, 2)})
    projects = {7: ProjectQuota(limit_by_kind={"cpu": 3})}
    plan = decide(replace(snapshot, cordoned=frozenset({1}), projects=projects), name)
    assert [len(resize.wanted) for resize in plan.resizes] == [1]


@every_policy
def test_idle_accelerators_of_a_cordoned_node_do_not_count(name: str) -> None:
    job = job_make(1, least=3, most=4)
    cordoned = replace(snapshot_make(TWO_NODES, job), cordoned=frozenset({1}))
    assert "nodes that take work have 2" in decide(cordoned, name).reasons[1]
    assert decide(snapshot_make(TWO_NODES, job), name).resizes
    spread = replace(cordoned, jobs=(job, job_make(2, most=2)), held={2: (1, 3)})
    assert "nodes that take work have 2" in decide(spread, name).reasons[1]


@every_policy
def test_a_job_that_must_change_leaves_a_cordoned_node(name: str) -> None:
    """The third accelerator is on a node that jobs must leave, and thus not in the snapshot."""
    snapshot = snapshot_make(TWO_NODES, job_make(1, most=2), held={1: (1, 5)})
    (resize,) = decide(replace(snapshot, cordoned=frozenset({1})), name).resizes
    assert set(resize.wanted) <= {3, 4}


@every_policy
def test_starts_are_expected_when_jobs_on_cordoned_nodes_end(name: str) -> None:
    """Job 1 has 2 accelerators on a cordoned node and 2 on the other, for which job 2 waits.

    Job 3 has accelerators on the cordoned node only, which job 2 could not have without it either.
    """
    running = replace(
        job_make(1, least=4, most=4), remaining_examples=600.0, examples_per_s={4: 10.0}
    )
    other = replace(running, id=3, min_accelerators=1, examples_per_s={1: 1.0})
    jobs = running, job_make(2, least=2, most=2), other
    nodes = accelerators_make("cpu cpu", "cpu cpu", "cpu")
    held = {1: (1, 2, 3, 4), 3: (5,)}
    snapshot = replace(snapshot_make(nodes, *jobs, held=held), cordoned=frozenset({1, 3}))
    plan = decide(snapshot, name)
    assert "beside those of 1 job on nodes" in plan.reasons[2]
    start = expected_starts(snapshot, plan, name)[2]
    assert start.earliest_s <= 60.0 <= start.latest_s
