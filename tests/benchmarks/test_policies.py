"""benchmarks.policies: what it runs, and the figures of what came of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import policies
from benchmarks.policies import Case, Row, cases_list, figures_of, over_best, worlds_there


def row(world: str, policy: str, cost: str, mean_s: float, fairness: float = 1.0) -> Row:
    return Row(
        Case(world, policy, cost, "fitted"), mean_s, mean_s, mean_s, mean_s, 0.0, fairness,
        2 * fairness, 0.0, 1.0, 1.0,
    )  # fmt: skip


def test_ours_is_compared_with_the_best_other_at_equal_cost() -> None:
    rows = [
        row("gavel", "goodput_fair", "30 s", 90.0),
        row("gavel", "goodput_fair", "measured", 10.0),
        row("gavel", "sia", "30 s", 100.0),
        row("gavel", "fifo", "30 s", 300.0),
        row("workload-6", "goodput_fair", "30 s", 90.0),
        row("workload-6", "pollux", "30 s", 100.0),
        row("workload-6", "pollux", "pollux' rules", 60.0),
        row("synthetic", "sia", "30 s", 1.0),
    ]
    assert over_best(rows) == {"gavel": 0.9, "workload-6": 1.5}


def test_figures_hold_the_worst_fairness_of_all_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "POLLUX", Path("/nowhere"))
    rows = [
        row("synthetic", "goodput_fair", "30 s", 90.0, 1.1),
        row("synthetic", "goodput_fair", "measured", 60.0, 1.2),
        row("three kinds", "goodput_fair", "30 s", 5.0, 1.3),
        row("three kinds", "sia", "30 s", 5.0, 9.0),
        row("synthetic", "sia", "30 s", 120.0, 9.0),
    ]
    figures = figures_of(rows)
    assert figures["workload"] == "synthetic"
    assert figures["mean_jct_s"] == {"goodput_fair": 60.0, "sia": 120.0}
    assert figures["ours_over_sia"] == 0.5
    assert figures["ours_over_pollux"] is None
    assert figures["ours_worst_fairness"] == 1.3
    assert figures["ours_worst_fairness_no_start"] == 2.6


def test_worlds_whose_files_are_missing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "POLLUX", Path("/nowhere"))
    monkeypatch.setattr(policies, "THROUGHPUTS", Path("/nowhere"))
    assert worlds_there() == ["synthetic", "three kinds"]
    cases = cases_list(["synthetic"], ["goodput_fair", "fifo", "pollux"], "fitted")
    assert [(case.policy, case.cost) for case in cases] == [
        ("pollux", "30 s"),
        ("pollux", "pollux' rules"),
        ("goodput_fair", "30 s"),
        ("goodput_fair", "measured"),
        ("fifo", "30 s"),
    ]
    assert [case.cost for case in cases_list(["three kinds"], ["pollux"], "fitted")] == ["30 s"]


def test_made_up_kinds_differ_in_speed() -> None:
    workload, cluster = policies.world_make("three kinds")
    assert cluster.kinds == {"fast": 16, "middle": 24, "slow": 24}
    assert max(job.requested for job in workload.jobs) <= 16
