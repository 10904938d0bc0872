"""Models that follow measurements: as measured near them, as fitted far from there."""

from __future__ import annotations

import numpy as np
import pytest

from controlplane.core.estimates.goodput import FixedBatchPerformance, VirtualNodes
from controlplane.core.estimates.measured_steps import (
    MOST_SAMPLES,
    MeasuredModel,
    measured_model,
)
from controlplane.core.estimates.throughput import (
    ThroughputModel,
    ThroughputSample,
    throughput_fit,
)

#: Half a second for 40 examples, no exchange.
PLAIN = ThroughputModel(0.1, 0.01)


def off(count: int, factor: float, nodes: int = 1, size: float = 40.0) -> ThroughputSample:
    """Return a sample that takes `factor` times as long as `PLAIN` says."""
    return ThroughputSample(nodes, count, size, factor * float(PLAIN.step_s(count, nodes, size)))


def test_steps_are_as_measured_where_they_were_and_as_modelled_far_away() -> None:
    model = measured_model(PLAIN, [off(8, 1.3)])
    # Errors of 20 % are expected of a model, 3 % of a sample: 0.04 / 0.0409 of the error is kept.
    here = 0.5 * 1.3 ** (0.04 / 0.0409)
    assert model.step_s(8, 1, 40) == pytest.approx(here, rel=1e-4)
    assert model.step_s([1, 512, 8], [1, 1, 64], 40) == pytest.approx(0.5, rel=1e-3)
    assert model.step_s(8, 1, 40_000) == pytest.approx(400.1)
    near = [float(model.step_s(count, 1, 40)) for count in (8, 9, 10, 12, 16, 24)]
    assert near == sorted(near, reverse=True)


def test_many_samples_of_one_place_are_averaged() -> None:
    model = measured_model(PLAIN, [off(8, factor) for factor in (1.1, 1.2) for _ in range(16)])
    assert model.step_s(8, 1, 40) == pytest.approx(0.5 * (1.1 * 1.2) ** 0.5, rel=0.005)


def test_an_uneven_speedup_is_found_again() -> None:
    """8 accelerators do 5.5 times as much as one, 10 of them 8 times: no formula says that."""
    speedups = {1: 1.0, 2: 1.9, 4: 3.5, 8: 5.5, 10: 8.0}
    samples = [
        ThroughputSample(-(-count // 4), count, 16.0, count / speedup, 1.0)
        for count, speedup in speedups.items()
    ]
    fitted = throughput_fit(samples)
    rates = [
        {
            count: FixedBatchPerformance(
                {"gpu": model}, VirtualNodes(40), size=640
            ).goodput("gpu", count, -(-count // 4))
            for count in (8, 10)
        }
        for model in (fitted, measured_model(fitted, samples))
    ]  # fmt: skip
    gains = [each[10] / each[8] for each in rates]
    assert gains[0] < 1.3
    assert gains[1] == pytest.approx(8.0 / 5.5 * 5 / 4 * 8 / 10, rel=0.25)
    assert gains[1] > gains[0]


def test_another_kind_errs_alike() -> None:
    slow = measured_model(PLAIN, [off(8, 1.3), off(16, 0.8, 4)]).slower(3.0)
    own = measured_model(PLAIN, [off(8, 1.3), off(16, 0.8, 4)])
    places = np.array([1, 8, 12, 16]), np.array([1, 1, 3, 4]), 40.0
    assert slow.step_s(*places) == pytest.approx(3.0 * own.step_s(*places))
    with pytest.raises(ValueError, match="factor must be positive"):
        slow.slower(0.0)


def test_models_are_equal_by_value_and_keep_their_parameters() -> None:
    """Performances are cached by their models."""
    first, second = (measured_model(PLAIN, [off(8, 1.3)]) for _ in range(2))
    assert (first, hash(first)) == (second, hash(second))
    assert first != measured_model(PLAIN, [off(8, 1.2)])
    assert first.parameters == PLAIN.parameters
    assert measured_model(PLAIN, []).step_s(4, 1, 40) == PLAIN.step_s(4, 1, 40)


def test_the_last_samples_count() -> None:
    older = [off(2, 2.0)] * MOST_SAMPLES
    model = MeasuredModel(*PLAIN.parameters, samples=(*older, *[off(2, 1.0)] * MOST_SAMPLES))
    assert model.step_s(2, 1, 40) == pytest.approx(0.5, rel=0.005)
