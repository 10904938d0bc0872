"""Which examples a trainer takes, and with which random numbers."""

from __future__ import annotations

import numpy as np
import pytest

from agents.trainer.step.batch_plan import TRAINING_STREAM, VALIDATION_STREAM, Planner, step_seeds
from controlplane.core.protocol.wire import ReductionMode
from tests.agents.trainer.local_jobs import membership_of, training_spec

SHARES = {4: (0, 2, 3), 7: (1, 4)}


def planner(slot: int, **changes: object) -> Planner:
    return Planner(training_spec(**changes), membership_of(SHARES), (4, 7), slot)


def test_a_full_batch_is_cut_by_virtual_node() -> None:
    plan = planner(4).plan(20)
    assert plan.virtual_nodes == (0, 2, 3)
    assert plan.positions.tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15]
    # offset, length, merges, is the lowest: 2 and 3 are a pair in the tree, 0 and 1 are not here
    assert plan.program.tolist() == [[0, 4, 0, 1], [4, 4, 0, 0], [8, 4, 1, 0]]
    assert plan.weights.tolist() == [np.float32(0.2)] * 3
    assert (plan.num_rows, plan.rows_per_worker) == (2, 2)
    # rows: 0 = leaf 0, 1 = 2+3 (slot 4); 2 = leaf 1, 3 = leaf 4 (slot 7)
    assert plan.across.tolist() == [[0, 0], [2, 1], [1, 1], [3, 1]]


def test_a_small_last_batch_leaves_some_without_examples() -> None:
    """One example goes to virtual node 4: the bounds are 0, 0, 0, 0, 0, 1."""
    idle, busy = planner(4).plan(1), planner(7).plan(1)
    assert idle.virtual_nodes == ()
    assert idle.positions.tolist() == []
    assert idle.program.shape == (0, 4)
    assert idle.num_rows == 0
    assert busy.program.tolist() == [[0, 1, 0, 1]]
    assert busy.weights.tolist() == [1.0]
    assert busy.rows_per_worker == 2
    assert busy.across.tolist() == [[2, 0]]


@pytest.mark.parametrize("num_examples", [1, 3, 7, 20])
def test_together_the_trainers_take_every_example_once(num_examples: int) -> None:
    taken = [planner(slot).plan(num_examples).positions for slot in SHARES]
    assert sorted(np.concatenate(taken).tolist()) == list(range(num_examples))
    weights = sum(planner(slot).plan(num_examples).weights.sum() for slot in SHARES)
    assert weights == pytest.approx(1.0)


def test_the_fast_mode_adds_from_left_to_right_into_one_row() -> None:
    plan = planner(4, reduction=ReductionMode.FAST).plan(20)
    assert plan.program[:, 2].tolist() == [0, 1, 1]
    assert (plan.num_rows, plan.rows_per_worker) == (1, 1)
    assert plan.across.shape == (0, 2)


def test_random_numbers_depend_on_job_stream_step_and_virtual_node_alone() -> None:
    everything = step_seeds(11, TRAINING_STREAM, 5, range(8), 8, 3)
    assert everything.shape == (8, 3, 2)
    assert everything.dtype == np.int64
    some = step_seeds(11, TRAINING_STREAM, 5, (6, 1), 8, 3)
    assert np.array_equal(some, everything[[6, 1]])
    others = [
        step_seeds(12, TRAINING_STREAM, 5, range(8), 8, 3),
        step_seeds(11, VALIDATION_STREAM, 5, range(8), 8, 3),
        step_seeds(11, TRAINING_STREAM, 6, range(8), 8, 3),
    ]
    for other in others:
        assert not np.intersect1d(other, everything).size
    assert len(np.unique(everything)) == everything.size
