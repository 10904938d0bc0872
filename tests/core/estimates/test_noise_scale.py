"""The noise scale's formulas against numbers worked out by hand, and against known gradients."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimates.noise_scale import (
    SMOOTHING,
    GradientNoise,
    NoiseAverage,
    adascale_gain,
    gradient_noise,
    noise_scale,
)
from tests.support.present import present


def test_two_gradients_by_hand() -> None:
    """Gradients (3, 1) and (1, 1): mean (2, 1), |mean|² 5, mean |g|² (10 + 2) / 2 = 6."""
    noise = gradient_noise(6.0, 2, 5.0)
    assert noise == GradientNoise(sqr=4.0, var=1.0)


def test_four_equal_gradients_have_no_noise() -> None:
    assert gradient_noise(9.0, 4, 9.0) == GradientNoise(sqr=9.0, var=0.0)


@pytest.mark.parametrize(
    ("squares", "num", "mean"),
    [(6.0, 1, 5.0), (6.0, 0, 5.0), (math.inf, 4, 5.0), (6.0, 4, math.nan)],
)
def test_too_few_slices_or_overflow_tell_nothing(squares: float, num: int, mean: float) -> None:
    assert gradient_noise(squares, num, mean) is None


@given(
    shares=st.lists(st.integers(1, 9), min_size=2, max_size=6),
    square=st.floats(0.1, 10),
    variance=st.floats(0.1, 10),
)
def test_expected_squares_give_back_the_truth_for_any_slices(
    shares: list[int], square: float, variance: float
) -> None:
    """Put in the expectations of the module's text; `variance` is one example's."""
    total = sum(shares)
    mean_of_squares = sum(share / total * (square + variance / share) for share in shares)
    noise = present(gradient_noise(mean_of_squares, len(shares), square + variance / total))
    assert noise.sqr == pytest.approx(square, rel=1e-9)
    assert noise.var == pytest.approx(variance / total, rel=1e-9)


def test_variance_falls_with_the_batch() -> None:
    assert GradientNoise(4.0, 1.0).at_batch_size(40, 100) == GradientNoise(4.0, 0.4)


def test_averages_are_not_pulled_to_zero() -> None:
    average = NoiseAverage()
    assert average.mean() is None
    once = present(average.with_value(GradientNoise(4.0, 1.0)).mean())
    assert (once.sqr, once.var) == pytest.approx((4.0, 1.0))
    twice = average.with_value(GradientNoise(4.0, 1.0)).with_value(GradientNoise(8.0, 3.0)).mean()
    assert twice is not None
    weight = 1 + SMOOTHING
    assert twice.sqr == pytest.approx((SMOOTHING * 4.0 + 8.0) / weight)
    assert twice.var == pytest.approx((SMOOTHING * 1.0 + 3.0) / weight)


def test_noise_scale_in_examples() -> None:
    assert noise_scale(GradientNoise(sqr=4.0, var=1.0), 64) == 16.0
    assert noise_scale(GradientNoise(sqr=-0.1, var=1.0), 64) == math.inf
    assert noise_scale(GradientNoise(sqr=4.0, var=-0.5), 64) == 0.0
    with pytest.raises(ValueError, match="batch_size"):
        noise_scale(GradientNoise(1.0, 1.0), 0)


def test_adascale_gain() -> None:
    """(1 + 4) / (1/2 + 4) = 10/9; all noise: S; no noise: 1."""
    assert adascale_gain(GradientNoise(sqr=4.0, var=1.0), 2.0) == pytest.approx(10 / 9)
    assert adascale_gain(GradientNoise(sqr=0.0, var=1.0), 2.0) == 2.0
    assert adascale_gain(GradientNoise(sqr=1.0, var=0.0), 2.0) == 1.0
    assert adascale_gain(GradientNoise(sqr=0.0, var=0.0), 2.0) == 1.0
    with pytest.raises(ValueError, match="scale"):
        adascale_gain(GradientNoise(1.0, 1.0), 0.0)
