"""When waiting jobs should start, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from controlplane.core.policies import POLICIES
from controlplane.core.policies.common.start_forecast import (
    starts_by_kind,
    starts_in_turn,
)
from controlplane.core.policies.gavel.forecast import WAITS, Course, first_turns
from controlplane.core.values.explanations import reason
from controlplane.core.values.types import Decision, Job
from tests.core.snapshots import Speed, accelerators_make, job_make, snapshot_make

FOUR = accelerators_make("gpu gpu gpu gpu")


def known(job: Job, left: float) -> Job:
    """Let a job do 10 examples a second on each accelerator."""
    return replace(job, performance=Speed(10.0), remaining_examples=left)


def test_a_queue_starts_as_accelerators_become_free() -> None:
    """One is free, one comes at 10 s and two at 20 s; job 1 has two from 10 s to 15 s."""
    queue = [(1, 2, 5.0), (2, 2, None), (3, 1, 1.0), (4, 2, 1.0), (5, 1, 1.0)]
    # Job 2 keeps its two of 15 s for ever, job 3 has one of two from 20 s to 21 s.
    starts = starts_in_turn(queue, 1, [(20.0, 2), (10.0, 1)])
    assert starts == {1: 10.0, 2: 15.0, 3: 20.0, 4: 21.0, 5: 22.0}


def test_nobody_behind_one_that_cannot_be_told_is_told() -> None:
    assert starts_in_turn([(1, 1, None), (2, 3, 1.0), (3, 1, 1.0)], 2, [(9.0, 1)]) == {1: 0.0}


@pytest.mark.parametrize("seconds", [None, math.inf])
def test_who_never_ends_is_waited_for_by_nobody(seconds: float | None) -> None:
    assert starts_in_turn([(1, 2, seconds), (2, 2, 1.0)], 2, []) == {1: 0.0}


def test_each_goes_to_the_kind_where_it_is_first() -> None:
    """Job 1 has the fast ones at 10 s; job 2 is sooner on the slow ones, and blocks nothing."""
    queue = [
        (1, {"fast": (4, 30.0)}),
        (2, {"fast": (2, 5.0), "slow": (2, 15.0)}),
        (3, {"fast": (2, 5.0), "slow": (2, 15.0)}),
        (4, {"fast": (1, 1.0), "slow": (9, 1.0)}),
    ]
    starts = starts_by_kind(
        queue, {"fast": 0, "slow": 0}, {"fast": [(10.0, 4)], "slow": [(20.0, 2)]}
    )
    assert starts == {1: 10.0, 2: 20.0, 3: 35.0, 4: 40.0}


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.0, "10 s"), (83.0, "80 s"), (360.0, "6 min"), (7200.0, "2.0 h")]
)
def test_an_expected_start_is_told_in_a_handy_unit(seconds: float, told: str) -> None:
    waits = reason("queue_next", wanted=2, have=(), start_s=seconds)
    assert str(waits).endswith(f"; . Expected to start in about {told}.")
    assert "xpected" not in str(waits.plus(start_s=None))


def decide(name: str, *jobs: Job, held: dict[int, tuple[int, ...]] | None = None) -> Decision:
    return POLICIES[name](snapshot_make(FOUR, *jobs, held=held or {}, now=1000.0))


@pytest.mark.parametrize("name", ["pollux", "sia", "srtf", "tiresias", "optimus"])
def test_who_waits_starts_as_others_end(name: str) -> None:
    """Two jobs of two: 100 s, 200 s; the third waits for two, the fourth starts on its heels."""
    jobs = [
        known(job_make(1, least=2, most=2), 2000.0),
        known(job_make(2, least=2, most=2, at=1.0), 4000.0),
        known(job_make(3, least=2, most=2, at=2.0), 4600.0),
        known(job_make(4, least=2, most=2, at=3.0), 6000.0),
    ]
    held = {1: (1, 2), 2: (3, 4)}
    changes = {"weight": 2.0, "most_accelerators": 2, "running_since": 0.0}
    running = [replace(job, **changes) for job in jobs[:2]]
    decision = decide(name, *running, *jobs[2:], held=held)
    assert decision.starts_in_s == {3: 100.0, 4: 200.0}
    assert str(decision.reasons[3]).endswith(". Expected to start in about 2 min.")


@pytest.mark.parametrize("name", ["pollux", "sia", "srtf", "tiresias", "optimus"])
def test_nobody_is_told_a_start_that_nobody_knows(name: str) -> None:
    endless = replace(
        job_make(1, weight=2.0, least=4, most=4), performance=Speed(10.0), most_accelerators=4
    )
    if name == "srtf":  # there it comes first only if nobody's end is known
        decision = decide(name, endless, job_make(2, least=4, most=4), held={1: (1, 2, 3, 4)})
    else:
        other = known(job_make(2, least=4, most=4, at=1.0), 100.0)
        decision = decide(name, endless, other, held={1: (1, 2, 3, 4)})
    assert decision.starts_in_s == {}
    assert "xpected" not in str(decision.reasons[2])


def test_sia_serves_first_who_gains_most_for_each_accelerator() -> None:
    jobs = [
        known(job_make(1, least=4, most=4), 4000.0),
        known(job_make(2, least=4, most=4, at=1.0), 4000.0),
        known(job_make(3, least=2, most=4, at=2.0), 1000.0),
    ]
    running = replace(jobs[0], most_accelerators=4, running_since=0.0, weight=10.0)
    decision = decide("sia", running, *jobs[1:], held={1: (1, 2, 3, 4)})
    assert decision.starts_in_s == {3: 100.0, 2: 150.0}


def course(*, fractions: list[float], received: list[float], left: list[float]) -> Course:
    """Make jobs of age 1000 that want the only accelerator of the only kind."""
    num = len(fractions)
    return Course(
        fractions=np.array(fractions)[:, None],
        received_s=np.array(received)[:, None],
        ages_s=np.full(num, 1000.0),
        demands=np.ones((num, 1), dtype=np.int64),
        left_s=np.array(left)[:, None],
        capacity=np.array([1]),
    )


def test_gavel_turns_come_to_who_is_furthest_behind() -> None:
    """After 60 s job 0 has had 500 s; job 2, with more to come, is before job 1."""
    jobs = course(fractions=[0.5, 0.2, 0.3], received=[440.0, 100.0, 100.0], left=[math.inf] * 3)
    assert first_turns(jobs, [0, WAITS, WAITS], until_s=60.0, round_s=360.0) == {
        2: 60.0,
        1: 420.0,
    }


def test_gavel_gives_away_within_a_round_what_becomes_free() -> None:
    """Job 0 ends after 20 s, job 2 takes over and ends 30 s later."""
    jobs = course(fractions=[0.4, 0.3, 0.3], received=[400.0, 200.0, 100.0], left=[20.0, 9e9, 30.0])
    turns = first_turns(jobs, [0, WAITS, WAITS], until_s=60.0, round_s=360.0)
    assert turns == {2: 20.0, 1: 50.0}


def test_gavel_waits_for_an_end_where_no_turn_comes() -> None:
    """Job 1 has had a million seconds too many; job 0 ends after 100,000."""
    jobs = course(fractions=[0.5, 0.5], received=[1.0, 1e9], left=[1e5, 1.0])
    turns = first_turns(jobs, [0, WAITS], until_s=60.0, round_s=360.0)
    assert turns == pytest.approx({1: 1e5})


def test_gavel_tells_the_next_round() -> None:
    """Two jobs that need all there is take turns."""
    jobs = [known(job_make(i, least=4, most=4), 1e6) for i in (1, 2)]
    decision = POLICIES["gavel"](snapshot_make(FOUR, *jobs))
    assert decision.starts_in_s == {2: 360.0}
    assert str(decision.reasons[2]).endswith(
        "next round is in 360 s. Expected to start in about 6 min."
    )
