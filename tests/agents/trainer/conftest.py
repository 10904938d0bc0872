"""What the tests of the engine share: none of them leaves its random seed to the next one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tensorflow as tf

from agents.trainer.validate import run, trial_steps
from agents.trainer.validate.trial_steps import StepFacts


@pytest.fixture(autouse=True)
def _seed_taken_back() -> Iterator[None]:
    """Unseed TensorFlow afterwards; loading a job seeds it for the whole process."""
    yield
    tf.random.set_seed(None)


@pytest.fixture(autouse=True)
def few_trial_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validate with as few steps as times need; only the peak of their memory needs more."""
    monkeypatch.setattr(trial_steps, "PEAK_REPEATS", trial_steps.REPEATS)


@pytest.fixture
def no_trial_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validate without trial steps and what follows them, for what is checked before."""
    monkeypatch.setattr(run, "steps_try", lambda *_: StepFacts({}, []))
    monkeypatch.setattr(run, "splitting_check", lambda *_: [])
    monkeypatch.setattr(run, "_save_try", lambda *_: [])
