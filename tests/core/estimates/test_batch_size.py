"""Changes of a batch size: the formula by hand, the maximum by brute force, the brakes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimates.batch_size import CHANGE_GAIN, batch_bounds, batch_size_choose
from controlplane.core.estimates.goodput import (
    AdaptiveBatchPerformance,
    VirtualNodes,
    efficiency,
)
from controlplane.core.estimates.throughput import ThroughputModel
from tests.support.present import present

#: On two accelerators 8 virtual nodes are 4 slices: a step takes 20 ms + 0.1 ms an example.
MODEL = ThroughputModel(0.005, 0.0002)


def performance(model=MODEL, number=8, **changes):
    values = {"submitted": 64, "low": 32, "high": 1024, "multiple": 8, "noise_scale": 448.0}
    return AdaptiveBatchPerformance({"fast": model}, VirtualNodes(number), **(values | changes))


def choose(present=64, model=MODEL, num_accelerators=2, num_nodes=1, **changes):
    job = performance(model, **changes)
    return batch_size_choose(job, present, "fast", num_accelerators, num_nodes)


def test_efficiency_by_hand():
    assert efficiency(64, 64, 448.0) == 1.0
    assert efficiency(128, 64, 448.0) == pytest.approx(512 / 576)
    assert efficiency(10**6, 64, math.inf) == 1.0
    for impossible in (-1.0, math.nan):
        with pytest.raises(ValueError, match="noise scale"):
            efficiency(64, 64, impossible)


def test_it_doubles_at_most_and_says_why():
    choice = present(choose())
    assert choice.batch_size == 128  # the maximum is at sqrt(0.02 * 448 / 0.0001) = 299
    assert choice.gain == pytest.approx((128 / 0.0328 * 512 / 576) / (64 / 0.0264))
    assert choice.reason == (
        "noise scale 448: 64 → 128 examples a step promise 1.43x the useful examples a second "
        "(2424 → 3469; step 26 → 33 ms on 2 accelerators, an example is worth 1.00 → 0.89)"
    )


def test_it_stops_near_the_maximum():
    assert performance().batch_size("fast", 2, 1) == pytest.approx(299, rel=0.05)
    assert choose(present=256) is None
    assert choose(present=296) is None
    assert choose(present=360) is None


def test_it_shrinks_by_half_at_most_when_noise_falls():
    choice = present(choose(present=512, noise_scale=10.0))
    assert choice.batch_size == 256


def test_a_small_gain_changes_nothing():
    flat = ThroughputModel(0.0, 0.001)  # time in proportion: nothing but the noise scale counts
    assert choose(model=flat, noise_scale=2000.0) is None
    choice = present(choose(model=flat, noise_scale=10.0))
    assert choice.batch_size == 32
    assert choice.gain == pytest.approx(74 / 42)


def test_the_exchange_between_machines_makes_larger_batches_worth_it():
    far = ThroughputModel(0.005, 0.0002, network_base_s=0.5)
    assert choose(present=256, model=far, num_nodes=1) is None
    assert choose(present=256, model=far, num_nodes=2).batch_size == 512


def test_no_size_is_chosen_for_accelerators_that_the_job_cannot_use():
    assert choose(num_accelerators=9) is None


def test_a_size_out_of_bounds_is_brought_back():
    assert choose(present=2048, high=256, noise_scale=math.inf) is None  # fewer examples a second
    assert choose(present=512, high=128, noise_scale=0.0).batch_size == 128


def test_bounds_are_multiples_of_the_virtual_nodes():
    assert batch_bounds(30, 100, 8) == (32, 96)
    assert batch_bounds(30, 1000, 8, at_most=75) == (32, 72)
    assert batch_bounds(33, 39, 8) is None
    assert batch_bounds(64, 128, 8, at_most=63) is None


@given(
    base=st.floats(0.0, 1.0),
    slope=st.floats(1e-6, 0.01),
    noise=st.floats(0.0, 1e5) | st.just(math.inf),
    multiple=st.integers(1, 20),
    low=st.integers(1, 30),
    span=st.integers(0, 60),
    now=st.integers(0, 60),
)
def test_it_comes_near_the_best_within_reach(base, slope, noise, multiple, low, span, now):
    low, high = low * multiple, (low + span) * multiple
    size = min(low + now * multiple, high)
    job = performance(
        ThroughputModel(base, slope),
        number=1,
        submitted=size,
        low=low,
        high=high,
        multiple=multiple,
        noise_scale=noise,
    )

    def value(candidate):
        worth = float(efficiency(candidate, size, noise))
        return candidate / job.step_s(candidate, "fast", 1, 1) * worth

    within = [
        candidate
        for candidate in range(low, high + 1, multiple)
        if size / 2 <= candidate <= 2 * size
    ]
    best = max(value(candidate) for candidate in within)
    choice = batch_size_choose(job, size, "fast", 1, 1)
    chosen = size if choice is None else choice.batch_size
    assert chosen in within
    # 64 candidates lie at most 8 % apart, so the best of them is within 2 % of the best of all.
    gain = 1.0 if choice is not None else 1.0 + CHANGE_GAIN
    assert best <= value(chosen) * gain * 1.02
