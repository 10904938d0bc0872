"""Figures of the benchmark of example selection, from counted examples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.selection_runs.costs import Costs, EpochTimes, costs_of
from benchmarks.selection_runs.job import COPIES, copies, with_flips
from benchmarks.selection_runs.races import (
    Result,
    fewer_examples,
    reached,
    regret,
    result_of,
    speed_up,
)
from benchmarks.selection_runs.runs import Reached

COSTS = Costs(loss=0.4, choice=0.1, step=1.1, overhead=0.0)


def row(epoch: int, accuracy: float, trained: int) -> Reached:
    return Reached(epoch, accuracy, trained - 50, 50, analysed=300, candidates=500, seconds=2.0)


def results(**costs: float) -> dict[str, Result]:
    return {arm: Result(cost, 0.0, 0.0, 0) for arm, cost in costs.items()}


def test_a_cost_is_in_plain_examples() -> None:
    assert COSTS.of(row(1, 0.9, 1000)) == pytest.approx(950 + 1.1 * 50 + 0.4 * 300 + 0.1 * 200)


def test_costs_are_over_the_step_of_the_plain_epoch_beside() -> None:
    """A plain example takes 10 ms. Of 8 s with losses, 2.5 s and 4 s of plain steps are needed."""
    found = costs_of(
        EpochTimes(step_s=10.0, trained=1000),
        EpochTimes(losses_s=2.5, pass_s=3.0, step_s=5.0, candidates=1000, trained=400),
        EpochTimes(losses_s=0.1, pass_s=0.5, step_s=5.0, candidates=1000, trained=600),
    )
    assert found == pytest.approx((0.3, 0.05, 1.0, 1.0 - 6.5 / 8.0))


def test_the_first_epoch_at_the_accuracy_counts() -> None:
    rows = [row(0, 0.5, 100), row(1, 0.9, 200), row(2, 0.8, 300), row(3, 0.95, 400)]
    assert reached(rows, 0.9) == rows[1]
    assert reached(rows, 0.96) is None


def test_an_arm_that_misses_the_error_in_most_runs_is_infinitely_dear() -> None:
    found = result_of([row(1, 0.9, 200), None], COSTS)
    assert (found.cost, found.trained, found.num_missed) == (math.inf, 200, 1)
    assert result_of([row(1, 0.9, 200)] * 2 + [None], COSTS).cost == COSTS.of(row(1, 0.9, 200))


def test_a_speed_up_is_over_the_better_of_plain_and_random() -> None:
    arms = results(plain=900.0, random=600.0, selective=500.0, stale_2=400.0, stale_3=math.inf)
    assert speed_up(arms) == 1.5
    assert speed_up(arms | results(stale_2=math.inf)) == 1.2
    assert speed_up(arms | results(stale_2=math.inf, selective=math.inf)) is None


def test_examples_are_compared_among_the_arms_that_reach_the_error() -> None:
    arms = {
        "plain": Result(900.0, 800.0, 0.0, 0),
        "random": Result(math.inf, 100.0, 0.0, 1),
        "selective": Result(math.inf, 100.0, 0.0, 1),
        "stale_2": Result(900.0, 400.0, 0.0, 0),
        "stale_3": Result(800.0, 500.0, 0.0, 0),
    }
    assert fewer_examples(arms) == 2.0
    assert fewer_examples({"plain": arms["plain"], "selective": arms["selective"]}) is None


def test_the_regret_is_over_plain_training() -> None:
    assert regret(results(plain=900.0, guarded=945.0)) == 1.05
    assert regret(results(plain=900.0, guarded=math.inf)) is None


def test_flipped_labels_are_others_and_as_many_as_asked() -> None:
    labels = np.arange(20_000) % 10
    changed = with_flips(labels, 0.2) != labels
    assert 0.19 < changed.mean() < 0.21
    assert (with_flips(labels, 0.0) == labels).all()


def test_copies_keep_the_label_of_their_image() -> None:
    images = np.zeros((3, 8, 8, 1), "float32")
    images[1] = 1.0
    made, labels = copies(images, np.array([7, 8, 9]))
    assert made.shape == (3 * COPIES, 8, 8, 1)
    is_white = made.mean(axis=(1, 2, 3)) > 0.5
    assert labels[is_white].tolist() == [8] * COPIES
