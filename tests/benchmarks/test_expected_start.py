"""Figures of the benchmark of expected starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.expected_start import Outcome, Teller, Told, figures_of
from controlplane.core.cycle import decide
from controlplane.core.expected_starts import ExpectedStart
from controlplane.core.values.types import Job
from tests.core.snapshots import Speed, accelerators_make, job_make, snapshot_make

FOUR = accelerators_make("gpu gpu gpu gpu")


def told(started_at: float) -> Told:
    return Told("fifo", 100.0, ExpectedStart(50.0, 80.0), started_at)


@pytest.mark.parametrize(
    ("started_at", "is_inside"), [(149.0, False), (150.0, True), (180.0, True), (181.0, False)]
)
def test_a_start_counts_from_the_time_of_telling(started_at: float, is_inside: bool) -> None:
    assert told(started_at).is_inside == is_inside
    assert told(started_at).width_s == 30.0


def test_figures_are_over_all_policies_and_of_each() -> None:
    outcomes = {
        "fifo": [Outcome((told(160.0), told(900.0)), 3)],
        "srtf": [Outcome((told(160.0),), 1)],
        "gavel": [Outcome((), 0)],
    }
    assert figures_of(outcomes) == {
        "inside_share": 0.667,
        "median_width_s": 30.0,
        "told_share": 0.75,
        "num_told": 3,
        "inside_share_fifo": 0.5,
        "inside_share_srtf": 1.0,
    }
    assert figures_of({"fifo": [Outcome((), 2)]}) == {}


def job(job_id: int, at: float) -> Job:
    """Make a job of all four accelerators that needs 100 s."""
    whole = job_make(job_id, least=4, most=4, at=at)
    return replace(whole, performance=Speed(10.0), remaining_examples=4000.0)


def test_only_the_first_range_of_a_waiting_job_is_kept() -> None:
    teller = Teller("fifo")
    running = replace(job(1, 0.0), changed_at=0.0, running_since=0.0)
    for now in (10.0, 20.0):
        snapshot = snapshot_make(FOUR, running, job(2, 5.0), held={1: (1, 2, 3, 4)}, now=now)
        teller(snapshot, decide(snapshot, "fifo"))
    assert teller.waiting == {2}
    assert [at for at, _ in teller.first.values()] == [10.0]
    assert teller.first[2][1].earliest_s <= 100.0 <= teller.first[2][1].latest_s


def test_only_ranges_that_leave_the_told_one_are_jumps() -> None:
    """Told 900 to 1200 s at 0: inside at 100, 230 s late at 200; at 300 a job has come."""
    teller = Teller("fifo")
    for now, earliest_s, latest_s, state in (
        (0.0, 900.0, 1200.0, "a"),
        (100.0, 820.0, 1080.0, "a"),
        (200.0, 760.0, 1230.0, "a"),
        (300.0, 10.0, 20.0, "b"),
    ):
        teller._tell(now, {2: ExpectedStart(earliest_s, latest_s)}, state)
    assert (teller.jumps_s, teller.num_changed) == ([0.0, 230.0], 1)
    assert teller.shown[2] == (300.0, ExpectedStart(10.0, 20.0))
    figures = figures_of({"fifo": [Outcome((told(160.0),), 1, tuple(teller.jumps_s), 1)]})
    assert (figures["median_jump_s"], figures["changed_share"]) == (115.0, 0.5)
