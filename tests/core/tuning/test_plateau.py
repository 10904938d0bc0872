"""When a tuned job searches again."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.tuning.course import DONE_EPOCHS, RETUNE_EPOCHS, Plateau


def after(values: list[float], *, higher_is_better: bool = False) -> Plateau:
    plateau = Plateau()
    for value in values:
        plateau = plateau.after_epoch(value, higher_is_better=higher_is_better)
    return plateau


def test_four_epochs_without_a_better_value_call_for_a_search_and_five_end_tuning() -> None:
    assert not after([1.0, 0.5, 0.5, 0.6, 0.7]).is_due
    assert after([1.0, 0.5, 0.5, 0.6, 0.7, math.nan]).is_due
    assert after([1.0, 0.5, 0.5, 0.6, 0.7, 0.5, 0.5]).is_done
    assert not after([1.0, 0.5, 0.5, 0.6, 0.7, 0.5, 0.4]).is_done


def test_a_higher_metric_may_be_the_better_one() -> None:
    assert after([0.1, 0.2, 0.3, 0.4, 0.5], higher_is_better=True) == Plateau(best=0.5)
    assert after([0.1, 0.2, 0.3, 0.4, 0.5]).is_due


def test_a_search_without_a_winner_ends_tuning() -> None:
    assert Plateau().after_search(has_winner=False).is_done
    assert not Plateau().after_search(has_winner=True).is_done


@given(st.lists(st.floats(0.0, 1.0) | st.just(math.nan), max_size=30))
def test_tuning_is_over_exactly_after_five_epochs_without_progress(values: list[float]) -> None:
    bests, best, since, worst = [], math.inf, 0, 0
    for value in values:
        since = 0 if value < best else since + 1
        best = min(best, value) if value < best else best
        worst = max(worst, since)
        bests.append(best)
    plateau = after(values)
    assert plateau.is_done == (worst >= DONE_EPOCHS)
    assert plateau.is_due == (since == RETUNE_EPOCHS and worst < DONE_EPOCHS)
