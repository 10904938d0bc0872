"""Branches of a training state: kept apart from each other, shared until written, freed."""

from __future__ import annotations

import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agents.trainer.model.keras_private import model_build
from agents.trainer.model.state import ModelState, state_digest
from agents.trainer.step.functions import StepFunctions

UNITS = 3


def small() -> StepFunctions:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((UNITS,)),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(UNITS),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    sample = (np.ones((2, UNITS), "float32"), np.ones((2, UNITS), "float32"))
    model_build(model, sample)
    return StepFunctions(model, ModelState(model), sample, has_validation=False)


def update(functions: StepFunctions, draw: int) -> None:
    generator = np.random.default_rng(draw)
    vector = generator.normal(size=functions.train_width)
    functions.turns[0].apply(tf.constant(vector, functions.dtype))


class BranchMachine(RuleBasedStateMachine):
    """Any order of updates, forks, switches and frees, beside copies made by hand."""

    functions = None

    @initialize()
    def begin(self) -> None:
        cls = type(self)
        if cls.functions is None:
            cls.functions = small()
            cls.as_built = [np.array(value) for value in cls.functions.state.capture()]
        self.state = cls.functions.state
        self.state.put(cls.as_built)
        self.state.branches.parked.clear()
        self.copies: dict[int, list[bytes]] = {}

    def present(self) -> list[bytes]:
        return [np.asarray(value).tobytes() for value in self.state.capture()]

    @rule(draw=st.integers(0, 5))
    def update(self, draw: int) -> None:
        update(self.functions, draw)

    @rule(number=st.integers(0, 3))
    def fork(self, number: int) -> None:
        self.state.branches.fork(number)
        self.copies[number] = self.present()

    @rule(number=st.integers(0, 3))
    def switch(self, number: int) -> None:
        if number in self.copies:
            self.state.branches.switch(number)
            assert self.present() == self.copies[number]

    @rule(number=st.integers(0, 3))
    def free(self, number: int) -> None:
        if number in self.copies:
            self.state.branches.free(number)
            del self.copies[number]

    @invariant()
    def parked_branches_are_as_they_were_forked(self) -> None:
        parked = self.state.branches.parked
        assert {
            number: [np.asarray(value).tobytes() for value in values]
            for number, values in parked.items()
        } == self.copies


TestBranches = BranchMachine.TestCase
TestBranches.settings = settings(max_examples=10, stateful_step_count=12, deadline=None)


def test_two_forks_with_equal_tunables_give_equal_bits() -> None:
    functions = small()
    state, branches = functions.state, functions.state.branches
    update(functions, 0)
    branches.fork(0)
    digests = []
    for _ in range(2):
        branches.switch(0)
        for draw in range(1, 4):
            update(functions, draw)
        digests.append(state_digest(state.specs, state.capture()))
    assert digests[0] == digests[1]


def test_a_fork_shares_the_memory_of_what_is_not_written_and_a_freed_one_gives_it_back() -> None:
    """A variable's value is shared until its first update; benchmarks.tuning has the bytes."""
    functions = small()
    state, branches = functions.state, functions.state.branches
    branches.fork(0)
    assert shared(branches.parked[0], state) == len(state.variables)
    update(functions, 0)
    num_written = len(state.trainable) + len(state.optimizer) - 1  # all but the learning rate
    num_written += len(state.fixed)  # batch statistics
    assert shared(branches.parked[0], state) < len(state.variables) - num_written + 3
    kernel = weakref.ref(branches.parked[0][0])
    branches.free(0)
    assert kernel() is None, "a freed branch is still in memory"


def shared(values: tuple[Any, ...], state: ModelState) -> int:
    """Count the variables whose memory is the one of `values`."""
    pairs = zip(values, state.capture(), strict=True)
    return sum(np.shares_memory(np.asarray(a), np.asarray(b)) for a, b in pairs)
