"""The computation of one virtual node: the model's forward pass on a slice, and its results.

All functions here are traced. State goes in and out as tensors: every virtual node starts a step
from the same values and returns results that are summed over virtual nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from agents.trainer.model.keras_private import (
    TrainingScope,
    example_losses,
    metrics_update,
    model_call,
    model_loss,
    sums_scaled,
    unweighted_trackers,
)
from agents.trainer.model.state import ModelState
from agents.trainer.model.stateful_ops import enclosed_state_refused, refuse_untracked_variables
from agents.trainer.step.gradient_layout import FieldKind, MessageWriter

Tensor = Any


@dataclass(frozen=True)
class SliceResults:
    """Results of a forward pass over a slice except gradients, ready to be summed.

    Attributes:
        loss: loss of the slice, weighted by its share of the batch's examples.
        objective: `loss` times the optimizer's loss scale; to be differentiated.
        changes: changes of floating-point state, weighted by the share: (index in `fixed`, change).
        integers: new values of other state: (index in `fixed`, value).
        metrics: growth of each metric variable.
    """

    loss: Tensor
    objective: Tensor
    changes: list[tuple[int, Tensor]]
    integers: list[tuple[int, Tensor]]
    metrics: list[Tensor]


class VirtualNode:
    """The forward pass of one model, for examples of one structure."""

    def __init__(self, model: keras.Model, state: ModelState, sample: tuple[Any, ...]) -> None:
        self.model = model
        self.state = state
        self.sample = sample
        self.dtype = _message_dtype([*state.trainable, *state.fixed, *state.metrics])

    def forward(
        self,
        trainable: Sequence[Tensor],
        fixed: Sequence[Tensor],
        examples: Sequence[Tensor],
        weight: Tensor,
        seeds: Tensor,
        training: bool,
    ) -> SliceResults:
        """Run the model on a slice.

        Args:
            trainable, fixed: values of the variables before the step.
            examples: flat arrays of the slice.
            weight: the slice's share of the batch's examples.
            seeds: int64 [number of random generators, 2].

        Raises:
            JobCodeError: the model changes state that it does not list, or in an inner function.
        """
        packed = keras.tree.pack_sequence_as(self.sample, list(examples))
        batch = (*packed, None, None)[:3]
        count = tf.cast(tf.shape(examples[0])[0], tf.float32)
        with self._scope(trainable, fixed, seeds) as scope, enclosed_state_refused(scope):
            predictions = model_call(self.model, batch[0], training=training)
            with sums_scaled(self.model, 1.0 / weight):
                loss = model_loss(self.model, batch, predictions, training=training)
            weighted = tf.cast(loss, self.dtype) * tf.cast(weight, self.dtype)
            objective = self.model.optimizer.scale_loss(weighted) if training else weighted
            metrics_update(self.model, batch, predictions, loss, count)
            state = [scope.get_current_value(variable) for variable in self.state.fixed]
            metrics = self._metrics(scope, count)
        refuse_untracked_variables(scope.untracked)
        changes: list[tuple[int, Tensor]] = []
        integers: list[tuple[int, Tensor]] = []
        for index, (new, old) in enumerate(zip(state, fixed, strict=True)):
            if new is old:  # untouched state is the same tensor
                continue
            if old.dtype.is_floating:
                change = tf.cast(new, self.dtype) - tf.cast(old, self.dtype)
                changes.append((index, change * tf.cast(weight, self.dtype)))
            else:
                integers.append((index, tf.convert_to_tensor(new)))
        return SliceResults(weighted, objective, changes, integers, metrics)

    def losses(
        self,
        trainable: Sequence[Tensor],
        fixed: Sequence[Tensor],
        examples: Sequence[Tensor],
        seeds: Tensor,
    ) -> Tensor:
        """Return the loss of each example of a slice, without training: float32 [n].

        Layers behave as in validation, so an example's loss depends neither on its neighbours in
        the slice nor on dropout, and batch statistics stay as they are.

        Raises:
            NoExampleLossError: the model has no loss per example.
        """
        packed = keras.tree.pack_sequence_as(self.sample, list(examples))
        batch = (*packed, None, None)[:3]
        with self._scope(trainable, fixed, seeds):
            predictions = model_call(self.model, batch[0], training=False)
            return example_losses(self.model, batch, predictions)

    def results_add(
        self, writer: MessageWriter, results: SliceResults, is_first: Tensor, training: bool
    ) -> None:
        """Append results to a message after the gradients; in validation only the metrics.

        Args:
            is_first: whether the batch's lowest virtual node, the source of the integers, is
                among the summed ones.
        """
        if training:
            for index, change in results.changes:
                shape = self.state.fixed[index].shape
                writer.add(FieldKind.CHANGE, index, change, shape)
            for index, value in results.integers:
                writer.add_integers(index, value, is_first)
        for index, (variable, grown) in enumerate(
            zip(self.state.metrics, results.metrics, strict=True)
        ):
            writer.add(FieldKind.METRIC, index, grown, variable.shape)
        if training:
            writer.add(FieldKind.LOSS, 0, results.loss, ())

    def _scope(
        self, trainable: Sequence[Tensor], fixed: Sequence[Tensor], seeds: Tensor
    ) -> TrainingScope:
        mapping = [
            *zip(self.state.trainable, trainable, strict=True),
            *zip(self.state.fixed, fixed, strict=True),
            *((variable, seeds[index]) for index, variable in enumerate(self.state.seeds)),
            *((v, tf.zeros(v.shape, v.value.dtype)) for v in self.state.metrics),
        ]
        return TrainingScope(mapping, collect_losses=True)

    def _metrics(self, scope: keras.StatelessScope, count: Tensor) -> list[Tensor]:
        per_batch = {id(variable) for variable in unweighted_trackers(self.model)}
        values = []
        for variable in self.state.metrics:
            grown = tf.cast(scope.get_current_value(variable), self.dtype)
            if id(variable) in per_batch:
                grown *= tf.cast(count, self.dtype)
            values.append(grown)
        return values


def _message_dtype(variables: Sequence[Any]) -> tf.DType:
    """Return the dtype of all sums: float64 if any variable has it, else float32."""
    has_double = any(variable.value.dtype == tf.float64 for variable in variables)
    return tf.float64 if has_double else tf.float32
