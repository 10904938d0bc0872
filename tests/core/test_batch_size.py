"""The choice of a batch size: the formula by hand, the maximum by brute force, the brakes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimates.batch_size import (
    CHANGE_GAIN,
    BatchBounds,
    BatchQuestion,
    StepLine,
    batch_bounds,
    batch_size_choose,
    efficiency,
    goodput,
    step_line,
)
from controlplane.core.estimates.step_time import Sample, StepTime


def question(**changes):
    values = {
        "batch_size": 64,
        "submitted": 64,
        "bounds": BatchBounds(32, 1024, 8),
        "noise_scale": 448.0,
        "num_accelerators": 2,
        "line": StepLine(0.020, 0.0001),
    }
    return BatchQuestion(**(values | changes))


def timed(*rows):
    return {(number, size): Sample(50, seconds, seconds) for (number, size), seconds in rows}


def test_goodput_by_hand():
    line = StepLine(0.020, 0.0001)
    assert line(100) == pytest.approx(0.030)
    assert efficiency(64, 64, 448.0) == 1.0
    assert efficiency(128, 64, 448.0) == pytest.approx(512 / 576)
    assert goodput(line, 128, 64, 448.0) == pytest.approx(128 / 0.0328 * 512 / 576)
    assert efficiency(10**6, 64, math.inf) == 1.0


def test_it_doubles_at_most_and_says_why():
    choice = batch_size_choose(question())
    assert choice is not None
    assert choice.batch_size == 128  # the maximum is at sqrt(0.02 * 448 / 0.0001) = 299
    assert choice.gain == pytest.approx((128 / 0.0328 * 512 / 576) / (64 / 0.0264))
    assert choice.reason == (
        "noise scale 448: 64 → 128 examples a step promise 1.43x the useful examples a second "
        "(2424 → 3469; step 26 → 33 ms on 2 accelerators, an example is worth 1.00 → 0.89)"
    )


def test_it_stops_at_the_maximum():
    near = batch_size_choose(question(batch_size=200))
    assert near is None or near.batch_size in (296, 304)
    assert batch_size_choose(question(batch_size=296)) is None
    assert batch_size_choose(question(batch_size=304)) is None


def test_it_shrinks_by_half_at_most_when_noise_falls():
    choice = batch_size_choose(question(batch_size=512, noise_scale=10.0))
    assert choice is not None
    assert choice.batch_size == 256


def test_a_small_gain_changes_nothing():
    flat = StepLine(0.0, 0.001)  # time in proportion: nothing but the noise scale counts
    assert batch_size_choose(question(line=flat, noise_scale=2000.0)) is None
    choice = batch_size_choose(question(line=flat, noise_scale=10.0))
    assert choice is not None
    assert choice.batch_size == 32
    assert choice.gain == pytest.approx(74 / 42)


def test_a_second_size_is_tried_where_one_was_timed():
    up = batch_size_choose(question(line=None))
    assert up is not None
    assert up.batch_size == 128
    assert up.gain == pytest.approx(2 * 512 / 576)
    assert "only one size has been timed" in up.reason
    down = batch_size_choose(question(line=None, noise_scale=8.0, batch_size=256))
    assert down is not None
    assert down.batch_size == 128
    assert batch_size_choose(question(line=None), may_try=False) is None
    fixed = BatchBounds(64, 64, 8)
    assert batch_size_choose(question(line=None, bounds=fixed)) is None


def test_bounds_are_multiples_of_the_virtual_nodes():
    assert batch_bounds(30, 100, 8) == BatchBounds(32, 96, 8)
    assert batch_bounds(30, 1000, 8, at_most=75) == BatchBounds(32, 72, 8)
    assert batch_bounds(33, 39, 8) is None
    assert batch_bounds(64, 128, 8, at_most=63) is None


def test_two_sizes_on_the_same_accelerators_make_a_line():
    line = step_line(timed(((2, 64), 0.0264), ((2, 128), 0.0328), ((1, 64), 9.0)), 2)
    assert line is not None
    assert line.base_s == pytest.approx(0.020)
    assert line.slope_s == pytest.approx(0.0001)


def test_other_allocations_tell_by_examples_per_accelerator():
    # One accelerator: 10 ms + 0.2 ms an example. Two of them add an exchange of 4 ms.
    sync = StepTime((2,), (0.004,), 0.004, 0.0, 0.0)
    times = timed(((1, 64), 0.0228), ((1, 128), 0.0356))
    line = step_line(times, 2, sync)
    assert line is not None
    assert line(128) == pytest.approx(0.010 + 0.0002 * 64 + 0.004)
    seen = step_line(times | timed(((2, 128), 0.0536)), 2, sync)  # twice as slow as was thought
    assert seen is not None
    assert seen(128) == pytest.approx(0.0536)


def test_one_size_or_too_few_steps_make_no_line():
    assert step_line({}, 1) is None
    assert step_line(timed(((1, 64), 0.02)), 1) is None
    few = {(1, 64): Sample(50, 0.02, 0.02), (1, 128): Sample(4, 0.03, 0.03)}
    assert step_line(few, 1) is None


def test_a_noise_scale_is_not_negative():
    with pytest.raises(ValueError, match="noise scale"):
        efficiency(64, 64, -1.0)
    with pytest.raises(ValueError, match="noise scale"):
        efficiency(64, 64, math.nan)


@given(
    base=st.floats(0.0, 1.0),
    slope=st.floats(1e-6, 0.01),
    noise=st.floats(0.0, 1e5) | st.just(math.inf),
    multiple=st.integers(1, 20),
    low=st.integers(1, 30),
    span=st.integers(0, 60),
    now=st.integers(0, 60),
)
def test_it_is_the_best_within_reach(base, slope, noise, multiple, low, span, now):
    bounds = BatchBounds(low * multiple, (low + span) * multiple, multiple)
    size = bounds.nearest((low + now) * multiple)
    line = StepLine(base, slope)
    asked = question(batch_size=size, submitted=size, bounds=bounds, noise_scale=noise, line=line)

    def value(candidate):
        return goodput(line, candidate, size, noise)

    within = [
        candidate
        for candidate in range(bounds.low, bounds.high + 1, multiple)
        if size / 2 <= candidate <= 2 * size
    ]
    best = max(value(candidate) for candidate in within)
    choice = batch_size_choose(asked)
    if choice is None:
        assert best < value(size) * (1.0 + CHANGE_GAIN) * (1.0 + 1e-9)
    else:
        assert choice.batch_size in within
        assert value(choice.batch_size) == pytest.approx(best, rel=1e-9)
        assert choice.gain >= 1.0 + CHANGE_GAIN
