"""Expected starts of waiting jobs: by hand, and for every policy of the registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controlplane.core import expected_starts as module
from controlplane.core.cycle import decide
from controlplane.core.expected_starts import (
    MOST_DECISIONS,
    QUEUES,
    ExpectedStart,
    expected_starts,
    unknown_starts,
)
from controlplane.core.policies import POLICIES, queueing
from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.types import Decision, Job, JobId, Snapshot
from tests.core.snapshots import (
    Speed,
    accelerators_make,
    every_policy,
    job_make,
    per_policy,
    snapshot_make,
    snapshots,
)

FOUR = accelerators_make("gpu gpu gpu gpu")


def test_every_order_of_the_queue_is_known() -> None:
    names = {name for name, one in POLICIES.items() if one.__module__ == queueing.__name__}
    assert {*QUEUES} == names, "QUEUES of core/expected_starts.py needs those of queueing.py"


def forecast(
    snapshot: Snapshot, name: str, most_decisions: int = MOST_DECISIONS
) -> dict[JobId, ExpectedStart]:
    return expected_starts(snapshot, decide(snapshot, name), name, most_decisions)


def rounded(found: dict[JobId, ExpectedStart]) -> dict[JobId, tuple[float, float]]:
    return {i: (round(one.earliest_s, 1), round(one.latest_s, 1)) for i, one in found.items()}


def known(job: Job, left: float) -> Job:
    """Let a job do 10 examples a second on each accelerator."""
    return replace(job, performance=Speed(10.0), remaining_examples=left)


def running(job: Job) -> Job:
    """Let a job have just begun; with twice the weight, no policy stops it for others."""
    return replace(job, weight=2.0, most_accelerators=job.max_accelerators, running_since=990.0)


def queue() -> Snapshot:
    """Two jobs of two end after 100 and 200 s; two more of two wait."""
    jobs = [
        running(known(job_make(1, least=2, most=2), 2000.0)),
        running(known(job_make(2, least=2, most=2, at=1.0), 4000.0)),
        known(job_make(3, least=2, most=2, at=2.0), 4600.0),
        known(job_make(4, least=2, most=2, at=3.0), 6000.0),
    ]
    return snapshot_make(FOUR, *jobs, held={1: (1, 2), 2: (3, 4)}, now=1000.0)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"slaq"}))
def test_waiting_jobs_start_as_others_end(name: str) -> None:
    """Work takes between 1/1.2 and 1.2 times as long as predicted."""
    first, second = (4, 3) if name == "sia" else (3, 4)  # alike for Sia's program
    assert rounded(forecast(queue(), name)) == {first: (83.3, 120.0), second: (166.7, 240.0)}


def test_slaq_stops_a_job_for_one_that_has_waited() -> None:
    """Job 3 may be stopped after a minute: it counts 2 then, and job 4 after 1160 s 2.9."""
    found = forecast(queue(), "slaq")
    assert rounded(found)[3] == (83.3, 120.0)
    assert found[4].earliest_s < 150.0  # job 2 ends after 166.7 s at the earliest


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"slaq"}))
def test_ranges_are_confirmed_while_nothing_changes(name: str) -> None:
    """Jobs 1 and 2 do 20 examples a second each."""
    told = forecast(queue(), name)
    for passed_s in (10.0, 40.0):
        jobs = tuple(
            replace(job, remaining_examples=(job.remaining_examples or 0.0) - 20.0 * passed_s)
            if job.id in (1, 2)
            else job
            for job in queue().jobs
        )
        later = replace(queue(), jobs=jobs, now=1000.0 + passed_s)
        for job_id, start in forecast(later, name).items():
            assert start.confirms(told[job_id].after(passed_s)), (job_id, passed_s)


@pytest.mark.parametrize("most_decisions", [0, 2])
@every_policy
def test_fewer_decisions_widen_the_ranges(name: str, most_decisions: int) -> None:
    """One decision covers both ends; without one, either job may be the first."""
    found = rounded(forecast(queue(), name, most_decisions))
    assert found == {3: (83.3, 240.0), 4: (83.3, 240.0)}


def test_a_started_job_is_waited_for() -> None:
    """3000 examples at 30 a second; then job 2 does 8000 at 40."""
    jobs = [
        known(job_make(1, most=3), 3000.0),
        known(job_make(2, at=1.0), 8000.0),
        job_make(3, most=1, at=2.0),
    ]
    snapshot = snapshot_make(FOUR, *jobs, held={1: (1, 2, 3)}, now=2.0)
    assert rounded(forecast(snapshot, "fifo")) == {2: (83.3, 120.0), 3: (250.0, 360.0)}
    endless = replace(jobs[0], remaining_examples=None)
    assert forecast(replace(snapshot, jobs=(endless, *jobs[1:])), "fifo") == {}


def test_turns_of_gavel_are_found_within_a_step_of_the_play() -> None:
    """Two jobs that need all there is take turns of 360 s."""
    jobs = [known(job_make(i, least=4, most=4), 1e6) for i in (1, 2)]
    (turn,) = forecast(snapshot_make(FOUR, *jobs), "gavel").values()
    assert turn.earliest_s < 360.0 <= turn.latest_s < 1.4 * turn.earliest_s


def test_a_job_that_ages_starts_while_another_runs_on() -> None:
    """Job 2 has three times the standing after 1200 s; that job 1 ever ends is not known."""
    heavy = replace(job_make(1, weight=3, most=4), performance=Speed(10.0))
    snapshot = snapshot_make(FOUR, heavy, job_make(2), held={1: (1, 2, 3, 4)})
    start = forecast(snapshot, "weighted_fair")[2]
    assert start.earliest_s <= 1200.0 <= start.latest_s < 1.4 * start.earliest_s


def test_a_job_of_unknown_speed_may_end_at_once_or_never() -> None:
    """Job 2 has not trained; under tiresias it gives way after 14,400 s, job 1 after 83 to 120."""
    jobs = [
        running(known(job_make(1, least=4, most=4), 4000.0)),
        replace(job_make(2, least=4, most=4, at=1.0), remaining_examples=1e4),
        known(job_make(3, least=4, most=4, at=2.0), 100.0),
    ]
    snapshot = snapshot_make(FOUR, *jobs, held={1: (1, 2, 3, 4)}, now=1000.0)
    for name in ("fifo", "tiresias"):
        plan = decide(snapshot, name)
        found = expected_starts(snapshot, plan, name)
        assert rounded(found) == {2: (83.3, 120.0)}
        assert {i: one.code for i, one in unknown_starts(snapshot, plan, found).items()} == {
            3: "start_unknown"
        }
    with mock.patch.object(module, "WIDE_RATIO", 1e3):
        start = forecast(snapshot, "tiresias")[3]
    assert start.earliest_s == pytest.approx(83.3, abs=0.1)
    assert 14_400.0 <= start.latest_s < 2.0 * 14_400.0


def test_a_job_starts_before_the_next_end_where_time_is_enough() -> None:
    """Job 1 falls into the second queue after 1000 s; that it ends after 100,000 is no matter."""
    first = replace(
        running(known(job_make(1, least=4, most=4), 4e6)), attained_accelerator_s=53_600.0
    )
    second = known(job_make(2, least=4, most=4, at=1.0), 100.0)
    snapshot = snapshot_make(FOUR, first, second, held={1: (1, 2, 3, 4)}, now=1000.0)
    start = forecast(snapshot, "tiresias")[2]
    assert start.earliest_s <= 1000.0 <= start.latest_s < 1.5 * start.earliest_s
    # An end that the same decision covers does not move the start.
    for seconds in (1050.0, 1300.0):
        sooner = known(first, 40.0 * seconds)
        snapshot = snapshot_make(FOUR, sooner, second, held={1: (1, 2, 3, 4)}, now=1000.0)
        assert forecast(snapshot, "tiresias")[2].earliest_s <= 1000.0


@pytest.mark.parametrize(
    ("earliest_s", "latest_s", "is_confirmed"),
    [
        (100.0, 200.0, True),
        (90.0, 219.0, True),  # 15 s, and a tenth of 219
        (84.0, 200.0, False),
        (100.0, 223.0, False),
        (120.0, 170.0, True),
        (120.0, 169.0, False),  # less than half as wide
    ],
)
def test_a_told_range_stays_while_the_new_one_is_in_it(
    earliest_s: float, latest_s: float, *, is_confirmed: bool
) -> None:
    told = ExpectedStart(100.0, 200.0)
    assert ExpectedStart(earliest_s, latest_s).confirms(told) == is_confirmed


def test_a_wide_range_is_said_to_be_too_wide() -> None:
    jobs = [
        known(job_make(1, least=2, most=2), 200.0),
        known(job_make(2, least=2, most=2), 20_000.0),
        *(known(job_make(i, least=2, most=2, at=1.0), 100.0) for i in (3, 4)),
    ]
    snapshot = snapshot_make(FOUR, *jobs, held={1: (1, 2), 2: (3, 4)}, now=2.0)
    unknown = unknown_starts(snapshot, decide(snapshot, "fifo"), {3})
    assert {i: one.code for i, one in unknown.items()} == {4: "start_too_wide"}


def test_a_job_that_can_never_start_has_no_expected_start() -> None:
    jobs = [known(job_make(1, least=4, most=4), 100.0), job_make(2, least=5)]
    assert forecast(snapshot_make(FOUR, *jobs), "fifo") == {}


def test_bounds_are_those_of_the_best_accepted_kind() -> None:
    """Fast: 2 at 20 s and 2 at 60 s, for jobs 4 and 5; slow: 2 at 90 s, for job 4 alone."""
    two_kinds = accelerators_make("fast fast fast fast", "slow slow")
    jobs = [
        known(job_make(1, least=2, most=2, kinds="fast"), 400.0),
        known(job_make(2, least=2, most=2, kinds="fast"), 1200.0),
        known(job_make(3, least=2, most=2, kinds="slow"), 1800.0),
        known(job_make(4, least=2, most=2, at=1.0), 100.0),
        known(job_make(5, least=3, most=3, at=2.0), 100.0),
    ]
    held = {1: (1, 2), 2: (3, 4), 3: (5, 6)}
    snapshot = snapshot_make(two_kinds, *jobs, held=held, now=3.0)
    # Both minima together, 5, are never free on the fast kind.
    assert rounded(forecast(snapshot, "fifo", 0)) == {4: (16.7, 108.0)}


def test_bounds_are_those_of_the_full_demand() -> None:
    """One of four is free now; that is the minimum of job 2, which is given all four or nothing."""
    jobs = [
        known(job_make(1, least=3, most=3), 3000.0),
        known(job_make(2, most=4, at=1.0, kinds="gpu"), 100.0),
    ]
    snapshot = snapshot_make(FOUR, *jobs, held={1: (1, 2, 3)}, now=3.0)
    assert rounded(forecast(snapshot, "fifo", 0)) == {2: (83.3, 120.0)}
    behind = job_make(3, most=1, kinds="cpu", at=2.0)
    idle = accelerators_make("gpu gpu gpu gpu", "cpu")
    snapshot = replace(snapshot, jobs=(*jobs, behind), accelerators=idle)
    assert 3 not in forecast(snapshot, "fifo", 0), "told to start at once, behind another job"


def test_bounds_are_not_before_those_of_a_job_ahead() -> None:
    """The queue's head waits for a fast one until 400 s; a slow one is free from 100 s on."""
    jobs = [
        known(job_make(1, most=1, kinds="fast"), 4000.0),
        known(job_make(2, most=1, kinds="slow"), 1000.0),
        known(job_make(3, most=1, kinds="fast", at=1.0), 100.0),
        known(job_make(4, most=1, kinds="slow", at=2.0), 100.0),
    ]
    snapshot = snapshot_make(accelerators_make("fast slow"), *jobs, held={1: (1,), 2: (2,)})
    found = rounded(forecast(snapshot, "fifo", 0))
    assert found == {3: (333.3, 480.0), 4: (83.3, 480.0)}
    limited = replace(jobs[2], project=1)
    for quota in (ProjectQuota(limit=1), ProjectQuota(limit_by_kind={"fast": 1})):
        snapshot = replace(snapshot, jobs=(*jobs[:2], limited, jobs[3]), projects={1: quota})
        assert rounded(forecast(snapshot, "fifo", 0)) == {4: (83.3, 120.0)}


def test_bounds_begin_at_once_where_a_running_job_has_an_unknown_speed() -> None:
    jobs = [
        running(known(job_make(1, least=2, most=2), 2000.0)),
        replace(job_make(2, least=2, most=2), remaining_examples=100.0),
        known(job_make(3, least=2, most=2, at=1.0), 100.0),
    ]
    snapshot = snapshot_make(FOUR, *jobs, held={1: (1, 2), 2: (3, 4)}, now=1000.0)
    assert rounded(forecast(snapshot, "fifo", 0)) == {3: (0.0, 120.0)}


def test_a_range_that_tells_nothing_is_left_out() -> None:
    """The first of the waiting jobs starts after 10 s, the last after 1000: 8.3 to 1200 s."""
    jobs = [
        known(job_make(1, least=2, most=2), 200.0),
        known(job_make(2, least=2, most=2), 20_000.0),
        *(known(job_make(i, least=2, most=2, at=1.0), 100.0) for i in (3, 4)),
    ]
    snapshot = snapshot_make(FOUR, *jobs, held={1: (1, 2), 2: (3, 4)}, now=2.0)
    assert forecast(snapshot, "fifo", 0) == {}
    assert not ExpectedStart(8.3, 600.0).is_wide


@pytest.mark.parametrize(
    ("earliest_s", "latest_s", "told"),
    [
        (0.0, 3.0, "10 s"),
        (42.0, 83.0, "40 to 80 s"),
        (83.0, 120.0, "80 s to 2 min"),
        (355.0, 362.0, "6 min"),
        (300.0, 720.0, "5 to 12 min"),
        (3600.0, 7200.0, "60 min to 2.0 h"),
    ],
)
def test_a_range_is_rendered_in_a_handy_unit(earliest_s: float, latest_s: float, told: str) -> None:
    sentence = str(ExpectedStart(earliest_s, latest_s))
    assert sentence == f"Expected to start in about {told}."


# Properties of every policy


@contextmanager
def counted(name: str) -> Iterator[list[Snapshot]]:
    """Collect the snapshots on which a forecast lets the policy decide."""
    seen: list[Snapshot] = []

    def policy(snapshot: Snapshot) -> Decision:
        seen.append(snapshot)
        return POLICIES[name](snapshot)

    with mock.patch.object(module, "POLICIES", {name: policy}):
        yield seen


@every_policy
@per_policy
@given(snapshot=snapshots(), most_decisions=st.sampled_from([0, 1, 2, 7, MOST_DECISIONS, 999]))
def test_a_forecast_is_sound_and_bounded(
    name: str, snapshot: Snapshot, most_decisions: int
) -> None:
    plan = decide(snapshot, name)
    with counted(name) as seen:
        found = expected_starts(snapshot, plan, name, most_decisions)
    assert len(seen) <= min(most_decisions, MOST_DECISIONS)
    assert found == expected_starts(snapshot, plan, name, most_decisions)
    assert plan.allocation is not None
    assert found.keys() <= {job.id for job in snapshot.jobs} - plan.allocation.accelerators.keys()
    for start in found.values():
        assert 0.0 <= start.earliest_s <= start.latest_s < float("inf")


@every_policy
@per_policy
@given(snapshot=snapshots(), known=st.data())
def test_all_starts_are_expected_where_all_ends_are_known(
    name: str, snapshot: Snapshot, known: st.DataObject
) -> None:
    jobs = tuple(
        replace(
            job,
            performance=known.draw(st.sampled_from([Speed(), Speed(company=0.2, distance=0.5)])),
            remaining_examples=known.draw(st.sampled_from([0.0, 50.0, 1e4, 1e7])),
        )
        for job in snapshot.jobs
    )
    snapshot = replace(snapshot, jobs=jobs)
    plan = decide(snapshot, name)
    assert plan.allocation is not None
    never = {job.id for job in jobs if plan.reasons[job.id].startswith("Cannot start")}
    assume(not never or name not in QUEUES)  # there, such a job blocks all others
    waiting = {job.id for job in jobs} - plan.allocation.accelerators.keys() - never
    with mock.patch.object(ExpectedStart, "is_wide", new=False):
        starts = expected_starts(snapshot, plan, name)
    assert starts.keys() == waiting
    told = [job_id for job_id, start in starts.items() if not start.is_wide]
    unknown = unknown_starts(snapshot, plan, told)
    assert {found.code for found in unknown.values()} <= {"start_too_wide"}


@every_policy
@per_policy
@given(
    seconds=st.floats(0.1, 100.0),
    count=st.integers(1, 4),
    most_decisions=st.sampled_from([0, 1, 2, 8, MOST_DECISIONS]),
)
def test_a_job_behind_a_single_one_starts_when_that_ends(
    name: str, seconds: float, count: int, most_decisions: int
) -> None:
    first = running(known(job_make(1, least=4, most=4), 40.0 * seconds))
    second = known(job_make(2, least=count, most=4, at=1.0), 1e5)
    if name not in {*QUEUES, "srtf", "tiresias"}:
        second = replace(second, min_accelerators=4)
    snapshot = snapshot_make(FOUR, first, second, held={1: (1, 2, 3, 4)}, now=1000.0)
    start = forecast(snapshot, name, most_decisions)[2]
    assert start.earliest_s == pytest.approx(seconds / 1.2)
    assert start.latest_s == pytest.approx(seconds * 1.2)
