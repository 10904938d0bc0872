"""Loss prediction: curves found again, the class told apart, and what odd histories do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimates.loss_curves import (
    CurveClass,
    ExponentialCurve,
    SublinearCurve,
)
from controlplane.core.estimates.loss_prediction import POINTS_LIMIT, LossFit, loss_fit
from tests.support.present import present

SUBLINEAR = SublinearCurve(height=2.0, a=0.001, b=0.05, floor=0.3, at=1.0)
EXPONENTIAL = ExponentialCurve(height=2.0, rate=0.08, floor=0.3, at=1.0)


def history(curve: Callable[[float], float], number: int) -> list[tuple[float, float]]:
    return [(float(x), curve(float(x))) for x in range(1, number + 1)]


def played(curve: Callable[[float], float], number: int) -> LossFit:
    points = history(curve, number)
    fit = None
    for end in range(5, number + 1):
        fit = loss_fit(points[:end], fit)
    assert fit is not None
    return fit


def test_curves_are_what_the_formulas_say() -> None:
    # u = 10: 2 / (.1 + .5 + 1) + .3 and 2 * e^-.8 + .3
    assert SUBLINEAR(11.0) == pytest.approx(2.0 / 1.6 + 0.3)
    assert EXPONENTIAL(11.0) == pytest.approx(2.0 * math.exp(-0.8) + 0.3)


@pytest.mark.parametrize("curve", [SUBLINEAR, EXPONENTIAL])
def test_another_origin_is_the_same_curve(curve: SublinearCurve | ExponentialCurve) -> None:
    moved = curve.moved(21.0)
    assert moved.at == 21.0
    assert [moved(x) for x in (21.0, 30.0, 99.0)] == pytest.approx(
        [curve(x) for x in (21.0, 30.0, 99.0)]
    )


@pytest.mark.parametrize("curve", [SUBLINEAR, EXPONENTIAL])
def test_the_future_of_a_known_curve_is_foretold(curve: Callable[[float], float]) -> None:
    fit = played(curve, 40)
    assert fit.num_points == 40
    assert fit.loss(0.0) == pytest.approx(curve(40.0), rel=1e-3)
    assert fit.loss(10.0) == pytest.approx(curve(50.0), rel=5e-3)
    # the largest change was the first one
    assert fit.normaliser == pytest.approx(curve(1.0) - curve(2.0))


def test_the_class_is_told_by_what_came_after() -> None:
    assert played(SUBLINEAR, 40).curve_class is CurveClass.SUBLINEAR
    assert played(EXPONENTIAL, 40).curve_class is CurveClass.EXPONENTIAL
    # all at once: the last fifth of the points judges
    cold = present(loss_fit(history(EXPONENTIAL, 40)))
    assert cold.curve_class is CurveClass.EXPONENTIAL


def test_four_points_are_not_enough() -> None:
    assert loss_fit(history(SUBLINEAR, 4)) is None
    assert loss_fit(history(SUBLINEAR, 5)) is not None


def test_the_normaliser_and_the_count_survive_the_window() -> None:
    points = history(EXPONENTIAL, 150)
    fit = None
    for end in range(5, 151):
        fit = loss_fit(points[max(0, end - POINTS_LIMIT) : end], fit)
    assert fit is not None
    assert fit.num_points == 150
    assert fit.normaliser == pytest.approx(EXPONENTIAL(1.0) - EXPONENTIAL(2.0))


def test_the_newest_points_count_most() -> None:
    # falls by 1 a point to begin with, and by .001 for the last fifteen
    slow = [(20.0 + i, 1.0 - 0.001 * i) for i in range(15)]
    points = [(float(i), 20.0 - i) for i in range(1, 20)] + slow
    fit = present(loss_fit(points))
    assert 0.8 < fit.loss(10.0) < 0.999


def test_losses_that_do_not_fall_are_foretold_to_stay() -> None:
    flat = loss_fit([(float(x), 0.7) for x in range(10)])
    rising = loss_fit([(float(x), 0.7 + 0.1 * x) for x in range(10)])
    assert flat is not None
    assert rising is not None
    assert flat.loss(100.0) == pytest.approx(0.7)
    assert flat.normaliser > 0.0
    # never above what was seen, never into the past
    assert 0.7 <= rising.loss(100.0) <= 1.6


def test_no_negative_loss_is_foretold_where_none_was_seen() -> None:
    line = [(float(x), 1.0 - 0.05 * x) for x in range(19)]
    fit = present(loss_fit(line))
    assert fit.loss(1e6) >= 0.0
    below = present(loss_fit([(x, loss - 5.0) for x, loss in line]))
    assert below.loss(0.0) == pytest.approx(-4.9, abs=0.05)


@pytest.mark.parametrize(
    "points",
    [
        [(1.0, 1.0), (2.0, 0.9), (2.0, 0.8), (3.0, 0.7), (4.0, 0.6)],
        [(1.0, 1.0), (2.0, 0.9), (3.0, math.nan), (4.0, 0.7), (5.0, 0.6)],
    ],
)
def test_impossible_histories_are_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="points must be finite and in rising order"):
        loss_fit(points)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=5, max_size=20),
    st.floats(0.1, 1e9),
)
def test_any_losses_give_finite_falling_curves(losses: list[float], spacing: float) -> None:
    points = [(spacing * (i + 1), loss) for i, loss in enumerate(losses)]
    fit = None
    for end in range(5, len(points) + 1):
        fit = loss_fit(points[:end], fit)
    assert fit is not None
    ahead = [fit.loss(spacing * step) for step in (0.0, 1.0, 10.0, 1e6)]
    assert np.isfinite(ahead).all()
    assert all(before >= after for before, after in itertools.pairwise(ahead))
    assert fit.normaliser > 0.0
