"""The state of a job's example selection: history of losses, queue, last loss of each example.

It is part of the job's state, in variables on the host: moved at a resize, kept in checkpoints,
hashed into digests. Every trainer updates it from the same losses, so it has the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.selection.loss_sums import LossSums
from agents.trainer.selection.rule import (
    chances,
    draws_of_epoch,
    history_with,
    is_chosen,
    ranked_losses,
)
from controlplane.core.protocol.selection import PASS_BATCHES, SelectionMethod, SelectionSpec
from controlplane.core.protocol.wire import TrainingSpec

#: A free place of the queue.
FREE = -1


@dataclass(frozen=True)
class Choice:
    """The result of a selection pass: how many were chosen, and the losses of both groups."""

    num: int
    losses: LossSums


class Selection:
    """The chosen examples of one job in one trainer.

    Attributes:
        variables: newest losses [history], indices of queued examples [capacity], the first epoch
            that trains on everything again (`FREE`: none), how often each example was chosen [N],
            and with the stale method each example's last loss [N] and the epoch of that loss [N].
    """

    def __init__(
        self, spec: SelectionSpec, seed: int, num_examples: int, pass_size: int, batch_size: int
    ) -> None:
        """Begin with an empty queue.

        Args:
            pass_size: most candidates of a selection pass.
            batch_size: most examples of a training step.
        """
        self.spec = spec
        self._seed = seed
        self._num_examples = num_examples
        self._drawn: tuple[int, np.ndarray] | None = None
        with tf.device("CPU:0"):
            self._history = _variable("losses", np.full(spec.history, np.nan, np.float32))
            # Fewer than a batch are left when a pass begins.
            places = np.full(batch_size + pass_size, FREE, np.int64)
            self._queue = _variable("queue", places)
            end = FREE if spec.end is None else spec.end
            self._end = _variable("end", np.array([end], np.int64))
            self._counts = _variable("counts", np.zeros(num_examples, np.int32))
            self.variables = [self._history, self._queue, self._end, self._counts]
            if spec.method is SelectionMethod.STALE_SELECTIVE_BACKPROP:
                lost = np.full(num_examples, np.nan, np.float32)
                self._last = _variable("last_losses", lost)
                self._seen = _variable("last_epochs", np.full(num_examples, -1, np.int32))
                self.variables += [self._last, self._seen]

    def choose(
        self,
        epoch: int,
        indices: np.ndarray,
        losses: np.ndarray | None,
        beta: float | None = None,
    ) -> Choice:
        """Choose among candidates and queue the chosen ones.

        Args:
            indices: int64 [n], places of the candidates in the data.
            losses: [n]; None in an epoch that computes none.
            beta: exponent of the chance; None: the spec's.
        """
        draws = self._draws(epoch)[indices]
        if self.spec.method is SelectionMethod.RANDOM or self.spec.is_control(epoch):
            chosen = is_chosen(draws, self.spec.expected_share)
            values = np.full(len(indices), np.nan, np.float32)
        else:
            values = self._values(epoch, indices, losses)
            exponent = self.spec.beta if beta is None else beta
            chosen = is_chosen(draws, self._chances(values, exponent))
        self._enqueue(indices[chosen])
        num = int(np.count_nonzero(chosen))
        tf.raw_ops.ResourceScatterAdd(
            resource=self._counts.value.handle,
            indices=indices[chosen],
            updates=np.ones(num, np.int32),
        )
        return Choice(num=num, losses=LossSums.of(values[chosen], values[~chosen]))

    def most_chosen(self, limit: int) -> list[tuple[int, int]]:
        """List the examples that were chosen most often: (place in the data, times)."""
        counts = _read(self._counts)
        places = np.argsort(-counts, kind="stable")[:limit]
        return [(int(place), int(counts[place])) for place in places if counts[place]]

    @property
    def num_queued(self) -> int:
        """Number of queued examples."""
        return int(np.count_nonzero(_read(self._queue) != FREE))

    def queued(self, num_examples: int) -> np.ndarray:
        """Return the places of the examples queued first: int64 [num_examples]."""
        return _read(self._queue)[:num_examples]

    def dequeue(self, num_examples: int) -> None:
        """Remove the examples queued first, which have been trained on."""
        queue = _read(self._queue)
        rest = np.full(num_examples, FREE, np.int64)
        _write(self._queue, np.concatenate([queue[num_examples:], rest]))

    def end(self, epoch: int) -> None:
        """Record the first epoch that trains on everything again, as if the spec had it."""
        _write(self._end, np.array([epoch], np.int64))

    def _values(self, epoch: int, indices: np.ndarray, losses: np.ndarray | None) -> np.ndarray:
        """Return the candidates' losses, or their last ones; NaN for an example without."""
        is_stale = self.spec.method is SelectionMethod.STALE_SELECTIVE_BACKPROP
        if losses is None:
            assert is_stale, "only the stale method chooses by earlier losses"
            last: np.ndarray = self._last.value.sparse_read(indices).numpy()
            return last
        values = ranked_losses(losses)
        if is_stale:
            self._remember(epoch, indices, values)
        return values

    def _chances(self, values: np.ndarray, beta: float) -> np.ndarray:
        """Rank the candidates among the newest losses, their own included.

        Examples of weight 0, whose losses are minus infinite, have no chance and rank nothing.
        """
        unweighted = np.isneginf(values)
        known = ~np.isnan(values) & ~unweighted
        history = history_with(_read(self._history), values[known])
        _write(self._history, history)
        found = np.where(unweighted, 0.0, 1.0)  # an example without a loss is chosen
        if known.any():
            found[known] = chances(history, values[known], beta, self.spec.loss_cap)
        return found

    def _remember(self, epoch: int, indices: np.ndarray, values: np.ndarray) -> None:
        updates: list[tuple[Any, np.ndarray]] = [
            (self._last, values),
            (self._seen, np.full(len(indices), epoch, np.int32)),
        ]
        for variable, new in updates:
            tf.raw_ops.ResourceScatterUpdate(
                resource=variable.value.handle, indices=indices, updates=new
            )

    def _enqueue(self, indices: np.ndarray) -> None:
        queue, first = _read(self._queue), self.num_queued
        queue[first : first + len(indices)] = indices
        _write(self._queue, queue)

    def _draws(self, epoch: int) -> np.ndarray:
        """Return the epoch's draws, kept until another epoch is asked for."""
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = (epoch, draws_of_epoch(self._seed, epoch, self._num_examples))
        return self._drawn[1]


def selection_of(spec: TrainingSpec, num_examples: int) -> Selection | None:
    """Make the selection of a training job over `num_examples`; None if it selects nothing."""
    if spec.selection is None or spec.selection.method is SelectionMethod.NONE:
        return None
    largest = max(spec.global_batch_size, spec.batch_size_max or 0)
    pass_size = PASS_BATCHES * spec.global_batch_size
    return Selection(spec.selection, spec.seed, num_examples, pass_size, largest)


def _variable(name: str, value: np.ndarray) -> Any:
    return keras.Variable(value, dtype=value.dtype.name, trainable=False, name=f"selection_{name}")


# Raw operations: the methods of a variable take three times as long, several times in each pass.


def _read(variable: Any) -> np.ndarray:
    """Copy a variable's value."""
    held = variable.value
    value: np.ndarray = tf.raw_ops.ReadVariableOp(resource=held.handle, dtype=held.dtype).numpy()
    return value


def _write(variable: Any, value: np.ndarray) -> None:
    """Replace a variable's value by one of its dtype and shape."""
    tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=value)
