"""Our own policy beside gangs: jobs whose minimum is a large part of the cluster."""

from __future__ import annotations

import math
import random
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.policies.goodput_fair.counts import OWED_S, Claims
from controlplane.simulator import FLAT_30, Report, Workload, cluster_make, simulate
from controlplane.simulator.published.scaled import ScaledApplication
from tests.simulator.worlds import job


def is_owed(least: int, lacking_s: float, fair_s: float, capacity: int) -> bool:
    """Return whether a job has its turn, alone on a pool."""
    zeros = {field.name: np.zeros(1, dtype=np.int64) for field in fields(Claims)}
    own = {"least": least, "lacking_s": lacking_s, "fair_s": fair_s}
    claims = Claims(**{**zeros, **{name: np.array([value]) for name, value in own.items()}})
    return bool(claims.seniors(capacity)[0])


@given(
    capacity=st.sampled_from([1, 2, 4, 8, 30, 64, 1000]),
    lacking_s=st.floats(0.0, 1e6),
    fair_s=st.floats(1.0, 1e6),
    data=st.data(),
)
def test_a_turn_comes_later_the_larger_the_minimum(
    capacity: int, lacking_s: float, fair_s: float, data: st.DataObject
) -> None:
    """One accelerator after half an hour, more than a quarter of the kind after the fair time."""
    least = data.draw(st.integers(1, capacity))
    found = [is_owed(n, lacking_s, fair_s, capacity) for n in sorted({1, least, capacity})]
    assert found == sorted(found, reverse=True)
    assert found[0] == (lacking_s >= OWED_S)
    assert all(found) or lacking_s < max(fair_s, OWED_S)
    if least - 1 >= max(capacity / 4.0, 1.0):
        assert is_owed(least, lacking_s, fair_s, capacity) == (lacking_s >= max(fair_s, OWED_S))


def gangs_draw(seed: int, num_jobs: int) -> Workload:
    """Draw jobs for 16 accelerators, half of them of a quarter to all, far more than fit."""
    draw, at = random.Random(seed), 0.0
    jobs, applications = [], {}
    for number in range(num_jobs):
        at += draw.expovariate(1.0 / 60.0)
        least = draw.choice([4, 8, 16]) if draw.random() < 0.5 else 1
        work = least * math.exp(draw.uniform(math.log(120.0), math.log(3600.0)))
        most = least if least > 1 else 8
        name = f"j{number}"
        speeds = np.arange(most + 1) ** 0.95
        applications[name] = ScaledApplication(name, work, speeds)
        jobs.append(job(name, at, most=most, least=least))
    return Workload(tuple(jobs), applications)


def run(workload: Workload, policy: str) -> Report:
    return simulate(workload, cluster_make(4, 4), policy, costs=FLAT_30)


@pytest.mark.parametrize(
    ("seed", "num_jobs"),
    [(1, 30), *(pytest.param(seed, 50, marks=pytest.mark.nightly) for seed in (1, 2, 3))],
)
def test_gangs_do_not_hold_up_the_others(seed: int, num_jobs: int) -> None:
    """The mean is about that of shortest first: gangs have no turn every half hour."""
    jobs = gangs_draw(seed, num_jobs)
    ours, theirs = run(jobs, "goodput_fair"), run(jobs, "srtf")
    assert ours.mean_jct_s <= 1.15 * theirs.mean_jct_s
