"""The parts of the reproduction that can be worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import slaq_runs, virtualflow_runs
from benchmarks.slaq_runs import RecordedLoss
from controlplane.simulator import FREE, MEASURED, Workload, WorkloadJob, cluster_make, simulate

TWO = [
    {"arrival_time": at, "workload": "bert", "priority": 5, "gpu_demand": 4, "batch_size": 64}
    for at in (1, 10)
]


def test_recorded_shares_are_compared_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text(json.dumps(TWO))
    rows = [
        {"trace": "two", "gpus": 4, "jobs": [0, 1], "alloc": {"0": 2, "1": 2}},
        {"trace": "two", "gpus": 4, "jobs": [0, 1], "alloc": {"0": 1, "1": 2}},
    ]
    (tmp_path / "wfs_expected_shares.json").write_text(json.dumps(rows))
    assert virtualflow_runs.shares_equal(tmp_path) == 0.5


def test_measured_run_times_come_back_for_jobs_alone(tmp_path: Path) -> None:
    (tmp_path / "medium20_12jph.json").write_text(json.dumps(TWO))
    measured = {"medium20_12jph": {"0": 178.0, "1": 278.0}}
    (tmp_path / "measured_seconds_at_demand.json").write_text(json.dumps(measured))
    jobs = virtualflow_runs.workload(tmp_path)
    report = simulate(
        jobs, cluster_make(1, 8), "priority", costs=virtualflow_runs.COSTS, knowledge="true"
    )
    assert [row.completion_s for row in report.jobs] == pytest.approx([178.0, 278.0])
    # 300 s of work on 4 at 4660 images a second, where one does 1248: 1120 s on one, 140 on 8.
    assert virtualflow_runs.least_makespan_s(jobs) == pytest.approx(300 * 4660 / 1248 / 8)


def test_delay_ends_when_the_loss_has_come_down() -> None:
    losses = np.array([11.0, 6.0, 2.0, 1.5, 1.0])  # by 90 % after 2 iterations
    rates = np.arange(9) / 40.0  # an iteration takes 40 core-seconds
    jobs = Workload(
        (WorkloadJob("a", 100.0, "a", 1, 1, is_fixed=True),),
        {"a": RecordedLoss("a", 4.0, rates, losses=losses)},
    )
    # 20 s of training on 8 cores; the normalised loss goes 1, 0.5, 0.1, 0.05, 0 every 5 s.
    integral_s = 5.0 * (0.75 + 0.3 + 0.075 + 0.025)
    for costs, waits_s in ((FREE, 0.0), (MEASURED, 10.0)):
        report = simulate(jobs, cluster_make(1, 8), "slaq", costs=costs, knowledge="true")
        [(application, course)] = slaq_runs.courses(jobs, report, costs)
        assert slaq_runs.delay_s(application, course) == pytest.approx(waits_s + 10.0)
        assert slaq_runs.loss_s(application, course) == pytest.approx(waits_s + integral_s)


def test_workload_has_the_load_that_was_asked_for() -> None:
    series = {"a": np.linspace(2.0, 1.0, 11), "b": np.linspace(3.0, 1.0, 21)}
    jobs = slaq_runs.workload(series, load=0.5, seed=1)
    core_seconds = sum(
        application.progress_ends[-1] / application.rates[1]
        for application in jobs.applications.values()
        if isinstance(application, RecordedLoss)
    )
    assert core_seconds == pytest.approx(0.5 * 640 * jobs.jobs[-1].submitted_at)
    assert slaq_runs.workload(series, 0.5, 1).jobs == jobs.jobs
