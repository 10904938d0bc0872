"""Prediction steps of a membership: run the own virtual nodes, then all-gather the outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from agents.trainer.collectives.groups import TrainerGroup, lone_group
from agents.trainer.collectives.runtime import CollectiveRuntime, all_gather
from agents.trainer.collectives.step_metadata import (
    BusyTimer,
    StepMetadata,
    notes_read,
    notes_write,
)
from agents.trainer.contract.failures import TrainerError
from agents.trainer.predict.functions import PredictFunctions
from agents.trainer.step.outcomes import StepOutcome
from agents.trainer.step.prefetch import LocalBatch
from agents.trainer.step.stepper import step_failures
from controlplane.core.protocol.wire import ReductionMode

Tensor = Any
#: Instance key above the keys of training exchanges, below the keys of meetings.
INSTANCE_PREDICTIONS = 90
#: Words before the rows: the notes of an exact step, as float32 in the int32 message.
NOTE_WORDS = 3


@dataclass(frozen=True, kw_only=True)
class PredictOutcome(StepOutcome):
    """Result of a step.

    Attributes:
        rows: int32 [examples of the batch, words], in the functions' layout.
    """

    rows: np.ndarray


class PredictStepper:
    """Runs steps; a new membership changes only its group."""

    def __init__(
        self, functions: PredictFunctions, runtime: CollectiveRuntime, group: TrainerGroup
    ) -> None:
        self.functions = functions
        self._runtime = runtime
        self.enter(group)

    def warm_up(self, rows_per_worker: int) -> None:
        """Gather once in a group of one; the leader must be reachable.

        Raises:
            TrainerError: `peer_lost`; the runtime has to be initialised again.
        """
        del rows_per_worker
        with self._runtime.collective():
            self._gather(np.zeros(NOTE_WORDS, np.int32), lone_group(self._runtime.slot))

    def enter(self, group: TrainerGroup) -> None:
        """Use `group` from the next step on."""
        self._group = group
        self._busy = BusyTimer()

    def step(self, batch: LocalBatch, holds_next: Callable[[], bool]) -> PredictOutcome:
        """Predict `batch` and vote on whether this trainer holds the next orders.

        Args:
            holds_next: returns the vote; called right before the exchange.

        Raises:
            TrainerError: `peer_lost`, or an error of `step_failures`.
            JobCodeError: an output does not have one row per example.
        """
        with step_failures():
            rows = np.concatenate([self.functions.predict(piece) for piece in batch.pieces])
        busy_s = self._busy.stop(batch.place[2])
        places = batch.plan.positions
        if self._group.size == 1:
            noted = StepMetadata(holds_next(), self._group.slots, (busy_s,))
        else:
            noted, places, rows = self._exchange(batch, rows, holds_next(), busy_s)
        self._busy.start()
        return PredictOutcome(
            loss=float("nan"),
            is_agreed=noted.is_agreed,
            busy_s=dict(zip(noted.slots, noted.busy_s, strict=True)),
            rows=_in_order(places, rows, batch.plan.num_examples),
        )

    def _exchange(
        self, batch: LocalBatch, rows: np.ndarray, holds_next: bool, busy_s: float
    ) -> tuple[StepMetadata, np.ndarray, np.ndarray]:
        """All-gather each trainer's notes and rows, each row with its place in the batch plus one.

        All trainers pad to the same number of rows for every batch, because an instance key
        identifies one shape within a group. A padded row has place 0.

        Returns:
            The notes, and the places and rows of all examples, trainer by trainer.
        """
        group, stride, width = self._group, batch.plan.examples_per_worker, rows.shape[1]
        message = np.zeros(NOTE_WORDS + stride * (1 + width), np.int32)
        notes = notes_write(ReductionMode.EXACT, group, self._runtime.slot, holds_next, busy_s)
        message[:NOTE_WORDS].view(np.float32)[:] = notes
        table = message[NOTE_WORDS:].reshape(stride, 1 + width)
        table[: len(rows), 0] = batch.plan.positions + 1
        table[: len(rows), 1:] = rows
        with self._runtime.collective():
            gathered = self._gather(message, group)
        by_rank = gathered.reshape(group.size, -1)
        received = np.ascontiguousarray(by_rank[:, :NOTE_WORDS]).view(np.float32)
        tables = by_rank[:, NOTE_WORDS:].reshape(-1, 1 + width)
        known = tables[tables[:, 0] > 0]
        noted = notes_read(ReductionMode.EXACT, group, received)
        return noted, known[:, 0] - 1, known[:, 1:]

    def _gather(self, message: np.ndarray, group: TrainerGroup) -> np.ndarray:
        key = tf.constant([group.size, group.key], tf.int32)
        gathered = all_gather(tf.constant(message), key, INSTANCE_PREDICTIONS, self._runtime.hint)
        array: np.ndarray = gathered.numpy()
        return array


def _in_order(places: np.ndarray, rows: np.ndarray, num_examples: int) -> np.ndarray:
    """Put rows in the order of the batch."""
    if not np.array_equal(np.sort(places), np.arange(num_examples)):
        raise TrainerError(
            "internal", f"{len(places)} predictions for a batch of {num_examples} examples"
        )
    ordered = np.empty((num_examples, rows.shape[1]), np.int32)
    ordered[places] = rows
    return ordered
