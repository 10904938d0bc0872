"""Projects in simulations: quotas kept, shares of jobs drawn, results by project."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from controlplane.core.policies import POLICIES
from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.types import Sweep
from controlplane.simulator import FREE, Report, Rules, Workload, cluster_make, simulate
from controlplane.simulator.options import projects_draw, projects_parse, tiers_draw, tiers_parse
from tests.simulator.worlds import job, workload


def with_quota(jobs: Workload, quota: ProjectQuota) -> Workload:
    """Put the jobs whose name begins with `one` into a project with a quota."""
    named = (replace(row, project=1 if row.name.startswith("one") else None) for row in jobs.jobs)
    return replace(jobs, jobs=tuple(named), projects={1: quota})


def _held(report: Report) -> Iterator[int]:
    """Yield the accelerators of the project after every change."""
    projects = {row.id: row.project for row in report.jobs}
    held: Counter[int] = Counter()
    for _, number, count in report.held:
        held[number] = count
        yield sum(count for one, count in held.items() if projects[one] == 1)


@pytest.mark.parametrize("rules", [*Rules])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_project_holds_its_limit_and_no_more(policy: str, rules: Rules) -> None:
    jobs = workload(*(job(name, most=2) for name in ("one-a", "one-b", "free")))
    limited = with_quota(jobs, ProjectQuota(limit=2))
    report = simulate(limited, cluster_make(1, 6), policy, costs=FREE, rules=rules)
    assert max(_held(report)) == 2


@pytest.mark.parametrize("rules", [*Rules])
def test_a_sweep_runs_no_more_jobs_at_once(rules: Rules) -> None:
    jobs = workload(*(job(name, most=2) for name in "abc"))
    one_by_one = tuple(replace(row, sweep=7) for row in jobs.jobs)
    jobs = replace(jobs, jobs=one_by_one, sweeps={7: Sweep(1)})
    report = simulate(jobs, cluster_make(1, 6), "weighted_fair", costs=FREE, rules=rules)
    held: Counter[int] = Counter()
    for _, number, count in report.held:
        held[number] = count
        assert held.total() <= 2


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_guarantee_is_given_at_once(policy: str) -> None:
    """To a job that comes last and weighs least."""
    borrowers = [job(f"free-{number}", weight=1000.0) for number in range(2)]
    late = job("one-late", at=120.0, most=2)
    jobs = with_quota(workload(*borrowers, late, work=2000.0), ProjectQuota(2))
    report = simulate(jobs, cluster_make(1, 4), policy, costs=FREE)
    assert {row.name: row for row in report.jobs}["one-late"].queued_s < 1.0
    assert [*report.projects] == ["1", "none"]
    assert report.projects["none"].num_jobs == 2
    json.dumps(report.to_dict())


def test_a_job_that_its_project_never_lets_start_is_refused() -> None:
    jobs = with_quota(workload(job("one-a", least=3)), ProjectQuota(limit=8, user_limit=2))
    with pytest.raises(ValueError, match="one-a needs 3 accelerators, its project may hold 2"):
        simulate(jobs, cluster_make(1, 4), "weighted_fair")
    jobs = replace(jobs, projects={1: ProjectQuota(limit_by_kind={"a": 2})})
    with pytest.raises(ValueError, match="one-a needs 3 accelerators, its project may hold 2"):
        simulate(jobs, cluster_make(6, 1, {"a": 4, "b": 2}), "weighted_fair")
    jobs = with_quota(workload(job("one-a")), ProjectQuota(limit=0))
    with pytest.raises(ValueError, match="one-a needs 1 accelerator, its project may hold 0"):
        simulate(jobs, cluster_make(1, 4), "weighted_fair")


def test_shares_of_jobs_are_drawn_independently_of_tiers() -> None:
    jobs = workload(*(job(f"job-{number}") for number in range(40)))
    projects = projects_parse("0.5:8-16,0.3:4", {"a100": 12})
    drawn = projects_draw(jobs, projects, seed=1)
    assert Counter(row.project for row in drawn.jobs) == {1: 20, 2: 12, None: 8}
    assert drawn.projects == {1: ProjectQuota(8, 16), 2: ProjectQuota(4)}
    assert drawn == projects_draw(jobs, projects, seed=1)
    both = tiers_draw(drawn, tiers_parse("urgent:0.5"), seed=1)
    assert len({(row.project, row.tier) for row in both.jobs}) == 6
    assert projects_draw(jobs, projects_parse(None, {}), seed=1) is jobs


@pytest.mark.parametrize(
    "text",
    [
        *("0.5", "0.5:", "0.5:x", "0:4", "nan:4", "1.5:4", "0.6:4,0.5:4", "0.5:4-3", "0.5:-4"),
        *("0.5:4:", "0.5:4:t4", "0.5:4:t4=", "0.5:4:t4=x", "0.5:4:t4=2-1", "0.5:4:t4=1:t4=1"),
        *("0.5:0-2:t4=2:a100=1", "0.5:4:t4=-1", f"0.5:4:t4={'9' * 5000}"),
    ],
)
def test_wrong_projects_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--projects"):
        projects_parse(text, {"a100": 8, "t4": 8})


def test_quotas_of_kinds_are_read() -> None:
    kinds = {"a100": 8, "t4": 8}
    assert projects_parse("0.5:4-9:a100=2-3:t4=7,0.3:0:a100=6:t4=0-0", kinds) == [
        (0.5, ProjectQuota(4, 9, guaranteed_by_kind={"a100": 2, "t4": 7},
                           limit_by_kind={"a100": 3})),
        (0.3, ProjectQuota(0, None, guaranteed_by_kind={"a100": 6, "t4": 0},
                           limit_by_kind={"t4": 0})),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.5:4:v100=1", "v100: no node has this kind; give one of a100, t4"),
        ("0.5:4:v100=0-0", "v100: no node has this kind; give one of a100, t4"),
        ("0.5:4:a100=9", "a100: the cluster has 8, 9 are guaranteed"),
        ("0.5:4:t4=5,0.5:4:t4=4", "t4: the cluster has 8, 9 are guaranteed"),
        ("0.5:9,0.5:0:t4=8", "the cluster has 16, 17 are guaranteed"),
    ],
)
def test_what_a_cluster_lacks_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"--projects: {words}"):
        projects_parse(text, {"a100": 8, "t4": 8})


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_quotas_of_a_kind_are_kept(policy: str) -> None:
    """Late jobs get the guaranteed t4 at once, and never more of both kinds than their limits."""
    early = [job(f"free-{number}", weight=1000.0, most=4) for number in range(2)]
    late = [job(f"one-{number}", at=120.0, most=2) for number in range(2)]
    [(_, quota)] = projects_parse("0.5:0:a100=0-0:t4=2-2", {"a100": 4, "t4": 4})
    cluster = cluster_make(2, 4, {"a100": 1, "t4": 1})
    jobs = with_quota(workload(*early, *late, work=2000.0), quota)
    report = simulate(jobs, cluster, policy, costs=FREE)
    assert min(row.queued_s for row in report.jobs if row.project == 1) < 1.0
    assert max(_held(report)) == 2
