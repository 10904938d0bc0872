"""Admission by kept-up fills decides as trial fills would, and fast."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.policies.common.fair_admission import (
    Pool,
    aged_weight,
    entry_order,
    pool_share,
)
from controlplane.core.policies.common.fair_fill import Fill, power_of_two_fill, progressive_fill
from controlplane.core.scheduling.pools import urgency_order
from controlplane.core.values.types import Job
from tests.core.snapshots import job_make


def by_trial(pool: Pool, fill: Fill) -> dict[int, int]:
    """Say who enters by filling the whole pool anew for every job that asks: the definition."""
    admitted: list[Job] = []
    for job in pool.running:
        if (
            sum(other.min_accelerators for other in admitted) + job.min_accelerators
            <= pool.capacity
        ):
            admitted.append(job)
    running = {job.id for job in pool.running}
    shares = fill(admitted, pool.capacity)
    for job in entry_order(pool.queued, pool.now):
        candidates = with_room_for(admitted, job, pool.capacity)
        if candidates is None:
            continue
        tried = fill(candidates, pool.capacity)
        standing = aged_weight(job, pool.now)
        protected = [one for one in admitted if one.id in running and one.weight > standing]
        if all(tried.get(other.id, 0) >= shares[other.id] for other in protected):
            admitted, shares = candidates, tried
    return shares


def with_room_for(admitted: list[Job], newcomer: Job, capacity: int) -> list[Job] | None:
    kept, dropped = urgency_order(admitted), []
    excess = sum(job.min_accelerators for job in kept) + newcomer.min_accelerators - capacity
    while excess > 0:
        if not kept or kept[-1].weight >= newcomer.weight:
            return None
        dropped.append(kept.pop())
        excess -= dropped[-1].min_accelerators
    for job in urgency_order(dropped):
        if job.min_accelerators <= -excess:
            excess += job.min_accelerators
            kept.append(job)
    return [*kept, newcomer]


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    capacity = draw(st.integers(1, 24))
    jobs = []
    for job_id in range(1, 1 + draw(st.integers(0, 14))):
        least = draw(st.sampled_from([1, 1, 1, 2, 3, 5]))
        job = job_make(
            job_id,
            weight=draw(st.sampled_from([1, 2, 3, 5, 7, 10])),
            least=min(least, capacity),
            most=draw(st.integers(least, 24)),
            at=draw(st.sampled_from([0.0, 300.0, 590.0])),
        )
        jobs.append(replace(job, pending_since=draw(st.sampled_from([None, 595.0]))))
    num_running = draw(st.integers(0, len(jobs)))
    ordered = [urgency_order(jobs[:num_running]), urgency_order(jobs[num_running:])]
    return Pool("cpu", capacity, 600.0, tuple(ordered[0]), tuple(ordered[1]))


@pytest.mark.parametrize("fill", [progressive_fill, power_of_two_fill])
@given(pool=pools())
def test_admission_decides_as_trial_fills_would(fill: Fill, pool: Pool) -> None:
    assert pool_share(pool, fill) == by_trial(pool, fill)


@given(pool=pools())
def test_powers_of_two_keep_capacity_and_bounds(pool: Pool) -> None:
    counts = pool_share(pool, power_of_two_fill)
    assert sum(counts.values()) <= pool.capacity
    for job in (*pool.running, *pool.queued):
        if job.id in counts:
            assert job.min_accelerators <= counts[job.id] <= job.max_accelerators


def test_powers_of_two_by_hand() -> None:
    # 8 / 3 each: 2, 2, 2; of the 2 that are left the first doubles.
    assert power_of_two_fill([job_make(i) for i in (1, 2, 3)], 8) == {1: 4, 2: 2, 3: 2}
    # 8 / 5 each: 1, one of them can use no more; the first doubles twice, then nothing is left.
    five = [job_make(i, most=1 if i == 3 else 4) for i in range(1, 6)]
    assert power_of_two_fill(five, 8) == {1: 4, 2: 1, 3: 1, 4: 1, 5: 1}
    # 10 : 1 of 4: 3.6 and 0.4, so 2 and 1; 1 is left, too little for the first to double.
    assert power_of_two_fill([job_make(1, weight=10), job_make(2)], 4) == {1: 2, 2: 2}
    # 6 of 8, its most, and 2 to the other; 6 is rounded to 4, and 2 is left for the other.
    assert power_of_two_fill([job_make(1, weight=9, most=6), job_make(2)], 8) == {1: 4, 2: 4}
    # Minima of 3 stay whatever the powers of two.
    assert power_of_two_fill([job_make(1, weight=5), job_make(2, least=3)], 6) == {1: 2, 2: 3}


def test_powers_of_two_halve_the_least_important_first() -> None:
    # Of 5: 2.5, 2.2, 0.2, 0.2, so 2, 2, 1, 1: one too many, taken from the least that has two.
    jobs = [job_make(1, weight=11), job_make(2, weight=10), job_make(3), job_make(4)]
    assert power_of_two_fill(jobs, 5) == {1: 2, 2: 1, 3: 1, 4: 1}


TRACES = Path(__file__).parents[4] / "shared" / "traces" / "virtualflow"


@pytest.mark.skipif(not TRACES.is_dir(), reason="the traces are not beside the checkout")
def test_shares_are_those_that_the_authors_computed() -> None:
    """All 57 recorded computations of VirtualFlow, job by job."""
    expected = json.loads((TRACES / "wfs_expected_shares.json").read_text())
    assert len(expected) == 57
    for row in expected:
        trace = json.loads((TRACES / f"{row['trace']}.json").read_text())
        jobs = [
            job_make(
                index,
                weight=trace[index]["priority"],
                most=trace[index]["gpu_demand"],
                at=trace[index]["arrival_time"],
            )
            for index in row["jobs"]
        ]
        shares = power_of_two_fill(jobs, row["gpus"])
        assert {str(job_id): count for job_id, count in shares.items()} == row["alloc"]


def test_thousands_ask_to_enter_at_once() -> None:
    """Time does not grow with jobs times accelerators: minutes otherwise."""
    running = [job_make(i, weight=i % 7 + 1, most=4) for i in range(1, 1001)]
    queued = [job_make(i, weight=i % 5 + 1, most=64, at=i) for i in range(1001, 4001)]
    pool = Pool("cpu", 4096, 5000.0, tuple(urgency_order(running)), tuple(urgency_order(queued)))
    began = time.process_time()
    counts = pool_share(pool)
    assert time.process_time() - began < 1.5
    assert sum(counts.values()) == 4096
