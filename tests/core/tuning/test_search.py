"""Searches over synthetic losses whose best value is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.protocol.codec import decode, encode
from controlplane.core.protocol.tuning import NUM_POINTS, TunableRange, TuningSpec
from controlplane.core.tuning.convergence import Verdict
from controlplane.core.tuning.search import (
    ROOT,
    BranchChange,
    Search,
    SearchEnd,
    Trial,
    TrialEnd,
    search_begin,
    search_step,
    shorter_trial_steps,
)

SPEC = TuningSpec(space={"learning_rate": TunableRange(low=1e-3, high=1.0, log=True)})
Loss = Callable[[float, int], float]


@dataclass
class Run:
    """A search driven to its end: branches are pairs of value and steps."""

    search: Search
    turns: list[BranchChange] = field(default_factory=list)
    parked: dict[int, tuple[float, int]] = field(default_factory=dict)
    present: tuple[float, int] = (0.0, 0)
    most_parked: int = 0

    def go(
        self, loss: Loss, propose: Callable[[int], float], spec: TuningSpec = SPEC
    ) -> BranchChange:
        value = self.search.trial.values["learning_rate"]
        self.parked = {ROOT: (value, 0)}
        self.present = (value, 0)
        for _ in range(100_000):
            rate, step = self.present
            self.present = (rate, step + 1)
            proposal = {"learning_rate": propose(len(self.search.trials))}
            running = self.search.running
            self.search, turn = search_step(self.search, spec, loss(rate, step), proposal)
            if turn is not None:
                self.search = decode(Search, json.loads(json.dumps(encode(self.search))))
                self._turn(running, turn)
                if turn.end is not None:
                    return turn
        raise AssertionError("the search does not end")

    def _turn(self, running: int, turn: BranchChange) -> None:
        self.turns.append(turn)
        if turn.parks:
            assert turn.branch != running
            self.parked[running] = self.present
        if turn.branch == ROOT:
            self.present = self.parked[ROOT]
        elif turn.branch != running:
            self.present = self.parked.pop(turn.branch)
        if turn.values is not None:
            self.present = (turn.values["learning_rate"], self.present[1])
        for number in turn.frees:
            del self.parked[number]
        self.most_parked = max(self.most_parked, len(self.parked) - 1)
        if turn.end is None:
            trial = self.search.trial
            assert self.present == (trial.values["learning_rate"], trial.steps)
        else:
            assert set(self.parked) == {ROOT}, "a branch is left over"


def begun(bounds: Mapping[str, int] | None = None, value: float = 0.01) -> Run:
    limits: dict[str, Any] = {
        "limit": 1000,
        "max_trials": 20,
        "max_steps": 100_000,
        **(bounds or {}),
    }
    search = search_begin(
        Search(1, trials=(Trial(1, 1, {"learning_rate": value}),), running=1, **limits)
    )
    assert search is not None
    return Run(search)


def falling(best: float, noise: float = 0.0, seed: int = 0) -> Loss:
    """Losses that fall fastest at the rate `best` and diverge far above it."""
    generator = np.random.default_rng(seed)

    def loss(rate: float, step: int) -> float:
        if rate > 10.0 * best:
            return math.inf
        speed = 0.01 * math.exp(-(math.log(rate / best) ** 2))
        return 5.0 * math.exp(-speed * step) + noise * float(generator.normal())

    return loss


def grid(number: int) -> float:
    return [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0][number % 7]


def test_the_fastest_value_is_kept() -> None:
    run = begun({"max_trials": 8})
    turn = run.go(falling(0.1), grid)
    assert turn.end is SearchEnd.TRIALS
    assert run.search.by_number(turn.branch).values == {"learning_rate": 0.1}
    ends = [trial.end for trial in run.search.trials]
    assert ends.count(TrialEnd.KEPT) == 1
    assert None not in ends


def test_noise_makes_trials_longer_until_one_converges() -> None:
    quiet, noisy = begun({"max_trials": 8}), begun({"max_trials": 8})
    quiet.go(falling(0.1), grid)
    turn = noisy.go(falling(0.1, noise=0.5), grid)
    assert noisy.search.trial_steps > quiet.search.trial_steps == NUM_POINTS
    assert noisy.search.by_number(turn.branch).values["learning_rate"] in (0.03, 0.1, 0.3)
    assert shorter_trial_steps(noisy.search) == noisy.search.trial_steps // 2
    assert shorter_trial_steps(quiet.search) == NUM_POINTS


def test_pure_noise_ends_at_the_root() -> None:
    generator = np.random.default_rng(1)
    run = begun({"max_trials": 5, "limit": 100})
    turn = run.go(lambda rate, step: 1.0 + 0.1 * float(generator.normal()), grid)
    assert turn == BranchChange(False, ROOT, turn.frees, None, SearchEnd.NONE_CONVERGED)
    assert run.search.trial_steps == 80
    assert {trial.end for trial in run.search.trials} == {TrialEnd.UNSTABLE}


def test_equally_fast_trials_end_the_search() -> None:
    run = begun({"max_trials": 20})
    assert run.go(lambda rate, step: 5.0 - 0.01 * step, grid).end is SearchEnd.ALIKE
    assert len(run.search.trials) == 5


def test_an_unstable_trial_never_beats_one_that_converges() -> None:
    """The loss falls three times as far, with a rise in between."""

    def loss(rate: float, step: int) -> float:
        return 5.0 - (0.03 * step - 0.08 * (step == 7) if rate == 0.03 else 0.01 * step)

    run = begun({"max_trials": 3})
    turn = run.go(loss, lambda number: 0.03 if number == 1 else 0.02)
    assert run.search.trials[1].verdict is Verdict.UNSTABLE
    assert run.search.by_number(turn.branch).values["learning_rate"] != 0.03


def test_a_hopeless_trial_is_stopped_early() -> None:
    run = begun({"max_trials": 2})
    run.go(lambda rate, step: 5.0 - (0.1 if rate == 0.01 else 0.001) * step, lambda number: 0.5)
    hopeless = run.search.trials[1]
    assert hopeless.end is TrialEnd.CANNOT_WIN
    assert hopeless.steps < run.search.trial_steps


def test_a_diverging_trial_is_stopped_at_once_and_its_steps_count() -> None:
    run = begun({"max_trials": 2})
    run.go(falling(0.01), lambda number: 1.0)
    assert run.search.trials[1].end is TrialEnd.DIVERGED
    assert run.search.trials[1].steps == 1


@pytest.mark.parametrize("bounds", [{"limit": 9}, {"max_steps": 9}])
def test_too_few_steps_begin_no_search(bounds: dict[str, int]) -> None:
    limits: dict[str, Any] = {"limit": 100, "max_trials": 5, "max_steps": 1000, **bounds}
    assert (
        search_begin(Search(1, trials=(Trial(1, 1, {"learning_rate": 0.1}),), running=1, **limits))
        is None
    )


@given(
    seed=st.integers(0, 1000),
    noise=st.floats(0.0, 1.0),
    limit=st.integers(10, 200),
    max_trials=st.integers(2, 12),
    max_steps=st.integers(10, 1500),
    max_branches=st.integers(2, 4),
)
def test_every_search_ends_within_its_bounds(
    seed: int, noise: float, limit: int, max_trials: int, max_steps: int, max_branches: int
) -> None:
    spec = TuningSpec(space=SPEC.space, max_branches=max_branches)
    run = begun({"limit": limit, "max_trials": max_trials, "max_steps": max_steps})
    generator = np.random.default_rng(seed)
    rates = 10.0 ** generator.uniform(-3, 0, size=32)
    turn = run.go(falling(0.05, noise, seed), lambda number: float(rates[number % 32]), spec)
    search = run.search
    assert search.num_steps <= max_steps
    assert len(search.trials) <= max_trials
    assert all(trial.steps <= limit for trial in search.trials)
    assert run.most_parked < max_branches
    kept = [trial.number for trial in search.trials if trial.end is TrialEnd.KEPT]
    assert kept == ([] if turn.branch == ROOT else [turn.branch])
    converging = [trial for trial in search.trials if trial.verdict is Verdict.CONVERGING]
    assert bool(kept) == bool(converging)
    if kept:
        assert search.by_number(kept[0]).speed == max(trial.speed for trial in converging)
