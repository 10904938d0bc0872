"""Tries a selection pass: whether a model has a loss for each single example, and its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

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


def candidates_choose(
    functions: StepFunctions, indices: np.ndarray, arguments: Sequence[Any]
) -> int:
    """Run a selection pass over a step's examples; returns the number of queued ones.

    Raises:
        NoExampleLossError: there are more losses than examples, or fewer.
    """
    selection = functions.state.selection
    assert selection is not None, "losses are traced for a job that selects"
    losses = functions.losses(*arguments).numpy()
    if len(losses) != len(indices):
        raise NoExampleLossError(
            f"there are {len(losses)} losses for {len(indices)} examples; let the call() of the "
            "loss keep the examples on the first axis, without a reshape to (-1,)"
        )
    return selection.choose(selection.spec.start, indices, losses).num
