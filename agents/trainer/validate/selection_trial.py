"""Tries a selection pass: whether a model has a loss for each single example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.step.functions import StepFunctions


def candidates_choose(
    functions: StepFunctions, indices: np.ndarray, arguments: Sequence[Any]
) -> int:
    """Run a selection pass over a step's examples; returns the number of queued ones.

    Raises:
        JobCodeError: there are more losses than examples, or fewer.
    """
    selection = functions.state.selection
    assert selection is not None, "losses are traced for a job that selects"
    losses = functions.losses(*arguments).numpy()
    if len(losses) != len(indices):
        raise JobCodeError(
            "no_example_loss",
            "selection.method",
            f"examples cannot be selected by their losses: there are {len(losses)} losses for "
            f"{len(indices)} examples; let the call() of the loss keep the examples on the first "
            "axis, without a reshape to (-1,). Or train without selection",
        )
    return selection.choose(selection.spec.start, indices, losses).num
