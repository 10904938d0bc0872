"""The step-time model: exact where it was measured, straight lines elsewhere, never falling."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimates.step_time import (
    SAMPLES_LIMIT,
    Sample,
    sample_add,
    samples_bounded,
    step_time_fit,
    sync_seconds,
    sync_time_fit,
)
from tests.support.present import present


def samples(**seconds: float) -> dict[int, Sample]:
    """Make samples of 10 steps each from `v4=0.2` and the like."""
    return {int(name[1:]): Sample(10, value, value) for name, value in seconds.items()}


def test_a_sample_keeps_the_mean_of_all_steps_and_a_recent_one() -> None:
    sample = sample_add(None, 10, 0.2)
    assert sample == Sample(10, 0.2, 0.2)
    sample = sample_add(sample, 30, 0.6)
    assert sample.count == 40
    assert sample.mean_s == pytest.approx(0.5)  # (10 * 0.2 + 30 * 0.6) / 40
    assert sample.recent_s == pytest.approx(0.32)  # 0.2 + 0.3 * 0.4


@pytest.mark.parametrize(("count", "seconds"), [(0, 1.0), (1, 0.0), (1, float("nan"))])
def test_a_sample_without_time_is_refused(count: int, seconds: float) -> None:
    with pytest.raises(ValueError, match="steps that took time"):
        sample_add(None, count, seconds)


def test_a_straight_line_is_found_and_continued() -> None:
    fitted = present(step_time_fit(samples(v1=0.15, v2=0.25, v4=0.45)))
    assert fitted.slope_s == pytest.approx(0.1)
    assert [fitted(number) for number in (1, 2, 3, 4, 10)] == pytest.approx(
        [0.15, 0.25, 0.35, 0.45, 1.05]
    )


def test_measured_points_count_more_than_the_line() -> None:
    fitted = present(step_time_fit(samples(v2=0.2, v4=0.3, v8=0.8)))
    assert [fitted(number) for number in (2, 3, 4, 6, 8)] == pytest.approx(
        [0.2, 0.25, 0.3, 0.55, 0.8]
    )


def test_one_point_is_taken_as_proportional() -> None:
    fitted = present(step_time_fit(samples(v4=0.4)))
    assert [fitted(number) for number in (1, 2, 8)] == pytest.approx([0.1, 0.2, 0.8])


def test_noise_that_falls_is_pooled() -> None:
    fitted = step_time_fit(
        {1: Sample(10, 0.1, 0.1), 2: Sample(30, 0.3, 0.3), 3: Sample(10, 0.2, 0.2)}
    )
    assert fitted is not None
    assert fitted.values_s == pytest.approx((0.1, 0.275, 0.275))  # (30 * 0.3 + 10 * 0.2) / 40


def test_a_slower_accelerator_has_the_same_shape() -> None:
    fitted = present(step_time_fit(samples(v1=0.15, v2=0.25)))
    slow = fitted.scaled(2.0)
    assert [slow(number) for number in (1, 2, 5)] == pytest.approx([0.3, 0.5, 1.1])


def test_the_exchange_is_nothing_alone_and_constant_from_one_point() -> None:
    assert sync_time_fit({}) is None
    assert sync_time_fit(samples(v1=0.3)) is None
    lone = sync_time_fit(samples(v2=0.02))
    assert [sync_seconds(lone, number) for number in (1, 2, 9)] == [0.0, 0.02, 0.02]
    line = sync_time_fit(samples(v2=0.02, v4=0.04))
    assert sync_seconds(line, 8) == pytest.approx(0.08)
    assert sync_seconds(None, 8) == 0.0


def test_samples_have_a_bound_and_the_least_seen_go() -> None:
    many = {point: Sample(point, 1.0, 1.0) for point in range(1, SAMPLES_LIMIT + 11)}
    assert list(samples_bounded(many)) == list(range(11, SAMPLES_LIMIT + 11))


@given(
    st.dictionaries(
        st.integers(1, 64),
        st.builds(
            lambda count, seconds: Sample(count, seconds, seconds),
            st.integers(1, 1000),
            st.floats(1e-4, 10.0),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_time_never_falls_and_is_never_negative(measured: dict[int, Sample]) -> None:
    fitted = present(step_time_fit(measured))
    assert fitted.slope_s >= 0.0
    times = [fitted(number) for number in range(1, 100)]
    assert times[0] >= 0.0
    assert all(b >= a * (1 - 1e-12) for a, b in pairwise(times))
    ordered = [measured[point].recent_s for point in sorted(measured)]
    if ordered == sorted(ordered):
        assert [fitted(point) for point in sorted(measured)] == pytest.approx(ordered)
