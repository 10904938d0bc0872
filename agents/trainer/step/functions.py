"""The traced functions of a training step: one set for every mapping and every membership.

A step consists of three calls. `train` runs this trainer's virtual nodes one after another and
returns their subtree sums; `exchange` (only with more than one trainer) reduces all trainers' sums
along the tree; `apply` updates the variables. Only `exchange` contains collectives. A resize
changes only tensors that are fed, so no function is traced again.

A step of the job's own may take several turns: the three calls for each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from agents.trainer.collectives.stack_machine import stack_reduce
from agents.trainer.model.constants import constants_fingerprint
from agents.trainer.model.keras_private import learning_rates_scaled
from agents.trainer.model.optimizers import optimizer_of, optimizers_of
from agents.trainer.model.state import ModelState
from agents.trainer.model.stateful_ops import recomputed_state_refused, refuse_process_operations
from agents.trainer.step.gradient_layout import (
    FieldKind,
    LayoutField,
    MessageWriter,
    integers_read,
    message_read,
    message_width,
    squared_length,
)
from agents.trainer.step.merging import NotMergeableError, PassTracer
from agents.trainer.step.selection_pass import losses_traced
from agents.trainer.step.sweep import slice_of, sweep_signature
from agents.trainer.step.virtual_node import (
    MoreTurnsError,
    VirtualNode,
    gradients_of,
)

Tensor = Any
Body = Callable[..., list[Tensor]]


@dataclass(frozen=True)
class TurnFunctions:
    """Functions of one turn of a training step.

    Attributes:
        pieces: layout of the vector of sums, behind which zeros fill the width of all turns.
    """

    train: Any
    apply: Any
    pieces: list[LayoutField]


class StepFunctions:
    """Training and validation steps of one model, traced once.

    Attributes:
        turns: of a training step: one, except for steps of a job's own.
        bytes_per_example: memory per example of a pass over several virtual nodes; None if they
            run one after another.
        not_merged_because: why requested merging is not possible; empty otherwise.
        losses: computes the examples' losses of a selection pass; None for other jobs.
    """

    def __init__(
        self,
        model: keras.Model,
        state: ModelState,
        sample: tuple[Any, ...],
        has_validation: bool = True,
        is_merged: bool = False,
    ) -> None:
        """Trace both kinds of step for examples like `sample`: `(x[, y[, sample_weight]])`.

        Args:
            has_validation: trace validation steps too.
            is_merged: merge virtual nodes into passes, if the model allows it.
        """
        self.model = model
        self.state = state
        self.sample = sample
        self.seeds = state.seeds
        self.fixed = state.fixed
        self.virtual_node = VirtualNode(model, state, sample)
        self.dtype = self.virtual_node.dtype
        self.example_specs = example_specs(sample)
        self.validate_pieces: list[LayoutField] = []
        #: With a loss scale, steps with non-finite gradients are skipped and the scale is lowered.
        self.has_loss_scale = any(_scales_loss(each) for each in optimizers_of(model))
        self.has_validation = has_validation
        self.bytes_per_example: int | None = None
        self.not_merged_because = ""
        self.validate: Any = None
        sweeps = self._trace_merged() if is_merged else []
        if not sweeps:
            sweeps = self._trace_turns()
            if has_validation:
                self.validate = self._trace_sweep(self._validate_one, self.validate_pieces)
        self.train_width = max(message_width(pieces) for _, pieces in sweeps)
        self.losses: Any = None
        selection = state.selection
        if selection is not None and selection.spec.needs_losses:
            self.losses = losses_traced(self.virtual_node, self.example_specs)
        signature = [tf.TensorSpec([self.train_width], self.dtype)]
        self.turns = [
            TurnFunctions(
                partial(self._filled, train) if len(sweeps) > 1 else train,
                self._traced(partial(self._apply, turn, pieces), signature),
                pieces,
            )
            for turn, (train, pieces) in enumerate(sweeps)
        ]
        self.count = self._traced(self._count, [tf.TensorSpec([self.validate_width], self.dtype)])

    @property
    def validate_width(self) -> int:
        """Number of elements of a validation step's vector."""
        return message_width(self.validate_pieces)

    def train_step(self, *arguments: Tensor) -> tuple[list[Tensor], Tensor]:
        """Run a whole step of one trainer whose virtual nodes are in one piece.

        Returns:
            The vectors of all turns, and what the last `apply` returns, with the loss of all.
        """
        vectors, loss = [], 0.0
        told: Tensor = None
        for turn in self.turns:
            vectors.append(turn.train(*arguments)[0])
            told = turn.apply(vectors[-1])
            loss += told[0]
        return vectors, tf.concat([[loss], told[1:]], 0)

    def loss_of(self, vector: Tensor, turn: int = 0) -> float:
        """Return the loss from a turn's reduced vector."""
        pieces = self.turns[turn].pieces
        end = message_width(pieces)
        return float(vector[end - 1] / vector[end - 2] if pieces[-1].by_places else vector[end - 1])

    @staticmethod
    def _traced(function: Callable[..., Any], signature: list[tf.TensorSpec]) -> Any:
        """Make a traced function as Keras's `fit` does: without AutoGraph."""
        return tf.function(function, input_signature=signature, autograph=False)

    def _filled(self, train: Any, *arguments: Tensor) -> Tensor:
        """Return a turn's rows, filled with zeros to the width of all turns."""
        rows = train(*arguments)
        return tf.pad(rows, [[0, 0], [0, self.train_width - rows.shape[1]]])

    def _trace_turns(self) -> list[tuple[Any, list[LayoutField]]]:
        """Trace the virtual nodes' part of a training step, turn by turn."""
        node = self.virtual_node
        while True:
            sweeps = []
            try:
                for turn in range(node.num_turns):
                    pieces: list[LayoutField] = []
                    one = partial(self._train_one, turn)
                    sweeps.append((self._trace_sweep(one, pieces), pieces))
            except MoreTurnsError as more:  # raised once: the number is known then
                node.num_turns = more.num_turns
            else:
                return sweeps

    def _trace_merged(self) -> list[tuple[Any, list[LayoutField]]]:
        """Trace passes over several virtual nodes; returns none if the model does not allow it."""
        tracer = PassTracer(self.virtual_node, self.example_specs)
        pieces: list[LayoutField] = []
        try:
            train = tracer.trace(pieces, training=True)
            if self.has_validation:
                self.validate = tracer.trace(self.validate_pieces, training=False)
        except NotMergeableError as refusal:
            self.validate_pieces.clear()
            self.validate = None
            self.not_merged_because = str(refusal)
            return []
        self.bytes_per_example = tracer.bytes_per_example
        return [(train, pieces)]

    def _trace_sweep(self, one: Body, pieces: list[LayoutField]) -> Any:
        """Trace the loop over virtual nodes around `one`, which fills `pieces`."""
        one_virtual_node = tf.function(partial(one, pieces), autograph=False).get_concrete_function(
            [tf.TensorSpec(v.shape, v.value.dtype) for v in self.fixed],
            self.example_specs,
            tf.TensorSpec([], tf.float32),
            tf.TensorSpec([], tf.bool),
            tf.TensorSpec([len(self.seeds), 2], tf.int64),
        )
        refuse_process_operations(one_virtual_node.graph)
        self._note_constants(one_virtual_node.graph)
        widths = [segment.shape[0] for segment in one_virtual_node.structured_outputs]
        assert sum(widths) == message_width(pieces)

        def sweep(
            program: Tensor, weights: Tensor, num_rows: Tensor, seeds: Tensor, *examples: Tensor
        ) -> Tensor:
            fixed = [tf.convert_to_tensor(v.value) for v in self.fixed]

            def leaf(index: Tensor) -> list[Tensor]:
                local = slice_of(examples, self.example_specs, program[index, 0], program[index, 1])
                vectors: list[Tensor] = one_virtual_node(
                    fixed, local, weights[index], program[index, 3] > 0, seeds[index]
                )
                return vectors

            stacks = stack_reduce(leaf, program[:, 2], widths, self.dtype)
            return tf.cond(
                tf.equal(num_rows, 1),
                lambda: tf.concat([stack.read(0) for stack in stacks], 0)[tf.newaxis],
                lambda: tf.concat([stack.gather(tf.range(num_rows)) for stack in stacks], 1),
            )

        return self._traced(sweep, sweep_signature(self.state, self.example_specs))

    def _note_constants(self, graph: Any) -> None:
        self.state.constants.append(constants_fingerprint(graph, self.state.variables))

    def _train_one(
        self,
        turn: int,
        pieces: list[LayoutField],
        fixed: list[Tensor],
        examples: list[Tensor],
        weight: Tensor,
        is_first: Tensor,
        seeds: Tensor,
    ) -> list[Tensor]:
        """Run forward and backward pass of one virtual node from the step's common state."""
        weights = [variable.value for variable in self.state.trainable]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            results = self.virtual_node.forward(
                fixed, examples, weight, seeds, training=True, watch=tape.watch, turn=turn
            )
        with recomputed_state_refused():
            gradients = gradients_of(tape, results, weights)
        values: list[tuple[int, Tensor]] = []  # which the loss, and so the share, does not scale
        for index, variable in enumerate(self.state.trainable):
            if variable.overwrite_with_gradient and gradients[index] is not None:
                values.append((index, gradients[index] * weight))
                gradients[index] = None
        writer = MessageWriter(self.dtype)
        shapes = [variable.shape for variable in self.state.trainable]
        writer.add_gradients(gradients, shapes, results.weight, results.by_places is not None)
        for index, value in values:
            writer.add(FieldKind.VALUE, index, value, shapes[index])
        self.virtual_node.results_add(writer, results, is_first, training=True)
        return writer.finish(pieces)

    def _validate_one(
        self,
        pieces: list[LayoutField],
        fixed: list[Tensor],
        examples: list[Tensor],
        weight: Tensor,
        is_first: Tensor,
        seeds: Tensor,
    ) -> list[Tensor]:
        """Run the forward pass of one virtual node, for the metrics alone."""
        results = self.virtual_node.forward(fixed, examples, weight, seeds, training=False)
        writer = MessageWriter(self.dtype)
        self.virtual_node.results_add(writer, results, is_first, training=False)
        return writer.finish(pieces)

    def _apply(self, turn: int, pieces: list[LayoutField], vector: Tensor) -> Tensor:
        """Update every variable of a turn from the sum over all virtual nodes.

        Returns:
            [5]: the loss; the mean of the virtual nodes' squared gradient lengths, weighted by
            examples; the number of these lengths; the squared length of the mean gradient; 1 if
            the loss scale skips this step. The loss scale is divided out of the lengths.
        """
        gradients: list[Tensor | None] = [None] * len(self.state.trainable)
        loss = tf.zeros([], self.dtype)
        square = num_messages = tf.zeros([], self.dtype)
        sums = []
        after = self.virtual_node.after_update if turn == self.virtual_node.num_turns - 1 else None
        before = after.values_before() if after else []
        updates = self._updates(turn)
        scale = tf.cast(updates[0][0].scale_loss(tf.ones([])), self.dtype)
        for piece, value in message_read(pieces, vector[: message_width(pieces)]):
            if piece.kind in (FieldKind.GRADIENT, FieldKind.VALUE):
                if piece.kind is FieldKind.GRADIENT:
                    sums.append(value)
                dtype = self.state.trainable[piece.index].value.dtype
                gradients[piece.index] = tf.cast(value, dtype)
            elif piece.kind in (FieldKind.CHANGE, FieldKind.WEIGHT):
                changed = self.fixed if piece.kind is FieldKind.CHANGE else self.state.trainable
                variable = changed[piece.index].value
                variable.assign(tf.cast(tf.cast(variable, self.dtype) + value, variable.dtype))
            elif piece.kind is FieldKind.INTEGER:
                variable = self.fixed[piece.index].value
                variable.assign(integers_read(value, variable.dtype))
            elif piece.kind is FieldKind.METRIC:
                variable = self.state.metrics[piece.index].value
                variable.assign_add(tf.cast(value, variable.dtype))
            elif piece.kind is FieldKind.SQUARE:
                square = value
            elif piece.kind is FieldKind.MESSAGES:
                num_messages = value
            else:
                loss = value
        square_of_mean = squared_length(sums, self.dtype)
        is_skipped = tf.constant(False)
        with self._tunables(), self._learning_rates():
            for optimizer, indices in updates:
                given = [gradients[index] for index in indices]
                if _scales_loss(optimizer):
                    is_skipped |= tf.logical_not(optimizer.check_finite(given))
                weights = [self.state.trainable[index] for index in indices]
                optimizer.apply_gradients(zip(given, weights, strict=True))
        if after:
            after.assign(before)
        unscaled = 1.0 / scale**2
        lengths = [square * unscaled, num_messages, square_of_mean * unscaled]
        return tf.stack([loss, *lengths, tf.cast(is_skipped, self.dtype)])

    def _updates(self, turn: int) -> list[tuple[Any, list[int]]]:
        """Return the optimizers of a turn, each with the indices of the weights it updates."""
        updates = self.virtual_node.updates.get(turn)
        if updates is None:
            return [(self.model.optimizer, list(range(len(self.state.trainable))))]
        places = {id(variable): index for index, variable in enumerate(self.state.trainable)}
        return [
            (each.optimizer, [places[id(weight)] for _, weight in each.pairs]) for each in updates
        ]

    def _learning_rates(self) -> AbstractContextManager[None]:
        """Scale the learning rates with the batch size, in a job whose batch size may change."""
        scaling = self.state.scaling
        if scaling is None:
            return nullcontext()
        return learning_rates_scaled(optimizer_of(self.model), scaling.variable.value[-1])

    def _tunables(self) -> AbstractContextManager[None]:
        """Read the tunables from their variable, in a job that is tuned."""
        tunables = self.state.tunables
        return nullcontext() if tunables is None else tunables.traced()

    def _count(self, vector: Tensor) -> None:
        """Add a validation step's sums to the metric variables."""
        for piece, value in message_read(self.validate_pieces, vector):
            variable = self.state.metrics[piece.index].value
            variable.assign_add(tf.cast(value, variable.dtype))


def _scales_loss(optimizer: Any) -> bool:
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def example_specs(sample: tuple[Any, ...]) -> list[tf.TensorSpec]:
    """Return the spec of each array of a sample, for any number of examples."""
    values = [tf.convert_to_tensor(array) for array in keras.tree.flatten(sample)]
    return [tf.TensorSpec([None, *value.shape[1:]], value.dtype) for value in values]
