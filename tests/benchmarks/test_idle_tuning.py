"""Figures of the benchmark of parallel tuning, and the workload that it makes."""

from __future__ import annotations

import pytest

from benchmarks.idle_tuning import Comparison, compared, figures_of, merged, tuned
from controlplane.core.policies import DEFAULT_POLICY
from controlplane.simulator import FREE, TuningPlan, cluster_make, simulate
from tests.simulator.worlds import job, workload

PLAN = TuningPlan(trial_share=0.1, max_parallel=2, max_trials=3)


def test_every_other_job_is_tuned_with_a_fixed_batch() -> None:
    jobs = tuned(workload(*(job(str(number)) for number in range(4))), 2, PLAN).jobs
    assert [one.tuning for one in jobs] == [PLAN, None, PLAN, None]


def test_a_comparison_counts_trials_over_what_was_idle() -> None:
    """One job on one of two accelerators for 400 s; its three trials take 40 s each."""
    reports = [
        simulate(
            tuned(workload(job("a", most=1)), 1, plan), cluster_make(1, 2), "weighted_fair",
            costs=FREE, round_s=10.0,
        )
        for plan in (None, PLAN)
    ]  # fmt: skip
    found = compared("weighted_fair", *reports)
    assert (found.mean_s, found.num_trials) == (pytest.approx(400.0), 3)
    assert found.change == pytest.approx(0.0)
    assert found.idle_share == pytest.approx(120.0 / 400.0)


def test_the_worst_policy_counts_for_others() -> None:
    rows = [
        merged(
            [
                Comparison(DEFAULT_POLICY, 90.0, (0.003,), 0.2, 6),
                Comparison(DEFAULT_POLICY, 110.0, (-0.001,), 0.3, 8),
            ]
        ),
        Comparison("fifo", 100.0, (0.015,), 0.5, 9),
    ]
    assert figures_of(rows) == {
        "others_completion_change": 0.015,
        "others_completion_change_default": 0.001,
        "changes_default": [0.003, -0.001],
        "idle_share_used": 0.25,
        "num_trials": 7,
    }
    assert figures_of(rows[1:])["idle_share_used"] is None
