"""The verdict on a trial: by hand, and with the probabilities that follow from its noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.protocol.tuning import NUM_POINTS
from controlplane.core.tuning.convergence import Convergence, Verdict, cannot_win, convergence

LINE = [2.0 - 0.1 * number for number in range(1, NUM_POINTS + 1)]
losses = st.floats(0.01, 100.0)


def test_a_straight_fall_converges_with_its_slope() -> None:
    found = convergence(2.0, LINE, 50)
    assert found.verdict is Verdict.CONVERGING
    assert found.speed == pytest.approx(1.0 / 50)


def test_a_rise_in_between_is_taken_off_the_speed() -> None:
    points = [*LINE[:4], LINE[3] + 0.05, *LINE[5:]]
    found = convergence(2.0, points, 10)
    assert found.verdict is Verdict.CONVERGING
    assert found.speed == pytest.approx((1.0 - 0.05) / 10)


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        ([*LINE[:4], 1.75, *LINE[5:]], Verdict.UNSTABLE),  # rises by 0.15 of 1
        ([2.0 + 0.1 * number for number in range(1, 11)], Verdict.UNSTABLE),
        ([2.0] * 10, Verdict.UNSTABLE),
        ([*LINE[:9], 20.1], Verdict.DIVERGED),
        ([*LINE[:9], 19.9], Verdict.UNSTABLE),
        ([*LINE[:9], math.nan], Verdict.DIVERGED),
        ([math.inf, *LINE[1:]], Verdict.DIVERGED),
    ],
)
def test_verdicts(points: list[float], verdict: Verdict) -> None:
    found = convergence(2.0, points, 10)
    assert found.verdict is verdict
    assert verdict is not Verdict.DIVERGED or found.speed == 0.0


@pytest.mark.parametrize(
    ("drop", "noise", "chance"),
    [(1.0, 0.03, 1.0), (1.0, 0.05, 0.97), (1.0, 0.1, 0.41), (1.0, 0.2, 0.04), (0.0, 1.0, 1.5e-5)],
)
def test_chances_of_being_called_converging(drop: float, noise: float, chance: float) -> None:
    """A steady drop under Gaussian noise of each point; the figures are of ten million draws."""
    draws = 4000
    generator = np.random.default_rng(3)
    steady = 10.0 - drop * np.linspace(0.0, 1.0, NUM_POINTS + 1)
    values = steady + noise * generator.normal(size=(draws, NUM_POINTS + 1))
    found = sum(
        convergence(row[0], row[1:], 10).verdict is Verdict.CONVERGING for row in values.tolist()
    )
    deviation = math.sqrt(draws * chance * (1.0 - chance))
    assert abs(found - draws * chance) <= 4.0 * deviation + 20.0


@given(st.lists(losses, min_size=NUM_POINTS, max_size=NUM_POINTS), losses, st.integers(10, 1000))
def test_speed_is_bounded_by_the_fall(points: list[float], start: float, steps: int) -> None:
    found = convergence(start, points, steps)
    assert 0.0 <= found.speed <= max(0.0, start - points[-1]) / steps
    if found.verdict is Verdict.CONVERGING:
        assert found.speed > 0.0


@given(st.lists(losses, min_size=NUM_POINTS, max_size=NUM_POINTS), losses)
def test_a_shift_of_all_losses_changes_neither_verdict_nor_order(
    points: list[float], start: float
) -> None:
    here = convergence(start, points, 10)
    there = convergence(start + 64.0, [point + 64.0 for point in points], 10)
    if Verdict.DIVERGED not in (here.verdict, there.verdict):
        assert there.speed == pytest.approx(here.speed, abs=1e-9)


@given(
    st.lists(st.floats(0.0, 1.0), min_size=NUM_POINTS, max_size=NUM_POINTS),
    st.integers(3, NUM_POINTS - 1),
)
def test_no_winner_whose_fall_slows_down_is_killed_early(falls: list[float], seen: int) -> None:
    start, points, value = 100.0, [], 100.0
    for fall in sorted(falls, reverse=True):
        value -= fall
        points.append(value)
    speed: Convergence = convergence(start, points, 10)
    assert not cannot_win(start, points[:seen], 10, speed.speed - 1e-9)


def test_a_flat_trial_is_killed_early_if_the_best_is_faster() -> None:
    points = [0.999, 0.998, 0.997]
    assert cannot_win(1.0, points, 10, best_speed=0.01)
    assert not cannot_win(1.0, points[:2], 10, best_speed=0.01)
    assert not cannot_win(1.0, points, 10, best_speed=0.0009)
