"""Judging moves: windows of stretches, what has paid, and how long to wait."""

from __future__ import annotations

import pytest

from controlplane.core.virtual_nodes.rebalance_trial import (
    RebalancePlan,
    RebalanceTrial,
    RebalanceVerdict,
    cool_down_s,
    move_verdict,
)
from controlplane.core.virtual_nodes.step_window import (
    Interval,
    Window,
    high_decile,
    is_conclusive,
    low_decile,
    member_seconds,
    typical_step_s,
    window_add,
    window_closed,
)

TRIAL = RebalanceTrial(generation=3, counts={0: 8, 2: 8}, before_s=0.150, promised_s=0.110)


def window_of(*steps_s: float) -> Window:
    """Make closed stretches of 20 steps or so, at least 2 s each, one per step time."""
    window: Window = ()
    for step_s in steps_s:
        num_steps = int(2.0 / step_s) + 1
        window = window_add(window, Interval(num_steps * step_s, num_steps, {0: step_s / 2}))
    return window


def test_reports_are_joined_into_stretches_of_two_seconds() -> None:
    window: Window = ()
    for seconds, num_steps, busy_s in [(0.5, 5, 0.08), (0.5, 5, 0.06), (1.0, 5, 0.1)]:
        window = window_add(window, Interval(seconds, num_steps, {0: busy_s}))
    (stretch,) = window
    assert (stretch.seconds, stretch.num_steps) == (2.0, 15)
    assert stretch.busy_s[0] == pytest.approx((5 * 0.08 + 5 * 0.06 + 5 * 0.1) / 15)
    assert stretch.step_s == pytest.approx(2.0 / 15)
    window = window_add(window, Interval(0.5, 2, {0: 0.1, 1: 0.3}))
    assert len(window) == 2
    assert window_closed(window) == (stretch,)
    assert window_closed(()) == ()


def test_only_the_newest_stretches_are_kept() -> None:
    window: Window = ()
    for number in range(40):
        window = window_add(window, Interval(2.0, number + 1, {}))
    assert [stretch.num_steps for stretch in window] == [*range(28, 41)]


def test_a_window_tells_after_24_seconds_in_five_stretches() -> None:
    assert not is_conclusive(window_of(*[0.1] * 11))
    assert is_conclusive(window_of(*[0.1] * 12))
    assert not is_conclusive(window_of(*[10.0] * 4))  # 40 s, but four steps
    assert is_conclusive(window_of(*[10.0] * 5))
    assert typical_step_s(window_of(*[0.1] * 11)) is None
    # 11 steps of 0.19 and 7 of 0.3 s are a stretch; the median is between the sixth and seventh.
    mixed = window_of(*[0.19] * 6, *[0.3] * 6)
    assert typical_step_s(mixed) == pytest.approx((0.19 + 0.3) / 2)
    assert member_seconds(mixed, 0) == pytest.approx((*[0.095] * 6, *[0.15] * 6))
    assert member_seconds(mixed, 7) == ()
    assert member_seconds(window_of(0.1), 0) == ()


def test_deciles_leave_one_in_ten_out() -> None:
    assert (low_decile([5, 1, 4, 2]), high_decile([5, 1, 4, 2])) == (1, 5)
    twelve = [float(number) for number in range(12)]
    assert (low_decile(twelve), high_decile(twelve)) == (1.0, 10.0)


@pytest.mark.parametrize(
    ("steps_s", "verdict"),
    [
        ([0.110] * 13, RebalanceVerdict(0.110, has_paid=True)),
        ([0.129] * 13, RebalanceVerdict(0.129, has_paid=True)),  # 21 of 40 ms
        ([0.132] * 13, RebalanceVerdict(0.132, has_paid=False)),  # 18 of 40 ms
        ([0.149] * 12, RebalanceVerdict(0.149, has_paid=False)),
        ([0.110] * 8 + [0.3] * 5, RebalanceVerdict(0.110, has_paid=True)),  # something else went on
        ([0.110] * 5, None),
        ([0.3] * 3, None),
        ([0.3] * 4, RebalanceVerdict(0.3, has_paid=False)),  # clear enough
        ([0.3, 0.3, 0.3, 0.17, 0.3], None),  # 0.17 is not clearly more than 0.15
    ],
)
def test_a_move_has_paid_with_half_of_what_was_promised(
    steps_s: list[float], verdict: RebalanceVerdict | None
) -> None:
    found = move_verdict(TRIAL, window_of(*steps_s))
    assert (found is None) == (verdict is None)
    if found is not None and verdict is not None:
        assert found.has_paid == verdict.has_paid
        assert found.measured_s == pytest.approx(verdict.measured_s)


def test_each_vain_move_doubles_the_wait_up_to_an_hour() -> None:
    assert [cool_down_s(number) for number in range(8)] == [
        60, 120, 240, 480, 960, 1920, 3600, 3600,
    ]  # fmt: skip
    assert cool_down_s(10_000) == 3600
    moves = RebalancePlan()
    assert moves.may_move(0.0)
    trying = moves.tried(TRIAL, 100.0)
    assert not trying.may_move(1000.0), "one at a time"
    failed = trying.failed(130.0)
    assert (failed.failures, failed.until_s, failed.trial) == (1, 250.0, None)
    assert failed.is_doubtful
    assert (failed.may_move(249.0), failed.may_move(250.0)) == (False, True)
    again = failed.tried(TRIAL, 250.0).failed(280.0)
    assert (again.failures, again.until_s) == (2, 520.0)
    paid = again.tried(TRIAL, 520.0).paid()
    assert (paid.failures, paid.until_s, paid.is_doubtful) == (0, 760.0, False)
    assert trying.dropped() == RebalancePlan(0, 160.0, None)
