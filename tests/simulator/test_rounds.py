"""The rules of Pollux' simulator, by hand and against what was published."""

from __future__ import annotations

import pytest

from controlplane.core.policies import BatchMode, Demand
from controlplane.core.values.types import Decision, Share
from controlplane.simulator import cluster_make, pollux_workload, profiles_read, simulate
from controlplane.simulator.engine.jobs import SimulatedJob, Terms
from controlplane.simulator.engine.pollux_clock import places
from controlplane.simulator.settings import FREE, Knowledge
from tests.simulator.worlds import TRACES, job, workload
from tests.support.cases import some

needs_traces = pytest.mark.skipif(
    not (TRACES / "pollux").is_dir(), reason="the traces of others are not here"
)


def test_rounds_by_hand() -> None:
    """Job a comes at 10 s, is seen at 60 s, stands still for 30 s, works 4 a second from 90 s."""
    report = simulate(workload(job("a", 10.0)), cluster_make(1, 4), "tiresias", rules="pollux")
    only = report.jobs[0]
    assert (only.started_at, only.ended_at) == (60.0, 190.0)
    assert only.accelerator_s == 4 * 130.0
    assert only.num_resizes == 0


def test_ends_are_rounded_to_whole_seconds() -> None:
    """402 examples at 4 a second are 100.5 s of work, 40.5 in the last round: rounded to even."""
    report = simulate(
        workload(job("a"), work=402.0), cluster_make(1, 4), "tiresias", rules="pollux"
    )
    assert report.jobs[0].ended_at == 60.0 + 30.0 + 30.0 + 60.0 + round(10.5)


def test_every_later_change_is_a_restart_of_30_seconds() -> None:
    """By Optimus a has all four from 60 s; b is seen at 120 s and each has two.

    Of their only epoch no other follows, so Optimus takes one step to be left: 4 examples of a and
    2 of b. One each; a's second saves 2 s, b's 1 s, a's third 0.67 s. a has done 30 * 4 = 120 by
    120 s and does the other 280 at 2 a second from 150 s on, b all its 400.
    """
    report = simulate(
        workload(job("a"), job("b", 100.0, most=2)),
        cluster_make(1, 4),
        "optimus",
        rules="pollux",
        knowledge="true",
    )
    a, b = report.jobs
    assert [row for row in report.held if row[0] < 200.0] == [(60.0, 1, 4), (120.0, 1, 2),
                                                              (120.0, 2, 2)]  # fmt: skip
    assert (a.num_resizes, b.num_resizes) == (a.num_restarts, b.num_restarts) == (1, 0)
    assert (a.ended_at, b.ended_at) == (150.0 + 140.0, 150.0 + 200.0)


def _jobs(cluster, *names: str) -> list[SimulatedJob]:
    terms = Terms(
        {one.id: one for one in cluster.accelerators},
        cluster.per_node,
        Demand(BatchMode.SUBMITTED),
        Knowledge.TRUE,
        FREE,
    )
    jobs = workload(*(job(name) for name in names))
    return [
        SimulatedJob(number, spec, jobs.applications[spec.name], terms)
        for number, spec in enumerate(jobs.jobs, start=1)
    ]


def test_places_take_from_the_node_with_most_free() -> None:
    """Nodes of 4; a stays on node 1 with two. c takes all of node 0, then two of node 2."""
    cluster = cluster_make(3, 4)
    a, b, c = _jobs(cluster, "a", "b", "c")
    a.held = (4, 5)
    shares = {1: Share("gpu", 2), 3: Share("gpu", 6), 2: Share("gpu", 3)}
    found = places(cluster, [a, b, c], Decision(shares, {}))
    assert {number: dict(row) for number, row in found.items()} == {
        1: {1: 2},
        3: {0: 4, 2: 2},
        2: {1: 2, 2: 1},
    }


def test_places_obey_a_policy_that_chooses_nodes() -> None:
    cluster = cluster_make(2, 4)
    (a,) = _jobs(cluster, "a")
    a.held = (0, 1)
    found = places(cluster, [a], Decision({1: Share("gpu", 2, by_node={0: 1, 1: 1})}, {}))
    assert dict(found[1]) == {0: 1, 1: 1}


#: Mean completion times of workload 6, in seconds.
PUBLISHED = {"tiresias": 3469.69375, "optimus": 5301.875}


@needs_traces
@pytest.mark.parametrize("policy", some(PUBLISHED, ("optimus",)))
def test_workload_6_as_published(policy: str) -> None:
    folder = TRACES / "pollux"
    jobs = pollux_workload(folder / "workload-6.csv", profiles_read(folder))
    report = simulate(jobs, cluster_make(16, 4), policy, rules="pollux", knowledge="true")
    assert report.mean_jct_s == pytest.approx(PUBLISHED[policy], abs=1e-6)
