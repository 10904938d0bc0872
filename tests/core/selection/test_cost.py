"""The cost of a selection against the formulas and figures of docs/selection.md."""

from __future__ import annotations

import pytest

from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.selection.cost import (
    ExampleTimes,
    SelectionTotals,
    expected_cost,
    measured_speed_up,
    predicted_speed_up,
    relative_cost,
)

SELECTIVE, STALE = SelectionMethod.SELECTIVE_BACKPROP, SelectionMethod.STALE_SELECTIVE_BACKPROP


@pytest.mark.parametrize(
    ("method", "speed_ups"), [(SELECTIVE, (1.20, 1.51, 1.71)), (STALE, (1.64, 2.27, 2.77))]
)
def test_speed_ups_for_a_backward_pass_of_two_forward_passes(
    method: SelectionMethod, speed_ups: tuple[float, ...]
) -> None:
    times = ExampleTimes(loss_s=0.5, step_s=1.5)
    assert times.backward_per_forward == 2.0
    for share, expected in zip((0.5, 0.33, 0.25), speed_ups, strict=True):
        spec = SelectionSpec(method=method, stale_every=3)
        assert 1 / relative_cost(spec, times, share) == pytest.approx(expected, abs=0.006)


def test_a_prediction_expects_the_mean_share() -> None:
    spec = SelectionSpec(method=SELECTIVE, beta=3.0)
    assert predicted_speed_up(spec, ExampleTimes(0.5, 1.5)) == pytest.approx(12 / 7)
    assert predicted_speed_up(spec, None) is None
    assert predicted_speed_up(SelectionSpec(method=SelectionMethod.RANDOM, beta=3.0), None) == 4.0


def test_an_expected_cost_without_times_leaves_the_passes_out() -> None:
    spec = SelectionSpec(method=SELECTIVE, beta=3.0)
    assert expected_cost(spec, ExampleTimes(0.5, 1.5)) == pytest.approx(7 / 12)
    assert expected_cost(spec, None) == 0.25


def test_a_selection_breaks_even_at_the_share_r_over_one_plus_r() -> None:
    for r in (0.5, 1.0, 2.0):
        times = ExampleTimes(loss_s=1.0, step_s=1.0 + r)
        cost = relative_cost(SelectionSpec(method=SELECTIVE), times, r / (1 + r))
        assert cost == pytest.approx(1.0)


def test_accelerators_may_change_between_measured_parts() -> None:
    slow = SelectionTotals(candidates=100, trained=50, pass_s=20.0, step_s=50.0)
    fast = SelectionTotals(candidates=400, trained=100, pass_s=5.0, step_s=25.0)
    assert measured_speed_up([slow]) == pytest.approx(100 / 70)
    assert measured_speed_up([slow, fast]) == pytest.approx(200 / 100)
    untimed = SelectionTotals(candidates=100, trained=50, pass_s=0.0, step_s=50.0)
    assert measured_speed_up([slow, untimed]) == measured_speed_up([slow])
    assert measured_speed_up([untimed]) is None
