"""The throughput model: hand-computed steps, and fits of what a known model would have measured."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimates.throughput import (
    ThroughputModel,
    ThroughputSample,
    slices_of,
    throughput_fit,
)
from tests.support.cases import pairs

TRUTH = ThroughputModel(0.02, 0.001, 0.03, 0.002, 0.1, 0.005, 2.0)


def sample(count: int, nodes: int, size: float = 40.0, slices: int = 1) -> ThroughputSample:
    step_s = float(TRUTH.step_s(count, nodes, size, slices))
    return ThroughputSample(nodes, count, size, step_s, float(TRUTH.grad_s(size)), slices)


def error_of(model: ThroughputModel, samples: list[ThroughputSample]) -> float:
    errors = [
        abs(float(model.step_s(s.num_accelerators, s.num_nodes, s.slice_size, s.num_slices)))
        / s.step_s
        - 1.0
        for s in samples
    ]
    return float(np.abs(errors).max())


def test_a_step_is_what_the_formulas_say() -> None:
    # T_grad = .02 + .001*40 = .06; alone nothing is exchanged, two slices take twice as long
    assert TRUTH.step_s(1, 1, 40) == pytest.approx(0.06)
    assert TRUTH.step_s(1, 1, 40, 2) == pytest.approx(0.12)
    # T_sync = .03 + .002*2 = .034 on one machine, .1 + .005*2 = .11 on several
    assert TRUTH.step_s(4, 1, 40) == pytest.approx((0.06**2 + 0.034**2) ** 0.5)
    assert TRUTH.step_s(4, 2, 40, 3) == pytest.approx(0.12 + (0.06**2 + 0.11**2) ** 0.5)
    # gamma 1: nothing is hidden
    plain = ThroughputModel(0.02, 0.001, 0.03)
    assert plain.step_s([1, 2], [1, 1], 40) == pytest.approx([0.06, 0.09])


def test_the_busiest_accelerator_decides_how_many_slices() -> None:
    assert slices_of(16, [1, 2, 3, 8, 9, 15, 16]).tolist() == [16, 8, 6, 2, 2, 2, 1]


def test_other_accelerators_compute_slower_and_exchange_alike() -> None:
    slow = TRUTH.slower(2.0)
    assert slow.grad_s(40) == pytest.approx(0.12)
    assert slow.sync_s([4, 4], [1, 2]) == pytest.approx([0.034, 0.11])
    with pytest.raises(ValueError, match="factor must be positive"):
        TRUTH.slower(0.0)


def test_a_fit_finds_the_model_that_measured() -> None:
    samples = [
        sample(count, nodes, size)
        for count, nodes in ((1, 1), (2, 1), (4, 1), (4, 2), (8, 2), (16, 4))
        for size in (20.0, 40.0, 160.0)
    ]
    fitted = throughput_fit(samples)
    assert error_of(fitted, samples) < 0.03
    unseen = [sample(12, 3, 80.0), sample(3, 1, 80.0), sample(6, 2, 80.0, slices=2)]
    assert error_of(fitted, unseen) < 0.05


def test_what_was_never_seen_is_taken_to_cost_nothing() -> None:
    alone = throughput_fit([sample(1, 1, slices=16)])
    # 16 slices of 60 ms; perfect scaling over all that has not been tried
    assert alone.step_s([1, 4, 16], [1, 1, 8], 40, slices_of(16, [1, 4, 16])) == pytest.approx(
        [0.96, 0.24, 0.06], rel=0.01
    )
    pair = throughput_fit([sample(1, 1), sample(2, 1)])
    two = float(TRUTH.step_s(2, 1, 40))
    # no growth before more than two were seen, several machines like one before any were seen
    assert pair.step_s([2, 8, 8], [1, 1, 4], 40) == pytest.approx([two] * 3, rel=0.01)
    apart = throughput_fit([sample(1, 1), sample(2, 1), sample(2, 2)])
    far = float(TRUTH.step_s(2, 2, 40))
    assert apart.step_s([2, 2, 8], [1, 2, 4], 40) == pytest.approx([two, far, far], rel=0.02)


def test_an_older_fit_leads_to_the_same_place() -> None:
    shapes = [(1, 1), (2, 1), (4, 1), (4, 2), (8, 2), (16, 4)]
    samples = [
        sample(count, nodes, size)
        for (count, nodes), size in itertools.product(shapes, (20.0, 40.0, 80.0))
    ]
    model = None
    for number in range(1, len(samples) + 1):
        model = throughput_fit(samples[:number], model)
    assert model is not None
    assert error_of(model, samples) < 0.05


#: Exchange against a slice of 100 ms: base and growth on one machine, and gamma.
CURVES = [
    ThroughputModel(0.03, 0.07 / 32, base_s, growth_s, 3.0 * base_s, 2.0 * growth_s, gamma)
    for base_s, growth_s in ((0.03, 0.001), (0.03, 0.01), (0.06, 0.02), (0.01, 0.004))
    for gamma in (1.0, 2.0, 4.0)
]


SHAPES = [
    [(2, 1), (4, 1)],
    [(1, 1), (2, 1), (4, 1)],
    [(4, 1), (2, 1), (1, 1)],
    [(4, 1), (8, 2), (12, 3)],
    [(1, 1), (4, 1), (3, 1)],
    [(1, 1), (2, 1), (8, 2), (16, 4)],
]


@pytest.mark.parametrize(("shapes", "is_again"), pairs(SHAPES, [False, True]), ids=str)
def test_a_few_numbers_tell_the_growth_of_an_exchange(
    shapes: list[tuple[int, int]], is_again: bool
) -> None:
    """A fit follows each number; from several machines it tells the step of twice as many."""
    for curve in CURVES:
        samples = [
            ThroughputSample(nodes, count, 32.0, float(curve.step_s(count, nodes, 32.0)), 0.1)
            for count, nodes in shapes
        ]
        fitted = None
        for number in range(1 if is_again else len(samples), len(samples) + 1):
            fitted = throughput_fit(samples[:number], fitted)
        assert fitted is not None
        assert error_of(fitted, samples) < 0.02
        count, nodes = shapes[-1]
        if nodes > 1:
            twice = float(curve.step_s(2 * count, 2 * nodes, 32.0))
            assert fitted.step_s(2 * count, 2 * nodes, 32.0) == pytest.approx(twice, rel=0.1)


def test_a_fit_without_seconds_of_gradients() -> None:
    bare = [
        ThroughputSample(1, count, 8.0, float(TRUTH.step_s(count, 1, 8.0, slices)), None, slices)
        for count, slices in ((1, 8), (2, 4), (4, 2), (8, 1))
    ]
    assert error_of(throughput_fit(bare), bare) < 0.03


@pytest.mark.parametrize(
    "wrong",
    [
        ThroughputSample(2, 1, 8.0, 1.0),
        ThroughputSample(1, 1, 0.0, 1.0),
        ThroughputSample(1, 1, 8.0, float("nan")),
        ThroughputSample(1, 1, 8.0, 1.0, None, 0),
    ],
)
def test_impossible_samples_are_refused(wrong: ThroughputSample) -> None:
    with pytest.raises(ValueError, match="a sample needs"):
        throughput_fit([wrong])


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one measurement"):
        throughput_fit([])


@given(
    st.lists(
        st.tuples(
            st.integers(1, 8),
            st.integers(1, 16),
            st.floats(0.5, 1e4),
            st.floats(1e-6, 1e4),
            st.one_of(st.none(), st.floats(0.0, 1e4)),
            st.integers(1, 64),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_measurements_give_finite_positive_steps(
    rows: list[tuple[int, int, float, float, float | None, int]],
) -> None:
    samples = [ThroughputSample(min(n, k), k, m, t, g, c) for n, k, m, t, g, c in rows]
    model = throughput_fit(samples)
    again = throughput_fit(samples, model)
    for fitted in (model, again):
        steps = fitted.step_s(np.arange(1, 65), 1, samples[0].slice_size, 2)
        assert np.isfinite(steps).all()
        assert (steps > 0.0).all()
        assert all(value >= 0.0 for value in fitted.parameters)
