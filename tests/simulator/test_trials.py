"""Tuned jobs in simulations: when trials run, for how long, and whom they keep waiting."""

from __future__ import annotations

import dataclasses

import pytest

from controlplane.core.policies import POLICIES
from controlplane.simulator import (
    FREE,
    ResizeCosts,
    TuningPlan,
    Workload,
    WorkloadJob,
    cluster_make,
    simulate,
)
from controlplane.simulator.settings import Rules
from tests.simulator.worlds import job, workload

PLAN = TuningPlan(trial_share=0.1, max_parallel=2, max_trials=3)
COSTS = ResizeCosts(start_s=10.0, pause_s=2.0, growth_s=5.0, release_s=3.0)


def tuned(one: WorkloadJob, plan: TuningPlan = PLAN) -> WorkloadJob:
    return dataclasses.replace(one, tuning=plan)


def test_trials_do_their_steps_on_what_is_idle() -> None:
    """One of two accelerators trains 400 s. Two trials of 40 share the other, then comes a third.

    The second round begins once the first one's trials are done, at a decision.
    """
    report = simulate(
        workload(tuned(job("a", most=1))), cluster_make(1, 2), "weighted_fair",
        costs=FREE, round_s=10.0,
    )  # fmt: skip
    assert report.num_trials == 3
    assert report.trial_accelerator_s == pytest.approx(3 * 40.0)
    assert [row.name for row in report.jobs] == ["a"]
    assert report.jobs[0].completion_s == pytest.approx(400.0)
    assert {job_id for _, job_id, _ in report.held} == {1}


def test_trials_end_with_their_job() -> None:
    """The trials of the last round have had 20 of 40 seconds when the job, twice as fast, ends."""
    plan = TuningPlan(trial_share=0.4, max_parallel=1, max_trials=9)
    jobs = workload(tuned(job("a", most=2, least=2), plan), work=100.0)
    report = simulate(jobs, cluster_make(1, 4), "fifo", costs=FREE, round_s=10.0)
    assert report.num_trials == 1
    assert report.jobs[0].completion_s == pytest.approx(50.0)
    assert report.trial_accelerator_s == pytest.approx(2 * 20.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_trials_delay_other_jobs_by_a_release_at_most(policy: str) -> None:
    """Under every policy a job that comes gets its accelerators once trials have left them."""
    others = [job(f"b{number}", 40.0 * number, most=2, least=2) for number in range(1, 6)]
    ends = []
    for plan in (None, PLAN):
        first = dataclasses.replace(job("a", most=2, least=2), tuning=plan)
        jobs = workload(first, *others)
        report = simulate(jobs, cluster_make(2, 4), policy, costs=COSTS, round_s=20.0)
        ends.append([row.ended_at for row in report.jobs])
        assert bool(report.num_trials) == bool(plan)
    delays = [after - before for before, after in zip(*ends, strict=True)]
    assert max(delays) <= 20.0 + COSTS.release_s + COSTS.pause_s
    assert min(delays) >= -20.0


def test_a_workload_without_tuned_jobs_is_as_before() -> None:
    jobs = workload(job("a"), job("b", 30.0))
    report = simulate(jobs, cluster_make(1, 4), "weighted_fair", costs=COSTS)
    assert (report.num_trials, report.trial_accelerator_s) == (0, 0.0)


def test_the_rules_of_pollux_know_no_trials() -> None:
    jobs: Workload = workload(tuned(job("a")))
    with pytest.raises(ValueError, match="know no tuned jobs"):
        simulate(jobs, cluster_make(1, 4), "weighted_fair", rules=Rules.POLLUX)
