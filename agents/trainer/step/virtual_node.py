"""The computation of one virtual node: the model's forward pass on a slice, and its results.

All functions here are traced. State goes in and out as tensors: every virtual node starts a step
from the same values and returns results that are summed over virtual nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.compiled_losses import (
    example_losses,
    masked_totals,
    means_noted,
    sums_scaled,
    unmasked_share,
)
from agents.trainer.model.constants import is_constant
from agents.trainer.model.custom_steps import (
    CustomStep,
    Update,
    custom_step,
    is_custom,
    outdated_refuse,
    unsettled_refuse,
)
from agents.trainer.model.divisors import Divisor, Divisors
from agents.trainer.model.keras_private import (
    batch_of,
    mean_metrics,
    metrics_update,
    model_call,
    model_loss,
    unweighted_trackers,
)
from agents.trainer.model.state import ModelState
from agents.trainer.model.stateful_ops import enclosed_state_refused, refuse_untracked_variables
from agents.trainer.model.training_scope import TrainingScope, Turn
from agents.trainer.step.after_update import AfterUpdate
from agents.trainer.step.gradient_layout import FieldKind, MessageWriter

Tensor = Any


@dataclass(frozen=True)
class SliceResults:
    """Results of a forward pass over a slice except gradients, ready to be summed.

    Attributes:
        loss: loss of the slice times `weight`.
        objective: `loss` times the optimizer's loss scale; to be differentiated.
        gradients: by each weight, times the share, as a custom `train_step` took them; None: they
            are those of `objective`.
        changes: changes of floating-point state, weighted by the share: (index in `fixed`, change).
        integers: new values of other state: (index in `fixed`, value).
        metrics: growth of each metric variable.
        weights: changes of weights that the model itself assigns, weighted by the share: (index in
            `trainable`, change).
        assigned: all values that the model assigned to weights: (index in `trainable`, value).
        weight: the slice's share of the batch's examples, or, if `by_places`, of the places that
            masks leave: times their share of all places, by whose sum the batch's is divided.
        by_places: indices of `metrics` that are weighted likewise, as losses for the logs are; None
            if the loss is no mean over unmasked places.
        divisor: of the loss, in the job's own code; these places are then what it adds up.
    """

    loss: Tensor
    objective: Tensor
    gradients: list[Tensor | None] | None
    changes: list[tuple[int, Tensor]]
    integers: list[tuple[int, Tensor]]
    metrics: list[Tensor]
    weights: list[tuple[int, Tensor]]
    assigned: list[tuple[int, Tensor]]
    weight: Tensor
    by_places: frozenset[int] | None
    divisor: Divisor | None


class MoreTurnsError(Exception):
    """A custom step takes `num_turns` turns, more than it was traced for."""

    def __init__(self, num_turns: int) -> None:
        self.num_turns = num_turns


class VirtualNode:
    """The forward pass of one model, for examples of one structure.

    Attributes:
        num_turns: of a step; set by whoever traces it.
        updates: by turn, those of a custom step, as traced last.
        after_update: what a custom step computes after its updates, as traced last.
        sums: names of losses that are sums over the batch.
    """

    def __init__(self, model: keras.Model, state: ModelState, sample: tuple[Any, ...]) -> None:
        self.model = model
        self.state = state
        self.sample = sample
        self.num_turns = 1
        self.updates: dict[int, list[Update]] = {}
        self.after_update = AfterUpdate((), ())
        self.sums: set[str] = set()
        self.dtype = _message_dtype([*state.trainable, *state.fixed, *state.metrics])

    def forward(
        self,
        fixed: Sequence[Tensor],
        examples: Sequence[Tensor],
        weight: Tensor,
        seeds: Tensor,
        training: bool,
        trainable: Sequence[Tensor] | None = None,
        watch: Callable[[Tensor], None] | None = None,
        turn: int = 0,
    ) -> SliceResults:
        """Run the model on a slice.

        Args:
            fixed: values of the other variables before the step.
            examples: flat arrays of the slice.
            weight: the slice's share of the batch's examples.
            seeds: int64 [number of random generators, 2].
            trainable: stands for the weights; None for the weights themselves, whose gradients a
                function with a custom gradient gives only if it reads them as variables.
            watch: lets the gradient be taken by a value that the model assigns to a weight.
            turn: of a training step that takes several, whose results are returned.

        Raises:
            MoreTurnsError: the step takes more turns than `num_turns`.
            JobCodeError: the model changes state that it does not list, or in an inner function.
        """
        batch = batch_of(self.sample, examples)
        count = tf.cast(tf.shape(examples[0])[0], tf.float32)
        num_turns = self.num_turns if training else 1
        with (
            self._scope(fixed, seeds, trainable, watch, turn, num_turns) as scope,
            enclosed_state_refused(scope),
        ):
            with means_noted(self.model) as means, sums_scaled(self.model, 1.0 / weight) as sums:
                step = self._step(scope, batch, count, weight, training, turn)
            self.sums |= sums
            loss, gradients = step.loss, step.gradients
            unmasked, divisors = unmasked_share(means), Divisors(examples)
            divisor = (step.divisor or divisors.of(loss)) if unmasked is None else None
            if divisor is not None:
                loss, unmasked = divisor.settled(loss), divisor.share
            loss_weight = weight if unmasked is None else weight * unmasked
            weighted = tf.cast(loss, self.dtype) * tf.cast(loss_weight, self.dtype)
            objective = weighted
            if training and gradients is None:
                objective = self.model.optimizer.scale_loss(weighted)
            state = [scope.new_value(variable) for variable in self.state.fixed]
            metrics = self._metrics(scope, count, weight, divisor)
            grown = [scope.new_value(variable) for variable in self.state.metrics]
        refuse_untracked_variables(scope.untracked)
        given = [each for each in gradients or () if each is not None]
        kept = [weighted, given, state, grown, [new for _, new in scope.assigned]]
        outdated_refuse(self.model, scope.outdated(kept))
        after = AfterUpdate(scope.after_all(), list(zip(self.state.fixed, fixed, strict=True)))

        def defer(variable: Any, value: Tensor, is_sum: bool = False) -> bool:
            if scope.turn_of(value) < num_turns:
                return False
            after.defer(variable, value, is_sum)
            return True

        if training:
            self._refuse_other_weights()
        by_places = None
        if divisor is not None:
            by_places = divisors.indices(grown, divisor)
        elif unmasked is not None:
            by_places = self._indices(masked_totals(self.model, means))
        for index in by_places or ():
            metrics[index] *= tf.cast(unmasked, self.dtype)
        share = tf.cast(weight, self.dtype)
        changes, integers = self._changes(state, fixed, share, defer)
        places = {id(variable): index for index, variable in enumerate(self.state.trainable)}
        assigned = [(places[id(v)], new) for v, new in scope.assigned if id(v) in places]
        before = self.state.trainable if trainable is None else trainable
        weights = [
            (index, (tf.cast(new, self.dtype) - tf.cast(before[index], self.dtype)) * share)
            for index, new in dict(assigned).items()
            if not defer(self.state.trainable[index], new)
        ]
        for variable, value in zip(self.state.metrics, grown, strict=True):
            defer(variable, value, is_sum=True)
        unsettled_refuse(self.model, after.unsettled)
        if training and turn == num_turns - 1:
            self.after_update = after
        return SliceResults(
            weighted,
            objective,
            gradients,
            changes,
            integers,
            metrics,
            weights,
            assigned,
            loss_weight,
            by_places,
            divisor,
        )

    def _step(
        self,
        scope: TrainingScope,
        batch: tuple[Any, Any, Any],
        count: Tensor,
        weight: Tensor,
        training: bool,
        turn: int,
    ) -> CustomStep:
        """Run the model and update its metrics; without gradients if the step is Keras's own."""
        if is_custom(self.model, training):
            step = custom_step(self.model, batch, training, weight, scope, turn)
            if training and step.num_turns > self.num_turns:
                raise MoreTurnsError(step.num_turns)
            if training:
                self.updates[turn] = step.updates
                self.sums |= {"of train_step()"} if step.has_sums else set()
            return step
        predictions = model_call(self.model, batch[0], training=training)
        loss = model_loss(self.model, batch, predictions, training=training)
        metrics_update(self.model, batch, predictions, loss, count)
        return CustomStep(loss, None)

    def losses(
        self,
        is_single: bool,
        fixed: Sequence[Tensor],
        examples: Sequence[Tensor],
        seeds: Tensor,
    ) -> Tensor:
        """Return the loss of each example of a slice, without training: float32 [n].

        Layers behave as in validation, so an example's loss depends neither on its neighbours in
        the slice nor on dropout, and batch statistics stay as they are. Losses that are not finite
        are infinite; minus infinite are those of examples whose weights are all 0, which would rank
        high among negative losses.

        Args:
            is_single: the slice is one example, whose loss is that of the model as a whole, with
                regularisers and `add_loss`.

        Raises:
            NoExampleLossError: the model has no loss per example in a larger slice.
        """
        batch = batch_of(self.sample, examples)
        losses_of = _single_loss if is_single else example_losses
        with self._scope(fixed, seeds):
            predictions = model_call(self.model, batch[0], training=False)
            losses, is_weighted = losses_of(self.model, batch, predictions)
        ranked = tf.where(is_weighted, losses, -math.inf)
        return tf.where(tf.math.is_finite(losses), ranked, math.inf)

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
            for index, change in results.weights:
                writer.add(FieldKind.WEIGHT, index, change, self.state.trainable[index].shape)
            for index, value in results.integers:
                writer.add_integers(index, value, is_first)
        is_masked = results.by_places is not None
        by_places = results.by_places or ()
        for index, (variable, grown) in enumerate(
            zip(self.state.metrics, results.metrics, strict=True)
        ):
            writer.add(FieldKind.METRIC, index, grown, variable.shape, index in by_places)
        if is_masked:
            writer.add(FieldKind.UNMASKED, 0, results.weight, ())
        if training:
            writer.add(FieldKind.LOSS, 0, results.loss, (), is_masked)

    def _refuse_other_weights(self) -> None:
        """Raise if the model's own call has set `trainable`: `fit` would look at it afterwards."""
        lists = (self.model.trainable_variables, self.state.trainable)
        now, known = ({id(variable): variable for variable in each} for each in lists)
        changed = [(now | known)[key].path for key in now.keys() ^ known.keys()]
        if changed:
            raise JobCodeError(
                "custom_trainable_weights",
                "code.build",
                f"the model's own call sets trainable, which changes {', '.join(changed[:3])}; set "
                "it on layers in build, before compile",
            )

    def _scope(
        self,
        fixed: Sequence[Tensor],
        seeds: Tensor,
        trainable: Sequence[Tensor] | None = None,
        watch: Callable[[Tensor], None] | None = None,
        turn: int = 0,
        num_turns: int = 1,
    ) -> TrainingScope:
        weights = self.state.trainable
        mapping = [
            *(() if trainable is None else zip(weights, trainable, strict=True)),
            *zip(self.state.fixed, fixed, strict=True),
            *((variable, seeds[index]) for index, variable in enumerate(self.state.seeds)),
            *((v, tf.zeros(v.shape, v.value.dtype)) for v in self.state.metrics),
        ]
        parts = (self.state.seeds, self.state.optimizer)
        ids = [frozenset(id(variable) for variable in part) for part in parts]
        live = weights if trainable is None else ()
        return TrainingScope(mapping, live, watch, Turn(turn, num_turns, *ids), collect_losses=True)

    def _changes(
        self,
        state: Sequence[Tensor],
        fixed: Sequence[Tensor],
        share: Tensor,
        defer: Callable[[Any, Tensor], bool],
    ) -> tuple[list[tuple[int, Tensor]], list[tuple[int, Tensor]]]:
        """Return `changes` and `integers` of the results, without what is put off."""
        changes: list[tuple[int, Tensor]] = []
        integers: list[tuple[int, Tensor]] = []
        for index, (new, old) in enumerate(zip(state, fixed, strict=True)):
            if new is old or defer(self.state.fixed[index], new):
                continue  # untouched state is the same tensor
            if old.dtype.is_floating:
                change = tf.cast(new, self.dtype) - tf.cast(old, self.dtype)
                changes.append((index, change * share))
            else:
                integers.append((index, tf.convert_to_tensor(new)))
        return changes, integers

    def _indices(self, variables: Sequence[Any]) -> frozenset[int]:
        """Return the indices of variables of metrics."""
        ids = {id(variable) for variable in variables}
        return frozenset(k for k, each in enumerate(self.state.metrics) if id(each) in ids)

    def _metrics(
        self, scope: TrainingScope, count: Tensor, weight: Tensor, divisor: Divisor | None
    ) -> list[Tensor]:
        """Return the growth of the metric variables.

        A mean that is given one value for a batch has one vote for each batch in `fit`; the vote of
        a slice is its share of the batch.
        """
        per_batch = {id(variable) for variable in unweighted_trackers(self.model)}
        shared = {
            id(variable)
            for metric in mean_metrics(self.model)
            if is_constant(scope.passed_over.get(id(metric.count), scope.new_value(metric.count)))
            for variable in metric.variables
        }
        values = []
        for variable in self.state.metrics:
            grown = tf.cast(scope.new_value(variable), self.dtype)
            if id(variable) in per_batch:
                grown *= tf.cast(count, self.dtype)
            elif id(variable) in shared:
                grown *= tf.cast(weight, self.dtype)
            values.append(grown if divisor is None else divisor.settled(grown))
        return values


def _single_loss(
    model: keras.Model, batch: tuple[Any, Any, Any], predictions: Any
) -> tuple[Tensor, Tensor]:
    """Return what `example_losses` does, of a batch of one example."""
    loss = model_loss(model, batch, predictions, training=False)
    given = [leaf for leaf in keras.tree.flatten(batch[2]) if leaf is not None]
    weighted = [tf.reduce_any(tf.cast(leaf, tf.bool)) for leaf in given]
    is_weighted = tf.reduce_any(weighted) if weighted else tf.constant(True)
    return tf.cast(tf.reshape(loss, [1]), tf.float32), tf.reshape(is_weighted, [1])


def gradients_of(
    tape: tf.GradientTape, results: SliceResults, trainable: Sequence[Tensor]
) -> list[Tensor | None]:
    """Differentiate the objective by the weights, also by values that the model assigned to them.

    As in `fit`, where the gradient by a variable is that by all of its values that were read.
    A custom step has taken them itself.
    """
    if results.gradients is not None:
        return list(results.gradients)
    values = [*enumerate(trainable), *results.assigned]
    found = tape.gradient(results.objective, [value for _, value in values])
    gradients: list[Tensor | None] = [None] * len(trainable)
    for (index, _), gradient in zip(values, found, strict=True):
        earlier = gradients[index]
        if earlier is None or gradient is None:
            gradients[index] = gradient if earlier is None else earlier
        else:
            gradients[index] = tf.convert_to_tensor(earlier) + tf.convert_to_tensor(gradient)
    divisor = results.divisor
    return gradients if divisor is None else [divisor.settled(each) for each in gradients]


def _message_dtype(variables: Sequence[Any]) -> tf.DType:
    """Return the dtype of all sums: float64 if any variable has it, else float32."""
    has_double = any(variable.value.dtype == tf.float64 for variable in variables)
    return tf.float64 if has_double else tf.float32
