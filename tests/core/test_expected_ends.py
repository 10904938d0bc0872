"""Expected ends of running jobs that are resized before: by hand, and for every policy."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core import expected_ends as module
from controlplane.core.cycle import decide
from controlplane.core.expected_ends import LATEST_S, resized_ends
from controlplane.core.play import MOST_DECISIONS
from controlplane.core.policies import POLICIES
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


def forecast(
    snapshot: Snapshot, name: str, most_decisions: int = MOST_DECISIONS
) -> dict[JobId, tuple[float, float]]:
    found = resized_ends(snapshot, decide(snapshot, name), name, most_decisions)
    return {i: (round(one.earliest_s, 1), round(one.latest_s, 1)) for i, one in found.items()}


def known(job: Job, left: float | None) -> Job:
    """Let a job do 10 examples a second on each accelerator."""
    return replace(job, performance=Speed(10.0), remaining_examples=left)


def two_jobs(*, most: int = 4) -> Snapshot:
    """Two jobs on two accelerators each: alone they end after 100 and 400 s."""
    jobs = [known(job_make(1, most=2), 2000.0), known(job_make(2, most=most, at=1.0), 8000.0)]
    return snapshot_make(FOUR, *jobs, held={1: (1, 2), 2: (3, 4)}, now=1000.0)


def test_a_job_that_grows_when_another_ends_is_done_earlier() -> None:
    """Job 1 ends after 100 s; then job 2 does its other 6000 examples at 40 a second."""
    assert forecast(two_jobs(), "weighted_fair") == {2: (208.3, 300.0)}


@pytest.mark.parametrize(("name", "most"), [("weighted_fair", 2), ("fifo", 4)])
def test_a_job_that_keeps_its_accelerators_is_not_told(name: str, most: int) -> None:
    assert forecast(two_jobs(most=most), name) == {}


def test_a_change_that_is_decided_is_none_to_come() -> None:
    """Job 2 comes, and job 1 goes on with two of its four accelerators; both end so."""
    jobs = [known(job_make(1), 8000.0), known(job_make(2, at=1.0, most=2, least=2), 1e5)]
    snapshot = snapshot_make(FOUR, *jobs, held={1: (1, 2, 3, 4)}, now=1000.0)
    assert forecast(snapshot, "weighted_fair") == {}


def test_a_draining_job_holds_accelerators_that_are_not_in_the_snapshot() -> None:
    snapshot = two_jobs()
    gone = replace(snapshot, accelerators=snapshot.accelerators[1:])
    assert forecast(gone, "weighted_fair").keys() <= {1, 2}


@pytest.mark.parametrize("most_decisions", [0, 1, 7])
def test_too_few_decisions_tell_nothing(most_decisions: int) -> None:
    assert forecast(two_jobs(), "weighted_fair", most_decisions) == {}


@pytest.mark.parametrize(("most_decisions", "ends"), [(16, (270.8, 390.0)), (8, (291.7, 420.0))])
def test_ends_may_share_a_decision(most_decisions: int, ends: tuple[float, float]) -> None:
    """Jobs 1 and 2 end after 100 and 200 s, job 3 does 10, 20 and then 40 examples a second.

    It has done 3000 of 8000 by then, and ends after 325 s. With one decision for both ends it grows
    at the second one only, when it has done 2000, and ends after 350 s.
    """
    jobs = [
        known(job_make(1, most=1), 1000.0),
        known(job_make(2, most=2, at=1.0), 4000.0),
        known(job_make(3, at=2.0), 8000.0),
    ]
    snapshot = snapshot_make(FOUR, *jobs, held={1: (1,), 2: (2, 3), 3: (4,)}, now=1000.0)
    assert forecast(snapshot, "weighted_fair", most_decisions) == {3: ends}


@pytest.mark.parametrize(
    "change",
    [{"remaining_examples": None}, {"performance": None}, {"remaining_examples": 1e30}],
)
def test_a_job_without_a_known_end_is_not_told(change: dict[str, None]) -> None:
    first, second = two_jobs().jobs
    snapshot = replace(two_jobs(), jobs=(first, replace(second, **change)))
    assert forecast(snapshot, "weighted_fair") == {}


@every_policy
@per_policy
@given(snapshot=snapshots(), most_decisions=st.sampled_from([0, 1, 8, MOST_DECISIONS, 999]))
def test_a_forecast_is_sound_and_bounded(
    name: str, snapshot: Snapshot, most_decisions: int
) -> None:
    plan = decide(snapshot, name)
    seen: list[Snapshot] = []

    def policy(given: Snapshot) -> Decision:
        seen.append(given)
        return POLICIES[name](given)

    with mock.patch.object(module, "POLICIES", {name: policy}):
        found = resized_ends(snapshot, plan, name, most_decisions)
    assert len(seen) <= min(most_decisions, MOST_DECISIONS) // 4
    assert found == resized_ends(snapshot, plan, name, most_decisions)
    assert plan.allocation is not None
    assert found.keys() <= plan.allocation.accelerators.keys()
    for end in found.values():
        assert 0.0 <= end.earliest_s <= end.latest_s <= LATEST_S
