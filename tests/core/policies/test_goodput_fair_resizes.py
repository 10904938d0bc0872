"""Changes of one job under `goodput_fair` are bounded, whatever happens around it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.cycle import decide
from controlplane.core.policies.goodput_fair import resize_limits
from controlplane.core.policies.goodput_fair.policy import goodput_fair
from controlplane.core.policies.goodput_fair.rate_tables import options_of
from controlplane.core.policies.goodput_fair.resize_limits import (
    CHANGES_BY_AGE,
    FREE_CHANGES,
    LARGE_GAIN,
    LEAST_CHANGE_S,
    is_exhausted,
)
from controlplane.core.values.types import Accelerator, Job, Snapshot
from tests.core.snapshots import Speed, accelerators_make, after, job_make, snapshot_make, snapshots

TWO_KINDS = accelerators_make("slow slow slow slow", "fast fast fast fast")
EIGHT = accelerators_make("gpu gpu gpu gpu", "gpu gpu gpu gpu")


def allowed(job: Job, now: float) -> float:
    """Return the number of changes after which only large gains count, by the formula in docs."""
    return 16.0 + 1.5 * math.sqrt((now - job.submitted_at) / max(job.resize_s, 3.0))


@given(
    snapshot=snapshots(),
    changes=st.sampled_from([5, 500, 500, 500]),
    company=st.sampled_from([0.05, 0.2, 0.5]),
    fast=st.sampled_from([1.0, 1.5, 5.0]),
)
def test_a_job_that_has_had_its_changes_changes_for_large_gains_only(
    snapshot: Snapshot, changes: int, company: float, fast: float
) -> None:
    """The job keeps kind and places, gives way to others, or becomes twice as fast at least."""
    speed = Speed(company=company, by_kind={"fast": fast})
    jobs = tuple(
        replace(
            job,
            num_resizes=changes,
            changed_at=snapshot.now - 400.0,
            performance=speed,
            remaining_examples=1e8,
        )
        if snapshot.held.get(job.id)
        else job
        for job in snapshot.jobs
    )
    snapshot = replace(snapshot, jobs=jobs, now=snapshot.now + 600.0)
    decision, options = goodput_fair(snapshot), options_of(snapshot)
    nodes = {one.id: one.node_id for one in snapshot.accelerators}
    for job, is_limited in zip(jobs, is_exhausted(jobs, snapshot.now), strict=True):
        assert is_limited == (job.num_resizes >= allowed(job, snapshot.now))
        share, row = decision.shares.get(job.id), options.index.get(job.id)
        if not is_limited or share is None or row is None or options.held[row] == 0:
            continue
        kind, held = int(options.held_kind[row]), int(options.held[row])
        assert options.kinds[kind] == share.kind
        if share.count > max(held, job.min_accelerators):
            assert options.rate(row, kind, share.count) >= LARGE_GAIN * options.rate(
                row, kind, held
            )
        elif share.count == held and share.by_node and job.allow_mixed_kinds is False:
            assert dict(share.by_node) == Counter(nodes[one] for one in snapshot.held[job.id])


@given(
    ages=st.lists(st.floats(0.0, 1e6), min_size=1, max_size=5),
    changes=st.integers(0, 1000),
    cost=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_age_allows_more_changes(ages: list[float], changes: int, cost: float) -> None:
    jobs = [
        replace(job_make(number, at=-age), num_resizes=changes, resize_s=cost)
        for number, age in enumerate(sorted(ages), start=1)
    ]
    exhausted = [*is_exhausted(jobs, 0.0)]
    assert exhausted == sorted(exhausted, reverse=True)
    assert exhausted == [changes >= allowed(job, 0.0) for job in jobs]
    assert (LEAST_CHANGE_S, FREE_CHANGES, CHANGES_BY_AGE) == (3.0, 16.0, 1.5)


@pytest.mark.parametrize(
    ("cluster", "held", "changes", "expected"),
    [
        (EIGHT, (1, 2, 3, 4), 0, ("gpu", 8)),
        (EIGHT, (1, 2, 3, 4), 500, ("gpu", 4)),  # 8 are 1.7 times as fast
        (EIGHT, (1, 2), 500, ("gpu", 8)),  # 3.1 times
        (TWO_KINDS, (1, 2, 3, 4), 0, ("fast", 4)),
        (TWO_KINDS, (1, 2, 3, 4), 500, ("slow", 4)),
    ],
)
def test_a_job_alone_with_idle_accelerators(
    cluster: tuple[Accelerator, ...],
    held: tuple[int, ...],
    changes: int,
    expected: tuple[str, int],
) -> None:
    job = replace(
        job_make(1),
        performance=Speed(company=0.05, by_kind={"fast": 5.0}),
        remaining_examples=1e8,
        num_resizes=changes,
        changed_at=600.0,
        running_since=0.0,
        most_accelerators=8,
        resize_s=30.0,
        tried_kinds=frozenset({"slow", "fast"}),
    )
    decision = goodput_fair(snapshot_make(cluster, job, held={1: held}, now=1600.0))
    assert (decision.shares[1].kind, decision.shares[1].count) == expected
    assert ("after 500 so far" in str(decision.reasons[1])) == (expected == ("gpu", 4))


def changes_in(hours: float) -> tuple[int, int]:
    """Play a long job beside one short job after another.

    Returns:
        Number of times that the long job grew or moved, and of its changes in all.
    """
    work = Speed(per_s=10.0, company=0.44)  # 8 are 1.96 times as fast as 1
    long = replace(job_make(1, most=8), performance=work, remaining_examples=1e9, resize_s=30.0)
    snapshot = snapshot_make(EIGHT, long)
    grown = total = 0
    for cycle in range(int(hours * 30)):
        now = cycle * 120.0
        jobs = [job for job in snapshot.jobs if job.id == 1]
        if cycle % 4 >= 2:
            short = job_make(2 + cycle // 4, most=8, at=now - cycle % 2 * 120.0)
            jobs.append(replace(short, performance=work, remaining_examples=4000.0, resize_s=30.0))
        ids = {job.id for job in jobs}
        held = {job_id: row for job_id, row in snapshot.held.items() if job_id in ids}
        snapshot = replace(snapshot, jobs=tuple(jobs), held=held, now=now)
        plan = decide(snapshot, "goodput_fair")
        before = snapshot.held.get(1, ())
        snapshot = after(snapshot, plan)
        rows = [resize for resize in plan.resizes if resize.job_id == 1 and before]
        total += len(rows)
        grown += sum(not set(resize.wanted) < set(before) for resize in rows)
    return grown, total


def test_a_long_job_beside_short_ones_is_not_resized_for_ever() -> None:
    hours = 12.0
    bound = 16.0 + 1.5 * math.sqrt(hours * 3600.0 / 30.0)
    grown, total = changes_in(hours)
    assert grown <= bound
    assert total <= 2.0 * bound
    assert grown > 3  # short jobs do make room, and the long one takes it back


@pytest.mark.nightly
def test_without_the_limits_it_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resize_limits, "FREE_CHANGES", 1e9)
    grown, _ = changes_in(12.0)
    assert grown > 16.0 + 1.5 * math.sqrt(12.0 * 3600.0 / 30.0)
