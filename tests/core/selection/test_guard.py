"""The guard and the control arm on times and losses with known answers."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.protocol.codec import decode, encode
from controlplane.core.protocol.selection import EndReason, SelectionMethod, SelectionSpec
from controlplane.core.selection.cost import ExampleTimes
from controlplane.core.selection.guard import (
    CONTROLS,
    NOT_MEASURED,
    WINDOW_PASSES,
    WINDOW_TIMES,
    BreakEvenGuard,
    EpochFall,
    control_verdict,
)

SELECTIVE, STALE = SelectionMethod.SELECTIVE_BACKPROP, SelectionMethod.STALE_SELECTIVE_BACKPROP
PLAIN = SelectionSpec(method=SELECTIVE)


def _fed(
    guard: BreakEvenGuard,
    loss_s: float,
    num_passes: int,
    *,
    spec: SelectionSpec = PLAIN,
    generation: int = 1,
    step_s: float = 1.0,
) -> BreakEvenGuard:
    """Feed passes of 100 candidates with a step after each, `step_s` per example.

    As in a trainer, the times of a batch are sent with the next one, and those of the first pass
    and of the first step are not measured.
    """
    sent = NOT_MEASURED
    for number in range(num_passes):
        guard = guard.after_batch(spec, generation, sent, candidates=100, chosen=50)
        sent = ExampleTimes(loss_s, 0.0) if number else NOT_MEASURED
        guard = guard.after_batch(spec, generation, sent)
        sent = ExampleTimes(0.0, step_s) if number else NOT_MEASURED
    return guard


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
    spec = SelectionSpec(method=method)
    guard = _fed(BreakEvenGuard(), loss_s, 2 * WINDOW_PASSES, spec=spec)
    assert guard.quotient == pytest.approx(loss_s)
    if ratio is None:
        assert guard.verdict is None
    else:
        assert guard.verdict is not None
        assert guard.verdict.reason is EndReason.GUARD
        assert guard.verdict.ratio == pytest.approx(ratio)


def test_the_guard_waits_for_two_windows_in_a_row() -> None:
    guard = _fed(BreakEvenGuard(), 0.6, WINDOW_PASSES)
    assert guard.verdict is None, "one window may be an accident"
    guard = _fed(guard, 0.1, WINDOW_PASSES)
    guard = _fed(guard, 0.6, WINDOW_PASSES)
    assert guard.verdict is None, "a cheap window lies between"
    guard = _fed(guard, 0.6, WINDOW_PASSES)
    assert guard.verdict is not None


@pytest.mark.parametrize(("loss_s", "num_passes"), [(0.69, 32), (0.71, 16), (5.0, 16)])
def test_one_window_suffices_if_its_cost_is_clearly_too_high(
    loss_s: float, num_passes: int
) -> None:
    """Half of the candidates are chosen, so the cost is clear from 0.7 on."""
    guard = BreakEvenGuard()
    for number in range(1, num_passes + 1):
        assert guard.verdict is None, f"decided before pass {number}"
        times = ExampleTimes(loss_s, 0.0)
        guard = guard.after_batch(PLAIN, 1, ExampleTimes(0.0, 1.0))
        guard = guard.after_batch(PLAIN, 1, times, candidates=100, chosen=50)
    assert guard.verdict is not None
    assert guard.verdict.ratio == pytest.approx(loss_s + 0.5)


def test_scattered_times_end_no_selection_that_pays_a_little() -> None:
    """Single times scatter by a half; epochs cost 0.8 of plain ones."""
    draws = random.Random(1)
    ended = 0
    for _ in range(300):
        guard = BreakEvenGuard()
        for _ in range(2 * WINDOW_PASSES):
            loss_s, step_s = (mean * draws.lognormvariate(0.0, 0.5) for mean in (0.3, 1.0))
            guard = guard.after_batch(PLAIN, 1, ExampleTimes(0.0, step_s))
            guard = guard.after_batch(
                PLAIN, 1, ExampleTimes(loss_s, 0.0), candidates=100, chosen=50
            )
        ended += guard.verdict is not None
    assert ended == 0


#: Seconds per example of a membership's steps, and its passes.
MEMBERSHIPS = st.lists(st.tuples(st.floats(1e-6, 1e3), st.integers(10, 80)), max_size=20)


@given(memberships=MEMBERSHIPS, quotient=st.sampled_from((0.1, 0.4, 0.5, 0.9, 1.5)))
def test_a_verdict_does_not_depend_on_memberships(
    memberships: Sequence[tuple[float, int]], quotient: float
) -> None:
    """The times of an example change with the accelerators, their quotient does not."""
    guard = BreakEvenGuard()
    for generation, (step_s, passes) in enumerate(memberships, start=1):
        guard = _fed(guard, quotient * step_s, passes, generation=generation, step_s=step_s)
    whole = _fed(BreakEvenGuard(), quotient, sum(passes for _, passes in memberships))
    assert guard.num_costly == whole.num_costly
    assert guard.cost == pytest.approx(whole.cost)
    assert (guard.verdict is None) == (whole.verdict is None)


@pytest.mark.parametrize("passes", [4, 5, 10, 15, 17, 33])
@pytest.mark.parametrize("quotient", [0.1, 0.9])
def test_short_memberships_count_like_a_single_one(passes: int, quotient: float) -> None:
    """With four passes of a membership four steps are done, and two of them are measured."""
    guard = whole = BreakEvenGuard()
    for generation in range(1, 20):
        step_s = 10.0**generation
        guard = _fed(guard, quotient * step_s, passes, generation=generation, step_s=step_s)
        whole = _fed(whole, quotient, passes)
        assert guard.num_costly == whole.num_costly
        assert guard.cost == pytest.approx(whole.cost)
    assert (guard.verdict is not None) == (quotient == 0.9)


def test_shorter_ones_take_more_passes() -> None:
    """With three passes one step is measured, so that a window needs eight memberships."""
    guard = BreakEvenGuard()
    for generation in range(1, 17):
        assert guard.verdict is None
        guard = _fed(guard, 0.6, 3, generation=generation)
    assert guard.verdict is not None


def test_a_membership_without_a_measured_step_counts_its_share_alone() -> None:
    guard = BreakEvenGuard()
    for generation in range(1, 40):
        guard = _fed(guard, 0.9, 2, generation=generation)
    assert guard.passes == 39 * 2
    assert (guard.quotients, guard.verdict) == ((), None)


def test_a_guard_is_kept_in_a_checkpoint() -> None:
    guard = _fed(_fed(BreakEvenGuard(), 0.9, WINDOW_PASSES + 20), 0.7, 7, generation=2)
    assert guard.quotients
    assert guard.loss_s
    stored = json.loads(json.dumps(encode(guard)))
    assert decode(BreakEvenGuard, stored) == guard


def test_single_slow_passes_count_little() -> None:
    guard = BreakEvenGuard()
    for number in range(3 * WINDOW_PASSES):
        times = ExampleTimes(1e6 if number % 3 == 0 else 0.3, 0.0)
        guard = guard.after_batch(PLAIN, 1, times, candidates=100, chosen=50)
        guard = guard.after_batch(PLAIN, 1, ExampleTimes(0.0, 1.0))
    assert guard.verdict is None
    assert guard.quotient == pytest.approx(0.3)


def test_the_guard_needs_steps() -> None:
    guard, losses = BreakEvenGuard(), ExampleTimes(0.9, 0.0)
    for _ in range(4 * WINDOW_PASSES):
        guard = guard.after_batch(PLAIN, 1, losses, candidates=100, chosen=50)
    assert (guard.verdict, guard.quotient) == (None, None)
    for _ in range(WINDOW_TIMES):
        guard = guard.after_batch(PLAIN, 1, ExampleTimes(0.0, 1.0))
    assert guard.quotient == pytest.approx(0.9)
    guard = _fed(guard, 0.9, WINDOW_PASSES)
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


def _epochs(num: int, fall: float, control_fall: float) -> list[EpochFall]:
    """Make epochs of which each that selects, the control ones too, chooses half."""
    loss, found = 100.0, []
    for epoch in range(num):
        is_control = SPEC.selects(epoch) and SPEC.is_control(epoch)
        loss -= control_fall if is_control else fall
        found.append(EpochFall(loss, 0.5 if SPEC.selects(epoch) else None))
    return found


@pytest.mark.parametrize(
    ("fall", "control_fall", "quotient", "ratio"),
    [
        # Of the two epochs beside a control one, the one before it has computed no losses.
        (2.0, 1.0, 0.5, None),
        (1.0, 1.0, 0.5, 0.75),  # (2 + 1) / 2 over 2
        (1.0, 1.0, 0.0, 1.0),
        (1.0, 1.0, 1.5, 0.625),  # (2 + 0.5) / 2 over 2
        (2.0, 1.0, 1.5, None),  # (4 + 1) / 2 over 2
        (-1.0, 1.0, 0.5, -0.75),
        (1.0, -1.0, 0.5, None),
        (-1.0, -1.0, 0.5, None),  # nothing falls: no measure of either
    ],
)
def test_a_control_arm_compares_the_fall_per_time(
    fall: float, control_fall: float, quotient: float, ratio: float | None
) -> None:
    enough = 3 * CONTROLS + 2  # the control epoch 9 has a neighbour after it
    epochs = _epochs(enough, fall, control_fall)
    assert control_verdict(SPEC, epochs[:-1], quotient) is None
    assert control_verdict(SPEC, epochs, None) is None, "the cost of a pass is not known"
    verdict = control_verdict(SPEC, epochs, quotient)
    if ratio is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert verdict.reason is EndReason.CONTROL
        assert verdict.ratio == pytest.approx(ratio)


def test_a_share_that_was_chosen_is_a_part_of_the_time() -> None:
    epochs = [
        replace(fall, share=fall.share and (0.25 if SPEC.is_control(epoch) else 0.75))
        for epoch, fall in enumerate(_epochs(3 * CONTROLS + 2, 1.0, 1.0))
    ]
    verdict = control_verdict(SPEC, epochs, 0.25)
    assert verdict is not None
    assert verdict.ratio == pytest.approx((1 / 0.75 + 1 / 1.0) / 2 / (1 / 0.25))


def test_epochs_with_trials_compare_nothing() -> None:
    """Epoch 4 trained on everything, so that the control epoch 3 has no neighbour after it."""
    epochs = _epochs(3 * CONTROLS + 5, 1.0, 1.5)
    epochs[4] = replace(epochs[4], share=None)
    assert control_verdict(SPEC, epochs[:-1], 0.5) is None
    assert control_verdict(SPEC, epochs, 0.5) is not None


def test_without_a_validation_loss_there_is_no_verdict() -> None:
    for loss in (math.nan, math.inf):
        epochs = [EpochFall(loss, 0.5) for _ in range(40)]
        assert control_verdict(SPEC, epochs, 0.5) is None
    epochs = _epochs(40, 1.0, 1.5)
    epochs[10] = EpochFall(math.inf, 0.5)
    assert control_verdict(SPEC, epochs, 0.5) is None
