"""Results of steps: of one that was run, and of one that a learner has received."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from agents.trainer.model.progress import Activity
from controlplane.core.estimates.noise_scale import GradientNoise
from controlplane.core.selection.cost import ExampleTimes
from controlplane.core.selection.guard import NOT_MEASURED

Tensor = Any


@dataclass(frozen=True)
class StepOutcome:
    """Result of a step.

    Attributes:
        loss: nan in validation.
        is_agreed: all trainers hold the next orders.
        busy_s: slot -> seconds from the end of the last exchange to the start of this one: update,
            data and own virtual nodes, without waiting for peers. 0 in the first step of a kind.
        noise: of this batch's gradient; None if the step cannot measure it.
        is_skipped: the loss scale has skipped the update.
        is_refused: the loss is not finite, nothing was updated, and the job ends before this step.
        losses: of a selection pass, by candidate: [n]; None if it computed none.
        times: of the leader, in a job that selects; the same for all trainers of a step.
        proposal: of the leader, values of the next trial in a job that is tuned; likewise.
    """

    loss: float
    is_agreed: bool
    busy_s: Mapping[int, float]
    noise: GradientNoise | None = field(default=None, kw_only=True)
    is_skipped: bool = field(default=False, kw_only=True)
    is_refused: bool = field(default=False, kw_only=True)
    losses: np.ndarray | None = field(default=None, kw_only=True)
    times: ExampleTimes = field(default=NOT_MEASURED, kw_only=True)
    proposal: tuple[float, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class ReceivedStep:
    """The reduced vectors of a step, received by a learner for later replay.

    Attributes:
        vectors: [turns, width].
        seconds: duration of the step, including waiting for the other trainers.
    """

    activity: Activity
    num_examples: int
    vectors: Tensor
    seconds: float


def of_all_turns(outcomes: Sequence[StepOutcome]) -> StepOutcome:
    """Return the outcome of a step from those of its turns, whose gradients it takes as one."""
    if len(outcomes) == 1:
        return outcomes[0]
    noises = [each.noise for each in outcomes]
    noise = None
    if None not in noises:
        noise = GradientNoise(sum(n.sqr for n in noises if n), sum(n.var for n in noises if n))
    return replace(
        outcomes[-1],
        loss=sum(each.loss for each in outcomes),
        is_agreed=any(each.is_agreed for each in outcomes),
        busy_s={
            slot: sum(each.busy_s.get(slot, 0.0) for each in outcomes)
            for slot in outcomes[-1].busy_s
        },
        noise=noise,
        is_skipped=any(each.is_skipped for each in outcomes),
    )
