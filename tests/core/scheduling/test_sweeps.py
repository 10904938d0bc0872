"""Sweeps: no more of their jobs hold accelerators than they may, under any policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.cycle import decide
from controlplane.core.expected_starts import expected_starts, unknown_starts
from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.tiers import Tier
from controlplane.core.values.types import Snapshot, Sweep
from tests.core.scheduling.test_circular_waits import full_clusters
from tests.core.snapshots import (
    accelerators_make,
    after,
    every_policy,
    job_make,
    per_policy,
    snapshot_make,
    snapshots,
)

TWO_NODES = accelerators_make("cpu cpu", "cpu cpu")


def holding(snapshot: Snapshot) -> Counter[int | None]:
    """Count the jobs of each sweep that hold accelerators."""
    return Counter(job.sweep for job in snapshot.jobs if snapshot.held.get(job.id))


@every_policy
@per_policy
@given(snapshot=snapshots() | full_clusters(), data=st.data())
def test_no_more_jobs_of_a_sweep_run_than_may(
    name: str, snapshot: Snapshot, data: st.DataObject
) -> None:
    sweeps = {
        number: Sweep(
            data.draw(st.integers(1, 2)), data.draw(st.integers(0, 1)), data.draw(st.booleans())
        )
        for number in (1, 2)
    }
    jobs = tuple(
        replace(job, sweep=data.draw(st.sampled_from([None, 1, 2]))) for job in snapshot.jobs
    )
    snapshot = replace(snapshot, jobs=jobs, sweeps=sweeps)
    for _ in range(3):
        before = holding(snapshot)
        plan = decide(snapshot, name)
        assert {job.id for job in snapshot.jobs} == plan.reasons.keys()
        snapshot = after(snapshot, plan)
        for number, sweep in sweeps.items():
            most = 0 if sweep.is_paused else sweep.max_running - sweep.num_leaving
            assert holding(snapshot)[number] <= max(most, before[number])


@every_policy
def test_a_job_beyond_the_limit_waits_and_says_so(name: str) -> None:
    """The last of three equal jobs is held back while 2 of 4 accelerators are idle."""
    jobs = [replace(job_make(number, most=1, at=number), sweep=7) for number in (1, 2, 3)]
    snapshot = replace(
        snapshot_make(TWO_NODES, *jobs, job_make(4, most=1, at=9.0)), sweeps={7: Sweep(2)}
    )
    for _ in range(2):
        plan = decide(snapshot, name)
        snapshot = after(snapshot, plan)
    assert {job_id for job_id, held in snapshot.held.items() if held} <= {1, 2, 4}
    assert plan.reasons[3] == (
        "Waits for another job of sweep 7 to end: it is behind 2 jobs, and the sweep runs at "
        "most 2 at once."
    )
    ended = replace(
        snapshot, jobs=tuple(job for job in snapshot.jobs if job.id != 1),
        held={job_id: row for job_id, row in snapshot.held.items() if job_id != 1},
    )  # fmt: skip
    assert 3 in {resize.job_id for resize in decide(ended, name).resizes}


@every_policy
def test_a_paused_sweep_begins_nothing(name: str) -> None:
    jobs = [replace(job_make(number, most=1), sweep=7) for number in (1, 2)]
    snapshot = replace(
        snapshot_make(TWO_NODES, *jobs, held={1: (1,)}), sweeps={7: Sweep(2, is_paused=True)}
    )
    plan = decide(snapshot, name)
    assert 2 not in {resize.job_id for resize in plan.resizes}
    assert plan.reasons[2] == "Waits until sweep 7 is resumed (1 job waiting)."
    assert not unknown_starts(snapshot, plan, {}), "its start depends on nobody's end"


def test_what_is_next_of_a_sweep() -> None:
    """Higher tiers, then priorities, then jobs that have begun, then the oldest.

    Nobody waits for one that cannot start, nor for one that its project never lets start.
    """
    jobs = [
        replace(job_make(7, least=3, tier=Tier.URGENT), sweep=7, project=1),
        replace(job_make(6, least=5, tier=Tier.URGENT), sweep=7),
        replace(job_make(8, least=2, tier=Tier.URGENT), sweep=7, project=2),
        replace(job_make(1, most=1, at=1.0), sweep=7),
        replace(job_make(2, most=1, at=2.0), sweep=7, attained_accelerator_s=5.0),
        replace(job_make(3, most=1, at=3.0, weight=5.0), sweep=7),
        replace(job_make(4, most=1, at=4.0, tier=Tier.URGENT), sweep=7),
        replace(job_make(5, most=1, at=0.5), sweep=7),
    ]
    projects = {1: ProjectQuota(limit=2), 2: ProjectQuota(limit_by_kind={"cpu": 1})}
    snapshot = replace(snapshot_make(TWO_NODES, *jobs), sweeps={7: Sweep(1)}, projects=projects)
    started = []
    while len(snapshot.jobs) > 3:
        (resize,) = decide(snapshot, "fifo").resizes
        started.append(resize.job_id)
        left = tuple(job for job in snapshot.jobs if job.id != resize.job_id)
        snapshot = replace(snapshot, jobs=left)
    assert started == [4, 3, 2, 5, 1]


@every_policy
def test_starts_within_a_sweep_are_expected_one_after_another(name: str) -> None:
    """Job 1 of the sweep ends in 60 s; then job 2 starts, although 3 accelerators are idle now."""
    running = replace(
        job_make(1, most=1), remaining_examples=600.0, examples_per_s={1: 10.0}, sweep=7
    )
    snapshot = replace(
        snapshot_make(TWO_NODES, running, replace(job_make(2, most=1), sweep=7), held={1: (1,)}),
        sweeps={7: Sweep(1)},
    )
    start = expected_starts(snapshot, decide(snapshot, name), name)[2]
    assert start.earliest_s <= 60.0 <= start.latest_s
    assert start.earliest_s > 1.0
    # Job 1 is being stopped instead: job 2 starts as soon as it has left.
    leaving = replace(snapshot, jobs=snapshot.jobs[1:], held={}, sweeps={7: Sweep(1, 1)})
    assert 2 in expected_starts(leaving, decide(leaving, name), name)
