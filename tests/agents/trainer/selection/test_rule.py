"""The rule of selection, against a plain implementation of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.trainer.selection.rule import (
    chances,
    draws_of_epoch,
    history_with,
    is_chosen,
    ranked_losses,
)
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec

# Few distinct values, so that ties and equal losses are frequent.
LOSSES = st.sampled_from([0.0, 0.25, 1.0, 1.5, 7.0]) | st.floats(0, 100, width=32)
BATCHES = st.lists(st.lists(LOSSES, min_size=1, max_size=12), min_size=1, max_size=6)
BETAS = st.sampled_from([0.5, 1.0, 2.0, 3.3])
CAPS = st.sampled_from([0.0, 10.0, 25.0])


def plain_chances(newest: list[float], batch: list[float], beta: float, cap: float) -> list[float]:
    """State the rule one example at a time."""
    if len(set(newest)) == 1:
        return [1.0 for _ in batch]
    found = []
    for loss in batch:
        below = sum(other < loss for other in newest)
        is_capped = cap > 0 and below >= len(newest) * (1.0 - cap / 100.0)
        found.append(0.0 if is_capped else math.pow(below / len(newest), beta))
    return [1.0 if math.isinf(loss) else c for loss, c in zip(batch, found, strict=True)]


@given(BATCHES, st.integers(1, 20), BETAS, CAPS)
def test_chances_are_those_of_the_plain_rule(
    batches: list[list[float]], length: int, beta: float, cap: float
) -> None:
    history = np.full(length, np.nan, np.float32)
    newest: list[float] = []
    for batch in batches:
        losses = ranked_losses(np.array(batch))
        history = history_with(history, losses)
        newest = [*newest, *losses.tolist()][-length:]
        found = chances(history, losses, beta, cap)
        assert found.tolist() == plain_chances(newest, losses.tolist(), beta, cap)


@given(BATCHES, st.integers(1, 20))
def test_the_history_keeps_the_newest(batches: list[list[float]], length: int) -> None:
    history = np.full(length, np.nan, np.float32)
    for batch in batches:
        history = history_with(history, np.array(batch, np.float32))
    everything = [np.float32(loss) for batch in batches for loss in batch]
    assert history[~np.isnan(history)].tolist() == everything[-length:]
    assert history.dtype == np.float32
    assert len(history) == length


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_is_always_chosen(odd: float) -> None:
    losses = ranked_losses(np.array([1.0, odd, 2.0]))
    history = history_with(np.full(8, np.nan, np.float32), losses)
    assert chances(history, losses, 1.0, 40.0).tolist() == [0.0, 1.0, 1 / 3]


@given(st.integers(0, 2**63 - 1), st.integers(0, 1000), st.integers(1, 200), st.integers(1, 200))
def test_a_draw_depends_on_seed_epoch_and_index_alone(
    seed: int, epoch: int, few: int, more: int
) -> None:
    drawn = draws_of_epoch(seed, epoch, few)
    assert ((drawn >= 0.0) & (drawn < 1.0)).all()
    longer = draws_of_epoch(seed, epoch, few + more)
    assert longer[:few].tolist() == drawn.tolist()
    assert draws_of_epoch(seed, epoch + 1, few).tolist() != drawn.tolist()
    assert draws_of_epoch(seed + 1, epoch, few).tolist() != drawn.tolist()


@pytest.mark.parametrize(("beta", "cap"), [(1.0, 0.0), (2.0, 0.0), (3.0, 0.0), (1.0, 20.0)])
def test_the_share_is_the_expected_one(beta: float, cap: float) -> None:
    """Of distinct losses 1/(1+β) are chosen: 0.50, 0.33, 0.25; a cap of 20 % leaves 0.32."""
    num = 100_000
    losses = draws_of_epoch(7, 3, num).astype(np.float32)
    history = losses[:1024]
    chosen = is_chosen(draws_of_epoch(0, 1, num), chances(history, losses, beta, cap))
    spec = SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP, beta=beta, loss_cap=cap)
    expected = {(1.0, 0.0): 1 / 2, (2.0, 0.0): 1 / 3, (3.0, 0.0): 1 / 4, (1.0, 20.0): 0.32}
    assert spec.expected_share == pytest.approx(expected[beta, cap])
    assert chosen.mean() == pytest.approx(expected[beta, cap], abs=0.02)


@pytest.mark.parametrize(
    ("method", "selecting", "forwarding"),
    [
        (SelectionMethod.NONE, [], []),
        (SelectionMethod.SELECTIVE_BACKPROP, [2, 3, 4, 5, 6], [2, 3, 4, 5, 6]),
        (SelectionMethod.STALE_SELECTIVE_BACKPROP, [2, 3, 4, 5, 6], [2, 5]),
        (SelectionMethod.RANDOM, [2, 3, 4, 5, 6], []),
    ],
)
def test_epochs_that_select_and_that_compute_losses(
    method: SelectionMethod, selecting: list[int], forwarding: list[int]
) -> None:
    spec = SelectionSpec(method=method, start=2, end=7, stale_every=3)
    assert [epoch for epoch in range(10) if spec.selects(epoch)] == selecting
    assert [epoch for epoch in selecting if spec.forwards(epoch)] == forwarding
