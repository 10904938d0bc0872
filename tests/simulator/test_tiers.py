"""Tiers in simulations: shares of jobs, columns of files, results by tier."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.core.policies import POLICIES
from controlplane.core.values.tiers import Tier
from controlplane.simulator import FREE, cluster_make, simulate
from controlplane.simulator.options import tiers_draw, tiers_parse
from controlplane.simulator.published.workload_files import pollux_workload, virtualflow_workload
from tests.simulator.worlds import job, workload


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_an_urgent_job_takes_as_long_as_alone(policy: str) -> None:
    """Whatever else waits or runs, and the others still end."""
    urgent = replace(job("urgent", 150.0, most=2), tier=Tier.URGENT)
    idle = replace(job("idle", least=2, weight=1000.0), tier=Tier.IDLE)
    cluster = cluster_make(1, 4)
    alone = simulate(workload(urgent), cluster, policy, costs=FREE)
    both = simulate(workload(idle, job("plain"), urgent), cluster, policy, costs=FREE)
    found = {row.name: row for row in both.jobs}
    assert found["urgent"].queued_s == 0.0
    assert found["urgent"].completion_s == pytest.approx(alone.jobs[0].completion_s, rel=0.02)
    assert [*both.tiers] == ["urgent", "normal", "idle"]
    assert both.tiers["urgent"].mean_jct_s == found["urgent"].completion_s
    assert both.tiers["idle"].num_jobs == 1
    assert alone.tiers == {}
    json.dumps(both.to_dict())


def test_shares_of_jobs_are_drawn() -> None:
    jobs = workload(*(job(f"job-{number}") for number in range(20)))
    shares = tiers_parse("urgent:0.1,idle:0.3")
    drawn = tiers_draw(jobs, shares, seed=1)
    tiers = [one.tier for one in drawn.jobs]
    assert [tiers.count(tier) for tier in Tier] == [2, 12, 6]
    assert drawn == tiers_draw(jobs, shares, seed=1)
    assert tiers != [one.tier for one in tiers_draw(jobs, shares, seed=2).jobs]
    assert tiers_draw(jobs, tiers_parse(None), seed=1) is jobs
    whole = tiers_draw(jobs, tiers_parse("idle:1"), seed=1)
    assert {one.tier for one in whole.jobs} == {Tier.IDLE}


@pytest.mark.parametrize(
    "text", ["urgent", "royal:0.1", "idle:0", "idle:nan", "idle:0.6,urgent:0.5", "idle:0.1,idle:1"]
)
def test_wrong_shares_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--tiers"):
        tiers_parse(text)


def test_files_may_name_tiers(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    row = {"arrival_time": 0, "workload": "a", "priority": 1, "gpu_demand": 2, "batch_size": 8}
    trace.write_text(json.dumps([row, {**row, "tier": "idle"}]))
    found = virtualflow_workload(trace, {})
    assert [one.tier for one in found.jobs] == [Tier.NORMAL, Tier.IDLE]
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(
        "name,time,application,num_replicas,batch_size,tier\na,0,x,1,8,urgent\nb,1,x,1,8,\n"
    )
    applications = workload(job("x")).applications
    tiers = [one.tier for one in pollux_workload(jobs, applications).jobs]
    assert tiers == [Tier.URGENT, Tier.NORMAL]
    jobs.write_text(jobs.read_text().replace("urgent", "royal"))
    with pytest.raises(ValueError, match=r"line 2 of .*'tier' is 'royal'"):
        pollux_workload(jobs, applications)
