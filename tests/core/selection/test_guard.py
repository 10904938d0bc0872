"""The guard and the control arm on times and losses with known answers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from controlplane.core.protocol.selection import EndReason, SelectionMethod, SelectionSpec
from controlplane.core.selection.guard import (
    CONTROLS,
    WINDOW_PASSES,
    WINDOW_STEPS,
    BreakEvenGuard,
    EpochFall,
    Verdict,
    control_verdict,
)

SELECTIVE, STALE = SelectionMethod.SELECTIVE_BACKPROP, SelectionMethod.STALE_SELECTIVE_BACKPROP


def _fed(guard: BreakEvenGuard, loss_s: float, num_passes: int, share: float = 0.5) -> None:
    """Feed passes of 100 candidates with a step of 100 examples, of 1 s each, after every two."""
    for number in range(num_passes):
        guard.add_pass(100, round(100 * share), 100 * loss_s)
        if number % 2:
            guard.add_step(100, 100.0)


@pytest.mark.parametrize(
    ("method", "loss_s", "ratio"),
    [
        (SELECTIVE, 0.3, None),  # costs 0.3 + 0.5
        (SELECTIVE, 0.44, None),  # 0.94
        (SELECTIVE, 0.46, 0.96),
        (SELECTIVE, 0.9, 1.4),
        (STALE, 0.9, None),  # a third of it: 0.3 + 0.5
        (STALE, 1.5, 1.0),
    ],
)
def test_the_guard_finds_the_break_even(
    method: SelectionMethod, loss_s: float, ratio: float | None
) -> None:
    guard = BreakEvenGuard(SelectionSpec(method=method))
    _fed(guard, loss_s, 1 + 2 * WINDOW_PASSES)
    if ratio is None:
        assert guard.verdict is None
    else:
        assert guard.verdict is not None
        assert guard.verdict.reason is EndReason.GUARD
        assert guard.verdict.ratio == pytest.approx(ratio)


def test_the_guard_waits_for_two_windows_in_a_row() -> None:
    guard = BreakEvenGuard(SelectionSpec(method=SELECTIVE))
    _fed(guard, 0.9, 1 + WINDOW_PASSES)
    assert guard.verdict is None, "one window may be an accident"
    _fed(guard, 0.1, WINDOW_PASSES)
    _fed(guard, 0.9, WINDOW_PASSES)
    assert guard.verdict is None, "a cheap window lies between"
    _fed(guard, 0.9, WINDOW_PASSES)
    assert guard.verdict is not None


def test_single_slow_passes_and_the_first_ones_count_little() -> None:
    guard = BreakEvenGuard(SelectionSpec(method=SELECTIVE))
    guard.add_step(100, 1e6)
    guard.add_pass(100, 50, 1e6)
    for number in range(2 * WINDOW_PASSES):
        guard.add_pass(100, 50, 1e6 if number % 3 == 0 else 30.0)
        guard.add_step(100, 100.0)
    assert guard.verdict is None


def test_the_guard_needs_steps() -> None:
    guard = BreakEvenGuard(SelectionSpec(method=SELECTIVE))
    for _ in range(4 * WINDOW_PASSES):
        guard.add_pass(100, 50, 90.0)
    assert guard.verdict is None
    for _ in range(1 + WINDOW_STEPS):
        guard.add_step(100, 100.0)
    _fed(guard, 0.9, WINDOW_PASSES)
    assert guard.verdict is not None


SPEC = SelectionSpec(method=STALE, start=1, stale_every=2, control_every=3)


def test_control_epochs_select_at_random_and_shift_the_stale_ones() -> None:
    epochs = range(1, 13)
    assert [epoch for epoch in epochs if SPEC.is_control(epoch)] == [3, 6, 9, 12]
    assert [epoch for epoch in epochs if SPEC.forwards(epoch)] == [1, 4, 7, 10]
    without = SelectionSpec(method=SELECTIVE, start=1, control_every=4)
    assert [epoch for epoch in epochs if not without.forwards(epoch)] == [4, 8, 12]
    at_random = SelectionSpec(method=SelectionMethod.RANDOM, control_every=3)
    assert not any(at_random.is_control(epoch) for epoch in epochs)


def _epochs(num: int, fall: float, control_fall: float, seconds: float) -> list[EpochFall]:
    """Make epochs whose control ones take a second, the others `seconds`."""
    loss, found = 100.0, []
    for epoch in range(num):
        is_control = SPEC.selects(epoch) and SPEC.is_control(epoch)
        loss -= control_fall if is_control else fall
        found.append(EpochFall(epoch, loss, 1.0 if is_control else seconds))
    return found


@pytest.mark.parametrize(
    ("fall", "control_fall", "seconds", "ratio"),
    [
        (2.0, 1.0, 1.0, None),
        (1.0, 1.0, 1.0, 1.0),
        (1.0, 1.0, 2.0, 0.5),
        (3.0, 1.0, 2.0, None),
        (-1.0, 1.0, 1.0, -1.0),
        (1.0, -1.0, 1.0, None),
        (-1.0, -1.0, 1.0, None),  # nothing falls: no measure of either
    ],
)
def test_a_control_arm_compares_the_fall_per_second(
    fall: float, control_fall: float, seconds: float, ratio: float | None
) -> None:
    enough = 3 * CONTROLS + 2  # the control epoch 9 has a neighbour after it
    assert control_verdict(SPEC, _epochs(enough - 1, fall, control_fall, seconds)) is None
    verdict = control_verdict(SPEC, _epochs(enough, fall, control_fall, seconds))
    if ratio is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert verdict.reason is EndReason.CONTROL
        assert verdict.ratio == pytest.approx(ratio)


def test_epochs_with_trials_compare_nothing() -> None:
    """Epoch 4 trained on everything, so that the control epoch 3 has no neighbour after it."""
    epochs = _epochs(3 * CONTROLS + 5, 1.0, 1.5, 1.0)
    epochs[4] = replace(epochs[4], has_selected=False)
    assert control_verdict(SPEC, epochs[:-1]) is None
    assert control_verdict(SPEC, epochs) is not None


def test_without_a_validation_loss_there_is_no_verdict() -> None:
    for loss in (math.nan, math.inf):
        epochs = [EpochFall(epoch, loss, 1.0) for epoch in range(40)]
        assert control_verdict(SPEC, epochs) is None
    epochs = _epochs(40, 1.0, 1.5, 1.0)
    epochs[10] = EpochFall(10, math.inf, 1.0)
    assert control_verdict(SPEC, epochs) is None


@pytest.mark.parametrize("reason", list(EndReason))
def test_a_verdict_travels_as_two_numbers(reason: EndReason) -> None:
    verdict = Verdict(reason, -1.25)
    assert Verdict.from_note(verdict.to_note()) == verdict
    assert Verdict.from_note((0.0, 0.0)) is None
    assert Verdict.from_note(()) is None
