"""The state of selection: queue, history and last losses, and what is chosen from them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.model.branches import Branches
from agents.trainer.selection.rule import chances, draws_of_epoch, mean_loss
from agents.trainer.selection.state import FREE, Selection
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec


def _selection(method: SelectionMethod, **options: float) -> Selection:
    spec = SelectionSpec(method=method, history=16, **options)  # type: ignore[arg-type]
    return Selection(spec, seed=5, num_examples=40, pass_size=8, batch_size=10)


def _queue(selection: Selection) -> list[int]:
    queue = selection.variables[1].value.numpy()
    return [int(index) for index in queue if index != FREE]


def test_chosen_examples_queue_up_in_order() -> None:
    selection = _selection(SelectionMethod.SELECTIVE_BACKPROP)
    indices = np.array([30, 2, 7, 11, 39, 0, 21, 4])
    losses = np.array([0.1, 0.9, 0.5, 0.8, 0.2, 0.7, 0.3, 0.4], np.float32)
    chance = chances(losses, losses, 1.0)
    expected = indices[draws_of_epoch(5, 1, 40)[indices] < chance].tolist()
    choice = selection.choose(1, indices, losses)
    assert choice.num == len(expected)
    means = {loss for index, loss in zip(indices, losses, strict=True) if index in expected}
    assert choice.losses.logs() == {
        "selected_loss": pytest.approx(np.mean([*means])),
        "skipped_loss": pytest.approx((3.9 - sum(means)) / (8 - len(means))),
    }
    assert _queue(selection) == expected
    assert selection.queued(2).tolist() == expected[:2]
    selection.dequeue(2)
    assert _queue(selection) == expected[2:]


def test_another_exponent_chooses_by_the_same_draws_and_a_branch_leaves_no_trace() -> None:
    selection = _selection(SelectionMethod.STALE_SELECTIVE_BACKPROP)
    branches = Branches(
        lambda: [tf.convert_to_tensor(each.value) for each in selection.variables],
        lambda values: (
            [each.assign(value) for each, value in zip(selection.variables, values, strict=True)]
            and None
        ),
    )
    indices = np.arange(8)
    losses = np.linspace(0.1, 0.8, 8, dtype=np.float32)
    selection.choose(1, indices, losses)  # scattered writes: later ones are made in place
    selection.dequeue(selection.num_queued)
    branches.fork(0)
    root = [each.numpy().copy() for each in selection.variables]
    chosen = {}
    for beta in (0.1, 10.0, 0.1):
        choice = selection.choose(1, indices + 8, losses, beta)
        assert selection.num_queued == choice.num
        chosen[beta] = _queue(selection)
        branches.switch(0)
        assert selection.num_queued == 0
        for each, value in zip(selection.variables, root, strict=True):
            assert each.numpy().tobytes() == value.tobytes()
    assert set(chosen[10.0]) < set(chosen[0.1])


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([0.5, 1.5], 1.0),
        ([1e-45, 2.0], 1.0),
        ([1.0, np.nan], np.inf),
        ([-np.inf, 3.0], 1.5),  # an example of weight 0, as in training
        ([-np.inf, np.inf], np.inf),
    ],
)
def test_the_mean_loss_is_that_of_all_candidates(losses: list[float], expected: float) -> None:
    assert mean_loss(np.array(losses, np.float32)) == expected


def test_choices_are_counted_by_example() -> None:
    selection = _selection(SelectionMethod.SELECTIVE_BACKPROP)
    for indices in ([3, 1], [4, 1], [1]):
        selection.choose(1, np.array(indices), np.zeros(len(indices)))  # equal: all are chosen
    assert selection.most_chosen(2) == [(1, 3), (3, 1)]
    assert selection.most_chosen(20) == [(1, 3), (3, 1), (4, 1)]


@pytest.mark.parametrize(
    "method", [SelectionMethod.SELECTIVE_BACKPROP, SelectionMethod.STALE_SELECTIVE_BACKPROP]
)
def test_examples_of_weight_0_are_never_chosen_and_rank_nothing(method: SelectionMethod) -> None:
    """Losses are negative, then all equal, then there are none."""
    selection, plain = _selection(method), _selection(method)
    for losses in ([-0.9, -0.2, -0.7, -0.4], [-0.4] * 4, []):
        weighted = np.arange(len(losses))
        plain.choose(1, weighted, np.float32(losses))
        padded = np.float32([*losses, *[-np.inf] * (8 - len(losses))])
        choice = selection.choose(1, np.arange(8), padded)
        assert _queue(selection) == _queue(plain)
        assert choice.losses.num_chosen + choice.losses.num_skipped == len(losses)
        for each in (selection, plain):
            each.dequeue(each.num_queued)
    if method is SelectionMethod.STALE_SELECTIVE_BACKPROP:
        selection.choose(2, np.arange(4, 8), None)
        assert not _queue(selection)


def test_losses_that_are_not_finite_are_in_no_mean() -> None:
    selection = _selection(SelectionMethod.SELECTIVE_BACKPROP)
    choice = selection.choose(1, np.arange(2), np.array([np.inf, np.nan]))
    assert (choice.num, choice.losses.logs()) == (2, {})
    at_random = _selection(SelectionMethod.RANDOM)
    assert at_random.choose(1, np.arange(4), None).losses.logs() == {}


def test_equal_losses_choose_everything() -> None:
    selection = _selection(SelectionMethod.SELECTIVE_BACKPROP)
    assert selection.choose(1, np.arange(8), np.zeros(8)).num == 8


def test_stale_epochs_choose_by_the_last_losses() -> None:
    selection = _selection(SelectionMethod.STALE_SELECTIVE_BACKPROP, stale_every=2)
    indices, losses = np.array([3, 1, 4, 15, 9, 2]), np.array([1, 2, 3, 4, 5, 6], np.float32)
    selection.choose(1, indices, losses)
    selection.dequeue(len(_queue(selection)))
    epochs = selection.variables[5].value.numpy()
    assert set(np.flatnonzero(epochs == 1)) == set(indices)
    again = indices[::-1].copy()
    history = np.concatenate([losses, losses[::-1]])
    chance = chances(history, losses[::-1], 1.0)
    expected = again[draws_of_epoch(5, 2, 40)[again] < chance].tolist()
    selection.choose(2, again, None)
    assert _queue(selection) == expected


def test_an_example_without_a_loss_is_chosen_in_a_stale_epoch() -> None:
    selection = _selection(SelectionMethod.STALE_SELECTIVE_BACKPROP)
    assert selection.choose(2, np.arange(4), None).num == 4


def test_random_selection_needs_no_losses() -> None:
    selection = _selection(SelectionMethod.RANDOM, beta=3.0)
    indices = np.arange(8)
    expected = indices[draws_of_epoch(5, 1, 40)[indices] < 0.25].tolist()
    selection.choose(1, indices, None)
    assert _queue(selection) == expected
