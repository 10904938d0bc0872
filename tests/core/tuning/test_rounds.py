"""Rounds of parallel trials: their losses, the verdict, and the values that they try."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.protocol.tuning import NUM_POINTS, TunableRange, TuningSpec
from controlplane.core.tuning.convergence import Verdict
from controlplane.core.tuning.rounds import (
    LossSpan,
    TrialRun,
    loss_points,
    next_num_steps,
    proposal,
    round_judge,
)
from controlplane.core.tuning.search import TrialEnd

SPEC = TuningSpec(
    space={
        "learning_rate": TunableRange(low=1e-4, high=1.0, log=True),
        "momentum": TunableRange(low=0.1, high=0.9),
        "weight_decay": TunableRange(low=0.0, high=0.1),
    }
)
points = st.lists(st.floats(0.01, 100.0), min_size=NUM_POINTS, max_size=NUM_POINTS).map(tuple)
runs = st.none() | points


def line(fall: float) -> tuple[float, ...]:
    """Return losses that fall from 2 by `fall` in all, evenly."""
    return tuple(2.0 - fall * number / NUM_POINTS for number in range(1, NUM_POINTS + 1))


def ends(own: TrialRun, *others: TrialRun, present: float = math.inf) -> list[TrialEnd]:
    return [one.end for one in round_judge(2.0, present, own, others, 100)]


def test_the_fastest_trial_that_converges_is_kept() -> None:
    found = ends(
        TrialRun(1, line(0.5)),
        TrialRun(2, line(0.9)),
        TrialRun(3, (*line(1.5)[:4], 2.0, *line(1.5)[5:])),
        TrialRun(4, (*line(0.5)[:9], 30.0)),
        TrialRun(5, None),
        TrialRun(6, None, is_diverged=True),
    )
    assert found == [
        TrialEnd.SLOWER,
        TrialEnd.KEPT,
        TrialEnd.UNSTABLE,
        TrialEnd.DIVERGED,
        TrialEnd.UNFINISHED,
        TrialEnd.DIVERGED,
    ]


def test_the_job_goes_on_unless_another_trial_is_faster() -> None:
    same = TrialRun(2, line(0.5))
    assert ends(TrialRun(1, line(0.5)), same) == [TrialEnd.KEPT, TrialEnd.SLOWER]
    assert ends(TrialRun(1, line(-0.5)), same) == [TrialEnd.UNSTABLE, TrialEnd.KEPT]
    worse = TrialRun(2, line(-1.0))
    assert ends(TrialRun(1, line(-0.5)), worse) == [TrialEnd.UNSTABLE, TrialEnd.UNSTABLE]


def test_a_trial_behind_the_job_is_not_kept() -> None:
    """The job has trained on to 1.2 meanwhile, so only the third trial would bring it further."""
    own, behind, ahead = (
        TrialRun(*row) for row in ((1, line(0.1)), (2, line(0.7)), (3, line(0.9)))
    )
    kept, slower, overtaken = TrialEnd.KEPT, TrialEnd.SLOWER, TrialEnd.OVERTAKEN
    assert ends(own, behind, present=1.2) == [kept, overtaken]
    assert ends(own, behind, ahead, present=1.2) == [slower, slower, kept]
    assert ends(own, behind, ahead, present=1.0) == [kept, overtaken, overtaken]
    assert ends(TrialRun(1, line(-0.1)), behind, present=1.2) == [TrialEnd.UNSTABLE, overtaken]
    assert ends(TrialRun(1, line(0.8)), behind, present=1.2) == [kept, slower]


@given(
    points,
    st.lists(st.tuples(runs, st.booleans()), max_size=6),
    st.integers(1, 50),
    st.floats(0.01, 100.0) | st.just(math.inf),
)
def test_only_the_fastest_converging_trial_that_is_not_behind_is_kept(
    own: tuple[float, ...],
    others: list[tuple[tuple[float, ...] | None, bool]],
    tenth: int,
    present: float,
) -> None:
    rows = [TrialRun(number, *row) for number, row in enumerate(others, start=2)]
    found = round_judge(2.0, present, TrialRun(1, own), rows, NUM_POINTS * tenth)
    assert [one.number for one in found] == list(range(1, len(others) + 2))
    kept = [one for one in found if one.end is TrialEnd.KEPT]
    lasts = {row.number: row.points[-1] for row in rows if row.points} | {1: -math.inf}
    able = [
        one for one in found if one.verdict is Verdict.CONVERGING and lasts[one.number] < present
    ]
    assert len(kept) == min(len(able), 1)
    for one in kept:
        assert one in able
        assert one.speed == max(row.speed for row in able) > 0.0
    for one in found:
        is_faster = one.speed > max((row.speed for row in kept), default=0.0)
        assert (one.end is TrialEnd.OVERTAKEN) == is_faster
    for row, one in zip([TrialRun(1, own), *rows], found, strict=True):
        assert (one.verdict is None) == (row.points is None and not row.is_diverged)


@given(st.data(), st.integers(0, 30), st.integers(1, 7))
def test_points_do_not_depend_on_how_steps_are_reported(
    data: st.DataObject, first: int, tenth: int
) -> None:
    """Within a tenth steps have one loss, so any spans that respect tenths give the same means."""
    num_steps, start = NUM_POINTS * tenth, first + 1
    cuts = {start, start + num_steps + 5, *(start + number * tenth for number in range(11))}
    cuts |= set(data.draw(st.lists(st.integers(start, start + num_steps), max_size=20)))
    spans = [
        LossSpan(low, high - 1, float(min((low - start) // tenth, NUM_POINTS)))
        for low, high in pairwise(sorted(cuts))
    ]
    repeated = data.draw(st.lists(st.sampled_from(spans), max_size=3))
    before = [LossSpan(0, first, 77.0)]
    shuffled = data.draw(st.permutations(before + spans + repeated))
    assert loss_points(shuffled, start, num_steps) == tuple(map(float, range(NUM_POINTS)))
    hole = data.draw(st.sampled_from([span for span in spans if span.first < start + num_steps]))
    rest = [span for span in shuffled if span != hole]
    assert loss_points(rest, start, num_steps) is None


def test_a_span_over_several_tenths_counts_for_each() -> None:
    spans = [LossSpan(5, 11, 1.0), LossSpan(12, 24, 4.0)]
    found = loss_points(spans, 5, 20)
    assert found == (1.0, 1.0, 1.0, 2.5, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0)
    lost = loss_points([LossSpan(1, 30, None)], 5, 20)
    assert lost is not None
    assert all(math.isnan(point) for point in lost)


def test_trials_grow_until_one_converges_and_is_not_overtaken() -> None:
    unstable, own = ("unstable", "unstable"), ("converging", "kept")
    assert next_num_steps(100, 200, [unstable]) == 200
    assert next_num_steps(200, 399, [unstable]) == 200
    assert next_num_steps(100, math.inf, [own, unstable]) == 100
    assert next_num_steps(100, math.inf, [own, ("converging", "overtaken")]) == 200
    assert next_num_steps(100, math.inf, [own, ("", "unfinished")]) == 100


@given(st.integers(0, 2**63 - 1), st.integers(1, 400))
def test_proposals_lie_in_the_space_and_are_always_the_same(seed: int, number: int) -> None:
    found = proposal(SPEC, seed, number)
    assert found == proposal(SPEC, seed, number)
    assert tuple(found) == SPEC.names
    for name, value in found.items():
        assert SPEC.space[name].low <= value <= SPEC.space[name].high


@pytest.mark.parametrize("name", SPEC.names)
def test_proposals_fill_the_space_evenly(name: str) -> None:
    """Of 32 values each quarter of a range has 6 to 10, which random ones need not have."""
    span = SPEC.space[name]
    parts = []
    for number in range(1, 33):
        value = proposal(SPEC, 3, number)[name]
        if span.log:
            parts.append(math.log(value / span.low) / math.log(span.high / span.low))
        else:
            parts.append((value - span.low) / (span.high - span.low))
    counts = [sum(low <= part < low + 0.25 for part in parts) for low in (0.0, 0.25, 0.5, 0.75)]
    assert all(6 <= count <= 10 for count in counts), counts
