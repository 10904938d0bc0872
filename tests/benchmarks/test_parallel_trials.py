"""The benchmark's job that is tuned by parallel trials: its rounds, and the steps that count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.parallel_trials import ParallelRun, parallel_run
from controlplane.core.protocol.tuning import TunableRange, TuningSpec
from controlplane.core.protocol.wire import StopCondition, StopKind
from controlplane.core.tuning.search import TrialEnd
from tests.agents.trainer.local_jobs import training_spec

#: A linear problem, whose accuracy rises with each epoch; an epoch has five steps.
JOB = """
import keras
import numpy as np


def build(settings):
    x = np.random.default_rng(5).normal(size=(100, 6)).astype("float32")
    y = (x[:, :1] + 0.5 * x[:, 1:2] > 0).astype("float32")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(settings["rate"]), loss=loss, metrics=["accuracy"])
    return model, (x, y), (x, y)
"""
STEPS_PER_EPOCH, NUM_EPOCHS, TARGET = 5, 40, 0.82
TRIAL_STEPS = 20
#: Steps of a trial for which the job is too short.
TOO_MANY = STEPS_PER_EPOCH * NUM_EPOCHS
Run = Callable[..., ParallelRun]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Train from a rate, with trials of rates in a range."""
    code = tmp_path / "job.py"
    code.write_text(JOB)

    def run_to_target(
        rate: float, low: float, high: float, trial_steps: int = TRIAL_STEPS
    ) -> ParallelRun:
        space = {"learning_rate": TunableRange(low=low, high=high, log=True)}
        tuning = TuningSpec(
            space=space, parallel=True, max_parallel=2, max_trials=6, trial_steps=trial_steps
        )
        stop = StopCondition(kind=StopKind.EPOCHS, limit=NUM_EPOCHS)
        spec = training_spec(settings={"rate": rate}, stop=stop, tuning=tuning)
        return parallel_run(spec, code, "val_accuracy", TARGET)

    return run_to_target


@pytest.mark.nightly  # two starts of TensorFlow
def test_rounds_that_keep_no_trial_change_nothing(run: Run) -> None:
    alone = run(0.05, 1e-8, 1e-7, TOO_MANY)
    assert alone.is_reached
    assert (alone.rounds, alone.trial_steps) == ([], 0)
    beside = run(0.05, 1e-8, 1e-7)
    assert beside.rounds
    assert all(end is not TrialEnd.KEPT for _, *trials in beside.rounds for _, end in trials)
    assert (beside.steps, beside.is_reached) == (alone.steps, True)


@pytest.mark.nightly  # its arithmetic is tried above, the trials in tests/agents
def test_a_job_with_a_bad_rate_goes_on_with_a_good_trial(run: Run) -> None:
    found = run(1e-6, 0.5, 1.0)
    assert found.is_reached
    assert found.steps % STEPS_PER_EPOCH == 0
    (own, *trials), *_ = found.rounds
    assert own[0] == {}
    assert own[1] is not TrialEnd.KEPT
    assert [end for _, end in trials].count(TrialEnd.KEPT) == 1
    assert all(0.5 <= values["learning_rate"] <= 1.0 for values, _ in trials)
    # A round is 2 steps for its loss and 20 of its trials; the last one may be under way.
    before = len(found.rounds) * (TRIAL_STEPS + TRIAL_STEPS // 10)
    under_way = max(found.steps - before - TRIAL_STEPS // 10, 0)
    assert found.trial_steps == 2 * (len(found.rounds) * TRIAL_STEPS + under_way)
