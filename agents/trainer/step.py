"""The traced functions of a training step: one set for every mapping and every membership.

A step is three calls. `train` runs this trainer's virtual nodes one after another and leaves its
subtree sums; `exchange` (only with more than one trainer) puts all trainers' sums together along
the tree; `apply` updates the variables. Only `exchange` contains collectives. A resize changes
tensors that are fed, never a function, so nothing is traced twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from agents.trainer.folding import fold
from agents.trainer.hidden_state import refuse_hidden_state
from agents.trainer.keras_access import (
    TrainingScope,
    learning_rates_scaled,
    metrics_update,
    model_call,
    model_loss,
    sums_scaled,
    unweighted_trackers,
)
from agents.trainer.message import (
    MessageWriter,
    Piece,
    PieceKind,
    integers_read,
    message_read,
    message_width,
    squared_length,
)
from agents.trainer.state import ModelState

Tensor = Any
Body = Callable[..., list[Tensor]]


class StepFunctions:
    """Training and validation steps of one model, traced once."""

    def __init__(
        self,
        model: keras.Model,
        state: ModelState,
        sample: tuple[Any, ...],
        has_validation: bool = True,
    ) -> None:
        """Trace both kinds of step for examples like `sample`: `(x[, y[, sample_weight]])`.

        Args:
            has_validation: there are steps of the second kind; else they are not traced.
        """
        self.model = model
        self.state = state
        self.sample = sample
        self.seeds = state.seeds
        self.fixed = state.fixed
        self.dtype = _message_dtype([*state.trainable, *self.fixed, *state.metrics])
        self.example_specs = example_specs(sample)
        self.train_pieces: list[Piece] = []
        self.validate_pieces: list[Piece] = []
        self.train = self._trace_sweep(self._train_one, self.train_pieces)
        self.has_validation = has_validation
        self.validate: Any = (
            self._trace_sweep(self._validate_one, self.validate_pieces) if has_validation else None
        )
        self.apply = self._traced(self._apply, [tf.TensorSpec([self.train_width], self.dtype)])
        self.count = self._traced(self._count, [tf.TensorSpec([self.validate_width], self.dtype)])

    @property
    def train_width(self) -> int:
        """Elements of a training step's vector."""
        return message_width(self.train_pieces)

    @property
    def validate_width(self) -> int:
        """Elements of a validation step's vector."""
        return message_width(self.validate_pieces)

    @staticmethod
    def _traced(function: Callable[..., Any], signature: list[tf.TensorSpec]) -> Any:
        """Make a traced function the way Keras's `fit` does: without rewriting Python code."""
        return tf.function(function, input_signature=signature, autograph=False)

    def _trace_sweep(self, one: Body, pieces: list[Piece]) -> Any:
        """Trace the loop over virtual nodes around `one`, which fills `pieces`."""
        one_virtual_node = tf.function(partial(one, pieces), autograph=False).get_concrete_function(
            [tf.TensorSpec(v.shape, v.value.dtype) for v in self.state.trainable],
            [tf.TensorSpec(v.shape, v.value.dtype) for v in self.fixed],
            self.example_specs,
            tf.TensorSpec([], tf.float32),
            tf.TensorSpec([], tf.bool),
            tf.TensorSpec([len(self.seeds), 2], tf.int64),
        )
        refuse_hidden_state(one_virtual_node)
        widths = [segment.shape[0] for segment in one_virtual_node.structured_outputs]
        assert sum(widths) == message_width(pieces)

        def sweep(
            program: Tensor, weights: Tensor, num_rows: Tensor, seeds: Tensor, *examples: Tensor
        ) -> Tensor:
            trainable = [tf.convert_to_tensor(v.value) for v in self.state.trainable]
            fixed = [tf.convert_to_tensor(v.value) for v in self.fixed]

            def leaf(index: Tensor) -> list[Tensor]:
                start, length = program[index, 0], program[index, 1]
                local = [array[start : start + length] for array in examples]
                for array, spec in zip(local, self.example_specs, strict=True):
                    array.set_shape(spec.shape)
                vectors: list[Tensor] = one_virtual_node(
                    trainable, fixed, local, weights[index], program[index, 3] > 0, seeds[index]
                )
                return vectors

            stacks = fold(leaf, program[:, 2], widths, self.dtype)
            return tf.cond(
                tf.equal(num_rows, 1),
                lambda: tf.concat([stack.read(0) for stack in stacks], 0)[tf.newaxis],
                lambda: tf.concat([stack.gather(tf.range(num_rows)) for stack in stacks], 1),
            )

        signature = [
            tf.TensorSpec([None, 4], tf.int32),
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([None, len(self.seeds), 2], tf.int64),
            *self.example_specs,
        ]
        return self._traced(sweep, signature)

    def _scope(
        self, trainable: list[Tensor], fixed: list[Tensor], seeds: Tensor
    ) -> keras.StatelessScope:
        mapping = [
            *zip(self.state.trainable, trainable, strict=True),
            *zip(self.fixed, fixed, strict=True),
            *((variable, seeds[index]) for index, variable in enumerate(self.seeds)),
            *((v, tf.zeros(v.shape, v.value.dtype)) for v in self.state.metrics),
        ]
        return TrainingScope(mapping, collect_losses=True)

    def _train_one(
        self,
        pieces: list[Piece],
        trainable: list[Tensor],
        fixed: list[Tensor],
        examples: list[Tensor],
        weight: Tensor,
        is_first: Tensor,
        seeds: Tensor,
    ) -> list[Tensor]:
        """Forward and backward of one virtual node from the step's common state."""
        batch = self._batch(examples)
        count = tf.cast(tf.shape(examples[0])[0], tf.float32)
        with self._scope(trainable, fixed, seeds) as scope:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(trainable)
                predictions = model_call(self.model, batch[0], training=True)
                with sums_scaled(self.model, 1.0 / weight):
                    loss = model_loss(self.model, batch, predictions, training=True)
                weighted = tf.cast(loss, self.dtype) * tf.cast(weight, self.dtype)
                objective = self.model.optimizer.scale_loss(weighted)
            metrics_update(self.model, batch, predictions, loss, count)
        gradients = tape.gradient(objective, trainable)
        writer = MessageWriter(self.dtype)
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                writer.add(PieceKind.GRADIENT, index, gradient, trainable[index].shape)
        writer.add_square(1.0 / weight)
        self._add_changes(writer, scope, fixed, weight, is_first)
        self._add_metrics(writer, scope, count)
        writer.add(PieceKind.LOSS, 0, weighted, ())
        found, segments = writer.finish()
        pieces.extend(found)
        return segments

    def _validate_one(
        self,
        pieces: list[Piece],
        trainable: list[Tensor],
        fixed: list[Tensor],
        examples: list[Tensor],
        weight: Tensor,
        is_first: Tensor,  # noqa: ARG002  one signature for both kinds of step
        seeds: Tensor,
    ) -> list[Tensor]:
        """Forward of one virtual node, for the metrics alone."""
        batch = self._batch(examples)
        count = tf.cast(tf.shape(examples[0])[0], tf.float32)
        with self._scope(trainable, fixed, seeds) as scope:
            predictions = model_call(self.model, batch[0], training=False)
            with sums_scaled(self.model, 1.0 / weight):
                loss = model_loss(self.model, batch, predictions, training=False)
            metrics_update(self.model, batch, predictions, loss, count)
        writer = MessageWriter(self.dtype)
        self._add_metrics(writer, scope, count)
        found, segments = writer.finish()
        pieces.extend(found)
        return segments

    def _batch(self, examples: list[Tensor]) -> tuple[Any, Any, Any]:
        packed = keras.tree.pack_sequence_as(self.sample, examples)
        inputs, targets, sample_weight = (*packed, None, None)[:3]
        return inputs, targets, sample_weight

    def _add_changes(
        self,
        writer: MessageWriter,
        scope: keras.StatelessScope,
        fixed: list[Tensor],
        weight: Tensor,
        is_first: Tensor,
    ) -> None:
        """Add what the forward pass changed; untouched state is the very tensor it was."""
        for index, (variable, old) in enumerate(zip(self.fixed, fixed, strict=True)):
            new = scope.get_current_value(variable)
            if new is old:
                continue
            if old.dtype.is_floating:
                change = tf.cast(new, self.dtype) - tf.cast(old, self.dtype)
                change *= tf.cast(weight, self.dtype)
                writer.add(PieceKind.CHANGE, index, change, old.shape)
            else:
                writer.add_integers(index, tf.convert_to_tensor(new), is_first)

    def _add_metrics(
        self, writer: MessageWriter, scope: keras.StatelessScope, count: Tensor
    ) -> None:
        per_batch = {id(variable) for variable in unweighted_trackers(self.model)}
        for index, variable in enumerate(self.state.metrics):
            grown = tf.cast(scope.get_current_value(variable), self.dtype)
            if id(variable) in per_batch:
                grown *= tf.cast(count, self.dtype)
            writer.add(PieceKind.METRIC, index, grown, variable.shape)

    def _apply(self, vector: Tensor) -> Tensor:
        """Update every variable from the sum over all virtual nodes.

        Returns:
            [4]: the loss; the mean of the virtual nodes' squared gradient lengths, weighted by
            examples; how many they are; the squared length of the mean gradient. The lengths are
            those of gradients without the loss scale.
        """
        gradients: list[Tensor | None] = [None] * len(self.state.trainable)
        loss = tf.zeros([], self.dtype)
        square = tf.zeros([2], self.dtype)
        sums = []
        scale = tf.cast(self.model.optimizer.scale_loss(tf.ones([])), self.dtype)
        for piece, value in message_read(self.train_pieces, vector):
            if piece.kind is PieceKind.GRADIENT:
                sums.append(value)
                dtype = self.state.trainable[piece.index].value.dtype
                gradients[piece.index] = tf.cast(value, dtype)
            elif piece.kind is PieceKind.CHANGE:
                variable = self.fixed[piece.index].value
                variable.assign(tf.cast(tf.cast(variable, self.dtype) + value, variable.dtype))
            elif piece.kind is PieceKind.INTEGER:
                variable = self.fixed[piece.index].value
                variable.assign(integers_read(value, variable.dtype))
            elif piece.kind is PieceKind.METRIC:
                variable = self.state.metrics[piece.index].value
                variable.assign_add(tf.cast(value, variable.dtype))
            elif piece.kind is PieceKind.SQUARE:
                square = value
            else:
                loss = value
        square_of_mean = squared_length(sums, self.dtype)
        with self._learning_rates():
            self.model.optimizer.apply(gradients, self.state.trainable)
        unscaled = 1.0 / scale**2
        return tf.stack([loss, square[0] * unscaled, square[1], square_of_mean * unscaled])

    def _learning_rates(self) -> AbstractContextManager[None]:
        """Let the rates follow the batch size, in a job whose batch size may change."""
        scaling = self.state.scaling
        if scaling is None:
            return nullcontext()
        return learning_rates_scaled(self.model.optimizer, scaling.variable.value[-1])

    def _count(self, vector: Tensor) -> None:
        """Add a validation step's sums to the metric variables."""
        for piece, value in message_read(self.validate_pieces, vector):
            variable = self.state.metrics[piece.index].value
            variable.assign_add(tf.cast(value, variable.dtype))


def _message_dtype(variables: Sequence[Any]) -> tf.DType:
    """One dtype for all sums: float64 as soon as any variable has it."""
    has_double = any(variable.value.dtype == tf.float64 for variable in variables)
    return tf.float64 if has_double else tf.float32


def example_specs(sample: tuple[Any, ...]) -> list[tf.TensorSpec]:
    """Give the spec of each array of a sample of examples, any number of them."""
    values = [tf.convert_to_tensor(array) for array in keras.tree.flatten(sample)]
    return [tf.TensorSpec([None, *value.shape[1:]], value.dtype) for value in values]
