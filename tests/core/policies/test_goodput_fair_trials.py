"""Our own policy tries idle accelerators where a model that has seen few of them may be wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimates.goodput import FixedBatchPerformance, VirtualNodes
from controlplane.core.estimates.throughput import ThroughputModel
from controlplane.core.policies.goodput_fair.policy import goodput_fair
from controlplane.core.policies.goodput_fair.probes import LEAST_LEFT_S, is_trying
from controlplane.core.values.types import Job, Snapshot
from tests.core.snapshots import Speed, accelerators_make, job_make, snapshot_make

#: The exchange takes ever longer on one node of four, and so it is taken to do on several.
LOCKED_IN = ThroughputModel(0.0, 0.01, 0.1, 0.4, 0.1, 0.4)


def fitted(model: ThroughputModel) -> FixedBatchPerformance:
    return FixedBatchPerformance({"gpu": model}, VirtualNodes(16), size=1600)


def locked_in(job_id: int = 1, held: int = 4, **options: object) -> Job:
    """Make a job of hours that has held 4 accelerators at most, for an hour now."""
    job = replace(
        job_make(job_id, most=16),
        performance=fitted(LOCKED_IN),
        remaining_examples=1e7,
        done_examples=1e6,
        attained_accelerator_s=3600.0 * held,
        running_since=400.0,
        changed_at=400.0,
        most_accelerators=held,
        resize_s=0.8,
    )
    return replace(job, **options)  # type: ignore[arg-type]


def cluster(num_nodes: int, *jobs: Job, held: dict[int, int]) -> Snapshot:
    accelerators = accelerators_make(*["gpu gpu gpu gpu"] * num_nodes)
    free = iter(one.id for one in accelerators)
    rows = {job_id: tuple(next(free) for _ in range(count)) for job_id, count in held.items()}
    return snapshot_make(accelerators, *jobs, held=rows, now=4000.0)


def test_a_job_tries_idle_accelerators_and_says_so() -> None:
    decision = goodput_fair(cluster(16, locked_in(), held={1: 4}))
    assert decision.shares[1].count == 16
    told = "Tries 16 of 64 gpu to measure its speed, as there are idle ones;"
    assert str(decision.reasons[1]).startswith(told)


@pytest.mark.parametrize(
    "options",
    [
        {"most_accelerators": 16},  # its speed there is known
        {"remaining_examples": 200.0},  # about to end
        {"changed_at": 3900.0},  # has just been changed
        {"resize_s": 600.0},  # a change costs it more than it may gain
        {"performance": None},  # something else finds out what it does now
    ],
)
def test_no_trial_where_it_cannot_pay(options: dict[str, object]) -> None:
    decision = goodput_fair(cluster(16, locked_in(**options), held={1: 4}))
    assert not str(decision.reasons[1]).startswith("Tries")


@given(num_jobs=st.integers(1, 4), num_nodes=st.integers(4, 16), idle=st.integers(0, 16))
def test_trials_take_idle_accelerators_only_and_half_of_them(
    num_jobs: int, num_nodes: int, idle: int
) -> None:
    """Others hold all but `idle` of the rest; one job of a kind at a time tries some."""
    jobs = [locked_in(i) for i in range(1, num_jobs + 1)]
    rest = max(4 * (num_nodes - num_jobs) - idle, 0)
    speed = Speed(company=0.0)
    others = [
        locked_in(100, performance=speed, max_accelerators=rest, min_accelerators=rest)
    ] if rest else []  # fmt: skip
    held = {job.id: 4 for job in jobs} | {job.id: rest for job in others}
    shares = goodput_fair(cluster(num_nodes, *jobs, *others, held=held)).shares
    before = 4 * num_nodes - sum(held.values())
    more = {i: shares[i].count - count for i, count in held.items()}
    assert min(more.values()) >= 0
    assert sum(more.values()) <= before / 2
    assert sum(count > 0 for count in more.values()) <= 1


def test_a_trial_gives_way_to_any_job_that_gains() -> None:
    """Job 1 has tried 12 of 16 for some seconds; job 2 comes, which is faster on each more."""
    trying = locked_in(changed_at=3990.0, most_accelerators=12)
    comes = locked_in(2, performance=Speed(per_s=400.0))
    comes = replace(comes, running_since=None, changed_at=None, most_accelerators=0)
    shares = goodput_fair(cluster(4, trying, comes, held={1: 12})).shares
    assert shares[2].count >= 12


def test_a_trial_is_not_broken_off_before_it_is_measured() -> None:
    jobs = [locked_in(changed_at=3990.0, most_accelerators=16)]
    assert goodput_fair(cluster(16, *jobs, held={1: 16})).shares[1].count == 16
    done = [locked_in(changed_at=3800.0, most_accelerators=16)]
    assert goodput_fair(cluster(16, *done, held={1: 16})).shares[1].count < 16


@pytest.mark.parametrize("growth_s", [0.4, 2.0, 10.0])
def test_a_trial_goes_on_however_slow_the_model_takes_it_to_be(growth_s: float) -> None:
    """As soon as it is ordered, too: the next decision may be a moment later."""
    slow = fitted(ThroughputModel(0.0, 0.01, 0.1, growth_s, 0.1, growth_s))
    job = locked_in(changed_at=3999.9, most_accelerators=16, performance=slow)
    assert goodput_fair(cluster(16, job, held={1: 16})).shares[1].count == 16


def test_a_trial_is_the_first_minute_on_more_than_ever() -> None:
    jobs = [locked_in(most_accelerators=n) for n in (4, 8, 8, 8)]
    found = is_trying(
        jobs, np.array([4, 8, 8, 4]), np.array([10.0, 10.0, 70.0, 10.0]), np.full(4, 3.0)
    )
    assert found.tolist() == [True, True, False, False]
    assert LEAST_LEFT_S >= 2 * 60.0  # a trial ends before its job
