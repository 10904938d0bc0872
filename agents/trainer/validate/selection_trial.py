"""Tries a selection pass: whether a model has a loss for each single example, and its time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import NoExampleLossError
from agents.trainer.step.functions import StepFunctions


@contextmanager
def example_losses_needed() -> Iterator[None]:
    """Convert the error of a model that gives no loss per example.

    Raises:
        JobCodeError: a loss of the model gives no value per example.
    """
    try:
        yield
    except NoExampleLossError as error:
        raise JobCodeError(
            "no_example_loss",
            "selection.method",
            f"examples cannot be selected by their losses: {error}. Or train without selection",
        ) from error


def pass_seconds(functions: StepFunctions, arguments: Sequence[Any]) -> float:
    """Compute the losses of a step's examples as a selection pass does; returns the seconds."""
    program, _, _, seeds, *examples = arguments
    started_at = time.perf_counter()
    functions.losses(program, seeds, *examples).numpy()
    return time.perf_counter() - started_at
