"""Sia, Gavel and shortest time first: their programs on examples with known answers."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.cycle import decide
from controlplane.core.policies.gavel.policy import ROUND_S, gavel
from controlplane.core.policies.gavel.program import time_fractions
from controlplane.core.policies.sia.configurations import (
    Configuration,
    Kind,
    configurations_of,
    counts_of,
)
from controlplane.core.policies.sia.policy import sia
from controlplane.core.policies.sia.program import (
    JobAssignment,
    Program,
    choose,
    left_out_cost,
    program_make,
    rounded,
    solve,
)
from controlplane.core.policies.srtf import srtf
from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.types import Job
from tests.core.performances import Curve
from tests.core.snapshots import Speed, accelerators_make, after, job_make, snapshot_make

TWO_NODES = accelerators_make("gpu gpu gpu gpu", "gpu gpu gpu gpu")
TWO_KINDS = accelerators_make("fast", "slow")


def job_of(job_id: int, *, most: int = 8, least: int = 1, **changes: object) -> Job:
    made = job_make(job_id, least=least, most=most)
    return dataclasses.replace(made, **{"performance": Curve(), "most_accelerators": 8, **changes})


# Sia


def test_configurations_are_powers_of_two_up_to_a_node_then_whole_nodes() -> None:
    assert counts_of(Kind("gpu", (4, 4, 4), 12)) == (1, 2, 4, 8, 12)
    assert counts_of(Kind("gpu", (6, 3), 9)) == (1, 2, 4, 6, 9)


@pytest.mark.parametrize(
    ("least", "most", "had", "expected"),
    [
        (1, 8, 0, [1]),
        (1, 8, 1, [1, 2]),
        (1, 8, 2, [1, 2, 4]),
        (1, 8, 4, [1, 2, 4, 8]),
        (1, 6, 4, [1, 2, 4]),
        (3, 3, 0, [3]),  # no power of two lies within its bounds
        (3, 8, 0, [3]),  # its minimum, also where a power of two is near
        (3, 8, 3, [3, 4]),
        (2, 8, 0, [2]),
        (9, 9, 0, []),
    ],
)
def test_a_job_starts_on_its_least_and_at_most_doubles(
    least: int, most: int, had: int, expected: list[int]
) -> None:
    kind = Kind("gpu", (4, 4), 8)
    job = job_of(1, least=least, most=most, most_accelerators=had)
    found = configurations_of(job, kind, counts_of(kind))
    assert [one.count for one in found] == expected
    assert [one.num_nodes for one in found] == [-(-count // 4) for count in expected]


def test_program_weighs_the_inverse_root_of_goodputs() -> None:
    """Two jobs on 4: 2 + 2 costs 2 / sqrt(2) = 1.41, 4 + nothing 0.5 + 1.5, 1 + 1 costs 2."""
    choices = [
        JobAssignment(row, Configuration("gpu", count, 1), count, count, count**-0.5)
        for row in (0, 1)
        for count in (1, 2, 4)
    ]
    chosen = choose(choices, [1.0, 1.0], {"gpu": 4})
    assert [(c.row, c.configuration.count) for c in chosen] == [(0, 2), (1, 2)]


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[JobAssignment], list[float], dict[str, int]]:
    choices = []
    num_rows = draw(st.integers(1, 4))
    for row in range(num_rows):
        for kind in ("fast", "slow"):
            for count in (1, 2, 4):
                if draw(st.booleans()):
                    cost = draw(st.integers(1, 150)) / 100.0
                    utility = 1.0 / cost**2
                    configuration = Configuration(kind, count, 1)
                    choices.append(JobAssignment(row, configuration, utility, utility, cost))
    capacity = {"fast": draw(st.integers(1, 5)), "slow": draw(st.integers(1, 5))}
    return choices, [1.0] * num_rows, capacity


def _cost(chosen: list[JobAssignment] | tuple[JobAssignment | None, ...], num_rows: int) -> float:
    kept = [choice for choice in chosen if choice is not None]
    return sum(choice.cost for choice in kept) + left_out_cost(1.0, 1.0) * (num_rows - len(kept))


def _fits(
    chosen: list[JobAssignment] | tuple[JobAssignment | None, ...], capacity: dict[str, int]
) -> bool:
    used = dict.fromkeys(capacity, 0)
    for choice in chosen:
        if choice is not None:
            used[choice.configuration.kind] += choice.configuration.count
    return all(used[kind] <= total for kind, total in capacity.items())


@given(program=programs())
def test_program_is_solved_exactly(
    program: tuple[list[JobAssignment], list[float], dict[str, int]],
) -> None:
    choices, weights, capacity = program
    by_row = [[None, *(c for c in choices if c.row == row)] for row in range(len(weights))]
    best = min(
        _cost(tried, len(weights)) for tried in itertools.product(*by_row) if _fits(tried, capacity)
    )
    chosen = choose(choices, weights, capacity)
    assert len({choice.row for choice in chosen}) == len(chosen)
    assert _fits(chosen, capacity)
    assert _cost(chosen, len(weights)) == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize("seed", [104, 196])
def test_solving_writes_nothing_on_stdout(seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS printed a line of its own on these while it presolved."""
    random = np.random.default_rng(seed)
    sizes = np.array([1.0, 2.0, 4.0, 8.0])
    speeds = random.random((30, 2, 4)) * sizes
    weights = random.choice([1.0, 2.0, 5.0, 10.0], 30)[:, None, None]
    rows, kinds, places = np.indices(speeds.shape).reshape(3, -1)
    gains = (weights * (speeds**-0.5 - 1.5)).ravel()
    solve(Program(gains, rows, kinds, sizes[places], np.array([20.0, 10.0])))
    assert capfd.readouterr().out == ""


@given(drawn=programs(), fractions=st.lists(st.floats(0.0, 1.0), min_size=24, max_size=24))
def test_rounding_is_possible_and_leaves_nothing_to_gain(
    drawn: tuple[list[JobAssignment], list[float], dict[str, int]], fractions: list[float]
) -> None:
    choices, weights, capacity = drawn
    if not choices:
        return
    program = program_make(choices, weights, capacity)
    rough = [choices[i] for i in rounded(program, np.array(fractions[: len(choices)]))]
    assert len({choice.row for choice in rough}) == len(rough)
    assert _fits(rough, capacity)
    exact = choose(choices, weights, capacity)
    assert _cost(rough, len(weights)) >= _cost(exact, len(weights)) - 1e-3
    for choice in choices:  # nothing is left that fits and would be better
        others = [one for one in rough if one.row != choice.row]
        if _fits([*others, choice], capacity):
            assert _cost([*others, choice], len(weights)) >= _cost(rough, len(weights)) - 1e-6


def test_sia_gives_each_kind_to_who_gains_most_by_it() -> None:
    """One is ten times as fast there, the other hardly faster."""
    jobs = [
        job_of(1, most=1, performance=Curve({"fast": 1.1, "slow": 1.0})),
        job_of(2, most=1, performance=Curve({"fast": 10.0, "slow": 1.0})),
    ]
    decision = sia(snapshot_make(TWO_KINDS, *jobs, now=1000.0))
    assert {i: share.kind for i, share in decision.shares.items()} == {1: "slow", 2: "fast"}
    assert str(decision.reasons[2]) == (
        "Is given 1 of 1 fast; 10 useful examples/s; all it can use."
    )


def test_sia_leaves_a_job_where_a_resize_would_cost_more_than_it_brings() -> None:
    """Doubling is worth 1.6: kept at 2 when its next resize leaves less than 1 / 1.6 of that."""
    job = job_of(1, performance=Curve(drag=0.25), most=4, resize_s=30.0, num_resizes=3)
    held = {1: (1, 2)}
    young = sia(snapshot_make(TWO_NODES, job, held=held, now=200.0))
    old = sia(snapshot_make(TWO_NODES, job, held=held, now=20000.0))
    assert (young.shares[1].count, old.shares[1].count) == (2, 4)
    assert str(young.reasons[1]) == (
        "Keeps 2 of 8 gpu; 1.6 useful examples/s; 4 would be 43 % faster, which is not worth a "
        "resize (3 so far)."
    )
    assert str(old.reasons[1]).startswith("Is given 4 gpu instead of 2; 2.29 useful examples/s")


def test_sia_lets_a_job_stay_on_a_count_that_is_no_configuration() -> None:
    """Three of four were left of a job that resizes cost much: it was stopped, and started."""
    job = dataclasses.replace(
        job_make(1, least=3, most=4), performance=Speed(), num_resizes=39, resize_s=0.8
    )
    nodes = accelerators_make("gpu gpu", "gpu gpu")
    decision = sia(snapshot_make(nodes, job, held={1: (1, 2, 3)}))
    assert decision.shares[1].count == 3


def test_sia_says_why_a_job_waits() -> None:
    jobs = [job_of(i, most=1, weight=2.0 if i < 9 else 1.0) for i in range(1, 10)]
    decision = sia(snapshot_make(TWO_NODES, *jobs, now=1000.0))
    assert set(decision.shares) == set(range(1, 9))
    assert str(decision.reasons[9]) == (
        "Waits for 1 of kind gpu; 8 of 8 held by 8 jobs of higher priority; job 1 would have to "
        "stop, at a cost of 1 where the start would bring 0.8."
    )


def test_sia_says_for_whom_a_job_shrinks() -> None:
    """Of 4, 4 and 0 of 8 the first keeps 4 at 4 / 1.3 a second; the others go to 2 at 2 / 1.1."""
    jobs = [
        job_of(i, performance=Curve(drag=0.1), most_accelerators=4, remaining_examples=5000.0 * i,
               submitted_at=10.0 * i)
        for i in (1, 2, 3)
    ]  # fmt: skip
    held = {1: (1, 2, 3, 4), 2: (5, 6, 7, 8)}
    reasons = sia(snapshot_make(TWO_NODES, *jobs, held=held, now=1000.0)).reasons
    assert str(reasons[2]) == (
        "Is cut from 4 to 2 gpu for job 3; 1.82 useful examples/s; 4 would be 69 % faster, but "
        "others need them more; done in about 1.5 h."
    )


def test_sia_says_where_accelerators_come_from() -> None:
    job = job_of(1, most=1, performance=Curve({"fast": 10.0, "slow": 1.0}))
    reasons = sia(snapshot_make(TWO_KINDS, job, held={1: (2,)}, now=1000.0)).reasons
    assert str(reasons[1]) == (
        "Moves from 1 slow to 1 of 1 fast; 10 useful examples/s; all it can use."
    )


@pytest.mark.parametrize("num_jobs", [6, 40])
@pytest.mark.parametrize(
    "speed", [Curve(drag=0.25), Curve(), None], ids=["drag", "none", "unknown"]
)
def test_sia_leaves_what_is_worth_the_same_as_it_is(num_jobs: int, speed: Curve | None) -> None:
    """Jobs alike, more than there is room for: whoever holds something keeps it."""
    jobs = [job_of(i, performance=speed, most=4) for i in range(1, num_jobs + 1)]
    accelerators = accelerators_make(*["gpu gpu gpu gpu"] * (num_jobs // 8 + 1))
    for seed in range(3):
        lucky = random.Random(seed).sample(range(1, num_jobs + 1), len(accelerators))
        held = {job_id: (one.id,) for job_id, one in zip(lucky, accelerators, strict=True)}
        shares = sia(snapshot_make(accelerators, *jobs, held=held, now=1000.0)).shares
        assert {i: share.count for i, share in shares.items()} == dict.fromkeys(held, 1)


# Gavel


def test_time_fractions_of_the_example_with_a_known_answer() -> None:
    """Two jobs on one fast and one slow accelerator.

    The first is 3 times as fast on the fast one, the second twice; equal shares of the time give
    them 2 and 1.5. With the first on the fast one for the time x, the second for 1 - x, their
    shares are (1 + 2x) / 2 and (2 - x) / 1.5: equal, and 1, at x = 0.5.
    """
    found = time_fractions(
        np.array([[3.0, 1.0], [2.0, 1.0]]), np.ones((2, 2)), np.ones(2), np.ones(2)
    )
    assert found == pytest.approx(np.full((2, 2), 0.5), abs=1e-4)


def test_time_fractions_favour_the_comparative_advantage() -> None:
    """Equal shares give 5.5 and 1.05; x on the fast one: (1 + 9x) / 5.5 = (1.1 - .1x) / 1.05.

    x = 0.8897, and both have 1.637 of an equal share, 1.0 of which would be x = 0.5.
    """
    found = time_fractions(
        np.array([[10.0, 1.0], [1.1, 1.0]]), np.ones((2, 2)), np.ones(2), np.ones(2)
    )
    x = (5.5 * 1.1 - 1.05) / (9 * 1.05 + 5.5 * 0.1)
    expected = np.array([[x, 1 - x], [1 - x, x]])
    assert found == pytest.approx(expected, abs=1e-4)


def test_time_fractions_count_weights_and_spend_what_is_left() -> None:
    # One accelerator: the heavier job has three times the time of the other one.
    shared = time_fractions(np.ones((2, 1)), np.ones((2, 1)), np.array([3.0, 1.0]), np.ones(1))
    assert shared == pytest.approx(np.array([[0.75], [0.25]]), abs=1e-4)
    # The first can use only the slow kind; the second is not held down to the first one's share.
    left = time_fractions(
        np.array([[0.0, 1.0], [4.0, 1.0]]), np.ones((2, 2)), np.ones(2), np.array([3.0, 1.0])
    )
    assert left[0, 1] == pytest.approx(1.0, abs=1e-4)
    assert left[1, 0] == pytest.approx(1.0, abs=1e-4)


def test_gavel_rounds_realise_the_fractions() -> None:
    """One accelerator, three jobs, the first of twice the weight: half the rounds are its own."""
    jobs = [job_of(i, most=1, weight=2.0 if i == 1 else 1.0, resize_s=0.0) for i in (1, 2, 3)]
    snapshot = snapshot_make(accelerators_make("gpu"), *jobs)
    rounds = dict.fromkeys((1, 2, 3), 0)
    for number in range(40):
        snapshot = dataclasses.replace(snapshot, now=number * ROUND_S)
        decision = gavel(snapshot)
        (running,) = decision.shares
        rounds[running] += 1
        snapshot = dataclasses.replace(snapshot, held={running: (1,)}, carried=decision.carried)
    assert rounds == {1: pytest.approx(20, abs=1), 2: pytest.approx(10, abs=1), 3: rounds[3]}


def test_gavel_keeps_a_round_and_gives_out_what_becomes_free() -> None:
    jobs = [job_of(i, most=1) for i in (1, 2, 3)]
    one = snapshot_make(accelerators_make("gpu gpu"), *jobs)
    first = gavel(one)
    assert set(first.shares) == {1, 2}
    held = {1: (1,), 2: (2,)}
    during = dataclasses.replace(one, now=60.0, held=held, carried=first.carried)
    assert set(gavel(during).shares) == {1, 2}
    ended = dataclasses.replace(during, jobs=tuple(jobs[1:]), held={2: (2,)})
    assert set(gavel(ended).shares) == {2, 3}
    later = gavel(dataclasses.replace(during, now=ROUND_S))
    assert 3 in later.shares
    assert "33 %" not in str(later.reasons[3])
    assert "67 % of the time on 1 gpu" in str(later.reasons[3])


# Shortest remaining time first


def test_srtf_serves_who_ends_first_and_the_unknown_last() -> None:
    jobs = [
        job_of(1, remaining_examples=800.0),  # 100 s on all 8
        job_of(2, remaining_examples=400.0),
        job_of(3),
    ]
    decision = srtf(snapshot_make(TWO_NODES, *jobs))
    assert {i: share.count for i, share in decision.shares.items()} == {2: 8}
    assert str(decision.reasons[2]) == (
        "Gets its full demand of 8 of 8 gpu: it would end in 50 s, 0 jobs would end sooner."
    )
    assert str(decision.reasons[1]) == (
        "Waits for 8 of kind gpu, its full demand: 0 of 8 gpu left, the rest goes to 1 job before "
        "it; once started it would end in 2 min."
    )
    assert "how long it will take is not known" in str(decision.reasons[3])


def test_srtf_demand_is_what_a_job_goes_fastest_with() -> None:
    """Beyond 3 accelerators it crosses nodes of 3 and is slower."""
    job = job_of(1, remaining_examples=10.0, performance=Curve(spread=0.3), most=6)
    nodes = accelerators_make("gpu gpu gpu", "gpu gpu gpu")
    assert srtf(snapshot_make(nodes, job)).shares[1].count == 3


def test_srtf_preempts_for_clearly_shorter_jobs_only() -> None:
    running = job_of(1, remaining_examples=800.0, resize_s=0.0)
    held = {1: tuple(range(1, 9))}
    little = job_of(2, remaining_examples=700.0)
    much = job_of(2, remaining_examples=600.0)
    assert set(srtf(snapshot_make(TWO_NODES, running, little, held=held)).shares) == {1}
    assert set(srtf(snapshot_make(TWO_NODES, running, much, held=held)).shares) == {2}
    dear = dataclasses.replace(running, resize_s=10.0)
    assert set(srtf(snapshot_make(TWO_NODES, dear, much, held=held)).shares) == {1}


def test_srtf_tries_out_jobs_of_unknown_speed_for_a_minute() -> None:
    known = job_of(1, remaining_examples=400.0)
    new = job_of(2, remaining_examples=1e9, performance=None)
    first = srtf(snapshot_make(TWO_NODES, known, new))
    assert set(first.shares) == {2}
    assert "has 60 s to show how fast it goes" in str(first.reasons[2])
    tried = dataclasses.replace(new, attained_accelerator_s=8 * 60.0)
    assert set(srtf(snapshot_make(TWO_NODES, known, tried)).shares) == {1}


def test_gavel_keeps_no_job_on_a_kind_that_turns_out_not_to_run_it() -> None:
    """Its speed became known within the round."""
    nodes = accelerators_make("slow slow", "fast fast")
    job = dataclasses.replace(job_make(1, most=2), remaining_examples=1e5)
    first = snapshot_make(nodes, job, now=1000.0)
    then = dataclasses.replace(after(first, decide(first, "gavel")), now=1060.0)
    [held] = then.held.values()
    kind, other = ("slow", "fast") if held == (1, 2) else ("fast", "slow")
    known = dataclasses.replace(then.jobs[0], performance=Speed(by_kind={kind: 0.0}))
    decision = gavel(dataclasses.replace(then, jobs=(known,)))
    assert decision.shares[1].kind == other


@pytest.mark.parametrize("num_others", [0, 1])
def test_gavel_gives_the_jobs_of_a_user_with_a_limit_turns(num_others: int) -> None:
    """Alone they began a round at every decision; beside others no time of theirs was counted."""
    own = [dataclasses.replace(job_make(one, most=5 - one), project=1, user=1) for one in (1, 4)]
    others = [job_make(9, most=2)][:num_others]
    snapshot = dataclasses.replace(
        snapshot_make(TWO_NODES, *own, *others, now=1000.0),
        projects={1: ProjectQuota(user_limit=4)},
    )
    turns = []
    for _ in range(14):
        plan = decide(snapshot, "gavel")
        turns.append(bool(plan.resizes))
        snapshot = dataclasses.replace(after(snapshot, plan), now=snapshot.now + ROUND_S / 6.0)
    assert [cycle for cycle, is_turn in enumerate(turns) if is_turn] == [0, 6, 12]
