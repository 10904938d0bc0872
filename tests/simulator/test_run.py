"""Simulations by our own rules that can be worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from controlplane.core.policies import POLICIES
from controlplane.core.values.types import Plan
from controlplane.simulator import FREE, ResizeCosts, Workload, cluster_make, simulate
from controlplane.simulator.engine import event_clock as run_module
from tests.simulator.worlds import job, workload

COSTS = ResizeCosts(start_s=10.0, pause_s=2.0, growth_s=5.0, release_s=3.0)


def ended(report, name: str) -> float:
    return next(row.ended_at for row in report.jobs if row.name == name)


def test_a_job_alone_starts_and_works() -> None:
    """10 s until the first step, 400 examples at 4 a second."""
    report = simulate(workload(job("a", 7.0)), cluster_make(1, 4), "weighted_fair", costs=COSTS)
    only = report.jobs[0]
    assert (only.started_at, only.ended_at) == (7.0, pytest.approx(7.0 + 10.0 + 100.0))
    assert only.num_resizes == 0
    assert only.accelerator_s == pytest.approx(4 * 110.0)
    assert report.utilisation == pytest.approx(1.0)
    # Alone it has the whole cluster, and starts as well.
    assert only.fair_s == pytest.approx(10.0 + 100.0)
    assert only.fairness == pytest.approx(1.0)


def test_a_second_job_takes_its_share_and_gives_it_back() -> None:
    """What happens when, with a at 4 per second until 60 s.

    60 s: b comes; a goes over to two, stands still until 62 s, and gives two back. 63 s: b has
    them and starts, first step at 73 s. a has done (60 - 10) * 4 = 200 by 60 s, and the other
    200 at 2 a second: until 162 s. b has done (162 - 73) * 2 = 178 by then. What a held is free at
    165 s, comes up by 170 s while b does 16 more, 194; after the pause it goes on at 172 s with
    4 a second: (400 - 194) / 4 = 51.5 s more.
    """
    jobs = workload(job("a"), job("b", 60.0))
    report = simulate(jobs, cluster_make(1, 4), "weighted_fair", costs=COSTS, round_s=1000.0)
    assert ended(report, "a") == pytest.approx(162.0)
    assert ended(report, "b") == pytest.approx(172.0 + 51.5)
    assert [row.num_resizes for row in report.jobs] == [1, 1]
    assert report.restarts_per_job == 0.0
    assert [row.started_at for row in report.jobs] == [0.0, 63.0]
    assert report.held == (
        (0.0, 1, 4), (60.0, 1, 2), (63.0, 2, 2), (162.0, 1, 0), (165.0, 2, 4), (223.5, 2, 0),
    )  # fmt: skip


def test_a_stop_is_followed_by_a_restart() -> None:
    """Both need all four: a gives way to b, which is more important, and starts again after it."""
    jobs = workload(job("a", least=4), job("b", 60.0, least=4, weight=3.0))
    report = simulate(jobs, cluster_make(1, 4), "weighted_fair", costs=COSTS, round_s=1000.0)
    assert [(row.num_resizes, row.num_restarts) for row in report.jobs] == [(1, 1), (0, 0)]
    assert report.restarts_per_job == 0.5


def test_growth_costs_nothing_where_resizes_are_free() -> None:
    """With free resizes a: 60 s at 4, then 160 left at 2 until 140 s; b: 160 by then, 240 at 4."""
    jobs = workload(job("a"), job("b", 60.0))
    report = simulate(jobs, cluster_make(1, 4), "weighted_fair", costs=FREE)
    assert ended(report, "a") == pytest.approx(140.0)
    assert ended(report, "b") == pytest.approx(140.0 + 240.0 / 4)


def test_finish_time_fairness_counts_who_was_there() -> None:
    """Job a lived 140 s, b was there for 80 of them: n = 1 + 80/140, so its share is 4/n."""
    jobs = workload(job("a"), job("b", 60.0))
    report = simulate(jobs, cluster_make(1, 4), "weighted_fair", costs=FREE)
    alone_s = 400.0 / (4.0 / (1.0 + 80.0 / 140.0))
    assert report.jobs[0].fair_s == pytest.approx(alone_s)
    assert report.jobs[0].fairness == pytest.approx(140.0 / alone_s)


def test_a_job_alone_on_two_kinds_is_not_late() -> None:
    """There are 2 of each, so 400 examples take 200 s, however large the job's share of all is."""
    cluster = cluster_make(2, 2, {"p100": 1, "v100": 1})
    only = simulate(workload(job("a")), cluster, "goodput_fair", costs=FREE).jobs[0]
    assert only.completion_s == pytest.approx(200.0)
    assert only.fair_s == pytest.approx(200.0)


def test_jobs_that_never_meet_are_not_treated_unfairly() -> None:
    """Their times differ from the fair ones by the rounding of sums at most."""
    jobs = workload(*(job(str(number), 777.7 * number) for number in range(40)), work=333.3)
    report = simulate(jobs, cluster_make(1, 4), "weighted_fair", costs=COSTS)
    assert (report.worst_fairness, report.unfair_share) == (1.0, 0.0)


def test_weights_count_in_fairness() -> None:
    """Both live all the time, b with three times the weight: its share is 3 of 4."""
    jobs = workload(job("a"), job("b", weight=3.0), work=300.0)
    report = simulate(jobs, cluster_make(1, 4), "weighted_fair", costs=FREE)
    # b: 300 at 3 a second. a: 100 by then, and 200 at 4.
    assert [row.ended_at for row in report.jobs] == pytest.approx([150.0, 100.0])
    assert report.jobs[1].fair_s == pytest.approx(100.0)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_accelerator_is_given_away_before_it_is_free(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watch every plan from outside: an accelerator rests `release_s` after its last holder."""
    free_at: dict[int, float] = {}
    holders: dict[int, int] = {}
    original = run_module.EventRun._apply

    def watched(self: run_module.EventRun, plan: Plan) -> None:
        for resize in plan.resizes:
            for one in set(resize.wanted) - set(resize.held):
                assert holders.get(one) is None, "somebody holds it"
                assert free_at.get(one, 0.0) <= self.now + 1e-9, "it is not free yet"
            for one in resize.held:
                holders.pop(one, None)
                if one not in resize.wanted:
                    free_at[one] = self.now + COSTS.release_s
            holders.update(dict.fromkeys(resize.wanted, resize.job_id))
        original(self, plan)

    ends = run_module.JobAccelerators.end

    def watched_end(holding: run_module.JobAccelerators, now: float) -> dict[int, float]:
        for one in holding.job.held:
            holders.pop(one, None)
            free_at[one] = now + COSTS.release_s
        return ends(holding, now)

    monkeypatch.setattr(run_module.EventRun, "_apply", watched)
    monkeypatch.setattr(run_module.JobAccelerators, "end", watched_end)
    jobs = workload(*(job(f"j{n}", 25.0 * n, most=1 + n % 4) for n in range(12)), work=150.0)
    report = simulate(jobs, cluster_make(3, 2), policy, costs=COSTS)
    assert len(report.jobs) == 12
    assert all(row.ended_at > row.started_at >= row.submitted_at for row in report.jobs)


def test_the_same_twice() -> None:
    jobs = workload(*(job(f"j{n}", 30.0 * n, most=1 + n % 4) for n in range(10)))
    reports = [
        simulate(jobs, cluster_make(2, 4), "weighted_fair", costs=COSTS, seed=3) for _ in range(2)
    ]
    first, second = (
        dataclasses.replace(report, decision_p50_ms=0.0, decision_p99_ms=0.0) for report in reports
    )
    assert first == second


def test_a_workload_without_jobs_is_refused() -> None:
    with pytest.raises(ValueError, match="no job in it"):
        simulate(Workload(()), cluster_make(1, 1), "fifo")


def test_a_job_that_never_fits_is_told() -> None:
    with pytest.raises(ValueError, match=r"job big needs 4 .* has 2"):
        simulate(workload(job("big", least=4)), cluster_make(1, 2), "weighted_fair")


def test_a_job_of_centuries_is_refused() -> None:
    jobs = workload(job("a"), work=1e12)
    with pytest.raises(ValueError, match=r"job a alone on the whole cluster would take 2.5e\+11 s"):
        simulate(jobs, cluster_make(1, 4), "weighted_fair")


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match="policy must be one of"):
        simulate(workload(job("a")), cluster_make(1, 4), "nonsense")


def test_progress_is_told_and_may_stop_it() -> None:
    seen: list[tuple[int, int]] = []

    def tell(done: int, total: int, now: float) -> None:
        seen.append((done, total))
        if done == 2:
            raise InterruptedError

    jobs = workload(*(job(f"j{n}", 200.0 * n) for n in range(3)))
    with pytest.raises(InterruptedError):
        simulate(jobs, cluster_make(1, 4), "fifo", progress=tell)
    assert [row for row in dict.fromkeys(seen) if row[0] > 0] == [(1, 3), (2, 3)]


def test_progress_is_told_between_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.simulator.engine.event_clock.REPORT_EVERY_S", -1.0)
    seen: list[tuple[int, int, float]] = []
    simulate(
        workload(job("a")), cluster_make(1, 4), "fifo", costs=COSTS, round_s=60.0,
        progress=lambda *row: seen.append(row),
    )  # fmt: skip
    assert seen == [(0, 1, 0.0), (0, 1, 60.0), (1, 1, 110.0)]
