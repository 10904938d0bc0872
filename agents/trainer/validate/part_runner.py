"""Runs of a built model on batches of any size that leave the model as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.model.compiled_losses import (
    is_summed,
    losses_noted,
    means_noted,
    other_weights,
    sums_scaled,
)
from agents.trainer.model.constants import is_constant
from agents.trainer.model.custom_steps import custom_step, is_custom
from agents.trainer.model.divisors import Divisors
from agents.trainer.model.keras_private import (
    batch_of,
    metrics_update,
    model_call,
    model_layers,
    model_loss,
)
from agents.trainer.model.state import ModelState, as_array
from agents.trainer.model.stateful_ops import (
    enclosed_state_refused,
    refuse_process_operations,
    refuse_untracked_variables,
)
from agents.trainer.model.training_scope import TrainingScope
from agents.trainer.validate.random_draws import draws_sized_by_values

Tensor = Any
#: Relative differences attributed to rounding, for single and for half precision.
TOLERANCE = 1e-4
HALF_TOLERANCE = 3e-2
#: The same of a loss by the type of the numbers that it is computed from: four of its epsilons.
LOSS_TOLERANCES = {tf.float16: 2**-8, tf.bfloat16: 2**-5}
ABSOLUTE_TOLERANCE = 1e-5
#: Policies of layers that compute in half precision with weights of single precision.
MIXED_POLICIES = ("mixed_float16", "mixed_bfloat16")
OWN_CASTS = (TypeError, ValueError, tf.errors.InvalidArgumentError)
#: Largest number with which a gate begins that keeps a branch of the model nearly shut.
SHUT_GATE = 1e-2
#: Range of the numbers in its place: logarithms, roots and probabilities allow them, too.
OPEN_GATE = (0.1, 0.3)
#: Most bytes of outputs and labels that are copied, because a loss may run networks on them.
COPIED_LIMIT_BYTES = 2**24


@dataclass(frozen=True)
class BatchRun:
    """Results of running a batch: the loss, new values of metrics and of changed state.

    Attributes:
        losses: [n], the loss, then its terms: compiled losses before their weights, regularisers
            and what `add_loss` was given, and `share` if the loss has a divisor, by which it and
            its compiled terms are multiplied then.
        share: divisor of the loss for each example; 1 without one.
    """

    losses: np.ndarray
    metrics: list[np.ndarray]
    state: list[np.ndarray]
    share: float


class PartRunner:
    """Runs a built model on batches of any size without changing its state.

    Attributes:
        unequal_weights: a loss is a mean over unmasked places, by which this one cannot be
            weighted; empty if there is none.
        adds_losses: layers have losses of their own, by `add_loss` or of their activity.
        is_random: the model draws random numbers from the job's state.
        draws_vary: values of the data decide how many.
        changed: the variables that a run changes, besides metrics and states of generators.
        by_places: indices of metric variables that sum losses with the loss's divisor.
        tolerances: [n], the relative differences of each of the losses attributed to rounding.
    """

    def __init__(self, model: keras.Model, sample: tuple[Any, ...], training: bool) -> None:
        """Trace the model for examples like `sample`.

        Raises:
            JobCodeError: the traced function has effects or operations bound to a process.
        """
        self.model = model
        self.unequal_weights = ""
        self.adds_losses = False
        self.is_random = False
        state = ModelState(model)
        self.metrics = state.metrics
        self._random_states = state.seeds
        self.trainable = state.trainable
        self.changed: list[Any] = []
        self.by_places: frozenset[int] = frozenset()
        self.tolerances: list[float] = []
        self._weights = [*state.trainable, *state.fixed]
        self._shut = {id(variable) for variable in state.trainable if _is_shut(variable)}
        self._sample = sample
        self.is_training = training
        signature = [
            [_spec(leaf) for leaf in keras.tree.flatten(sample)],
            tf.TensorSpec([], tf.float32),
            [tf.TensorSpec(v.shape, v.dtype) for v in self.metrics],
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([], tf.int64),
        ]
        self._function = tf.function(self._run, autograph=False).get_concrete_function(*signature)
        refuse_process_operations(self._function.graph)
        leaves = self._function.graph.inputs[: len(signature[0])]
        self.draws_vary = self.is_random and draws_sized_by_values(self._function.graph, leaves)
        if self._shut and not np.isfinite(self(sample).losses).all():
            self._shut = set()
            run = tf.function(self._run, autograph=False)
            self._function = run.get_concrete_function(*signature)

    def __call__(
        self,
        examples: tuple[Any, ...],
        factor: float = 1.0,
        metrics: Sequence[np.ndarray] | None = None,
        seed: int = 0,
        outputs: np.ndarray | None = None,
        copies: int = 1,
    ) -> BatchRun:
        """Run a batch.

        Args:
            factor: on summed losses.
            metrics: values of the metrics' variables; None: zeros.
            outputs: a factor on the model's outputs for each example; None leaves them as they are.
            copies: most copies of each example that the loss gets in inference, after the model.
        """
        start = [np.zeros(v.shape) for v in self.metrics] if metrics is None else metrics
        outputs = np.ones(length(examples)) if outputs is None else outputs
        losses, grown, changed, share = self._function(
            [tf.convert_to_tensor(leaf) for leaf in keras.tree.flatten(examples)],
            tf.constant(factor, tf.float32),
            [
                tf.constant(value, variable.dtype)
                for value, variable in zip(start, self.metrics, strict=True)
            ],
            tf.constant(seed, tf.int64),
            tf.constant(outputs, tf.float32),
            tf.constant(copies, tf.int64),
        )
        return BatchRun(
            losses.numpy().astype("float64"),
            [value.numpy() for value in grown],
            [value.numpy() for value in changed],
            float(share),
        )

    def _run(
        self,
        leaves: list[Tensor],
        factor: Tensor,
        metrics: list[Tensor],
        seed: Tensor,
        outputs: Tensor,
        copies: Tensor,
    ) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
        batch = batch_of(self._sample, leaves)
        count = tf.cast(tf.shape(leaves[0])[0], tf.float32)
        # All variables are mapped, because the scope has no values of unmapped variables.
        mapping = [(variable, self._value(variable)) for variable in self._weights]
        mapping.extend(zip(self.metrics, metrics, strict=True))
        for number, state in enumerate(self._random_states):
            mapping.append((state, tf.cast([seed, number], state.dtype)))
        scope = TrainingScope(mapping, collect_losses=True)
        with scope, enclosed_state_refused(scope):
            model, training = self.model, self.is_training
            is_own = is_custom(model, training)
            copied_factor = factor
            predictions = None if is_own else model_call(model, batch[0], training)
            if not (is_own or training):
                predictions = keras.tree.map_structure(
                    lambda leaf: _scaled(leaf, outputs), predictions
                )
                copied = [
                    leaf
                    for leaf in keras.tree.flatten((predictions, batch[1:]))
                    if leaf is not None
                ]
                num_bytes = sum(tf.size(leaf, tf.int64) * leaf.dtype.size for leaf in copied)
                copies = tf.clip_by_value(COPIED_LIMIT_BYTES // (num_bytes + 1), 1, copies)
                copied_factor = factor / tf.cast(copies, tf.float32)
                predictions, batch = keras.tree.map_structure(
                    lambda leaf: _copied(leaf, copies), (predictions, batch)
                )
            with (
                means_noted(self.model, drops_masks=True) as means,
                sums_scaled(self.model, copied_factor, factor),
                losses_noted(self.model) as terms,
            ):
                divisors = Divisors(leaves, copies)
                if is_own:
                    step = custom_step(model, batch, training, 1.0 / factor)
                    loss, divisor = step.loss, step.divisor
                else:
                    loss = model_loss(model, batch, predictions, training)
                    divisor = divisors.of(loss)
            self.adds_losses = bool(scope.losses)
            # Tensors of a function that the model calls cannot be read in this graph.
            graph = tf.compat.v1.get_default_graph()
            terms, added = (
                [term for term in each if getattr(term, "graph", 0) is graph]
                for each in (terms, self.model.losses)
            )
            losses = [tf.reduce_sum(term) for term in (loss, *terms, *added)]
            least = rounding_tolerance(self.model)
            self.tolerances = [max(least, _loss_tolerance(term)) for term in losses]
            for index, term in enumerate(added, 1 + len(terms)):
                losses[index] *= tf.cast(factor, term.dtype) if is_summed(term) else 1
            if divisor is not None:  # which has to add up like the loss
                divided = [divisor.weighted(each) for each in losses[: 1 + len(terms)]]
                losses = [*divided, *losses[1 + len(terms) :], divisor.share]
                self.tolerances.append(least)
            self.unequal_weights = other_weights(self.model, means)
            if any(term.is_masked for term in means) and not all(
                is_constant(term, leaves) for term in added
            ):
                self.unequal_weights = "add_loss() or a regulariser of activity adds another loss"
            if not is_own:
                metrics_update(self.model, batch, predictions, loss, count)
            ends = {id(variable): scope.get_current_value(variable) for variable, _ in mapping}
        refuse_untracked_variables(scope.untracked)
        given = {id(variable): value for variable, value in mapping}
        self.changed = [v for v in self._weights if ends[id(v)] is not given[id(v)]]
        self.is_random = any(ends[id(v)] is not given[id(v)] for v in self._random_states)
        grown = [tf.convert_to_tensor(ends[id(v)]) for v in self.metrics]
        changed = [tf.convert_to_tensor(ends[id(v)]) for v in self.changed]
        share = tf.ones([])
        if divisor is not None:
            share = divisor.share
            self.by_places = divisors.indices(grown, divisor)
            grown = [divisor.settled(each) for each in grown]
        return tf.stack([tf.cast(term, tf.float32) for term in losses]), grown, changed, share

    def _value(self, variable: Any) -> Tensor:
        """Return a variable's value, or random numbers in place of one that hides what it gates.

        A head of zeros gives outputs that show nothing of a loss that compares them, and a factor
        of 0 or 1e-6 shows nothing of the branch behind it. What adds up does so with any weights,
        as long as they make no number too large.
        """
        value = tf.convert_to_tensor(variable.value)
        if id(variable) not in self._shut:
            return value
        shape = variable.shape
        if len(shape) > 1:
            noise = tf.random.stateless_normal(shape, seed=[0, 0])
            noise /= math.sqrt(math.prod(shape[:-1]))
        else:
            noise = tf.random.stateless_uniform(shape, [0, 0], *OPEN_GATE)
        return tf.cast(noise, value.dtype)


def _is_shut(variable: Any) -> bool:
    """Return whether a weight begins with the same number everywhere, 0 or nearly so.

    What float8 keeps of the largest numbers so far is no weight.
    """
    is_float = tf.as_dtype(variable.dtype).is_floating
    if variable.overwrite_with_gradient or not (is_float and math.prod(variable.shape)):
        return False
    value = as_array(variable.value).astype("float32").ravel()
    return bool(abs(value[0]) <= SHUT_GATE and np.all(value == value[0]))


@contextmanager
def single_precision(model: keras.Model) -> Iterator[bool]:
    """Let layers of mixed precision compute in float32 inside the block; yields if there are any.

    The rounding of half precision would hide small terms of a loss. Code of the job that casts by
    itself may raise one of `OWN_CASTS`.
    """
    layers = {id(layer): layer for layer in [model, *model_layers(model)]}
    mixed = [each for each in layers.values() if each.dtype_policy.name in MIXED_POLICIES]
    before = [layer.dtype_policy for layer in mixed]
    try:
        for layer in mixed:
            layer.dtype_policy = "float32"
        yield bool(mixed)
    finally:
        for layer, policy in zip(mixed, before, strict=True):
            layer.dtype_policy = policy


def rounding_tolerance(model: keras.Model) -> float:
    return HALF_TOLERANCE if "16" in str(model.compute_dtype) else TOLERANCE


def _loss_tolerance(loss: Tensor) -> float:
    """Return the tolerance by the types of a loss and the single numbers that it is made of."""
    found = {loss.ref()}
    waiting = [loss]
    while waiting:
        numbers = {tensor.ref() for tensor in waiting.pop().op.inputs if tensor.shape.rank == 0}
        waiting += [number.deref() for number in numbers - found]
        found |= numbers
    return max(LOSS_TOLERANCES.get(number.deref().dtype, 0.0) for number in found)


def length(examples: tuple[Any, ...]) -> int:
    return len(keras.tree.flatten(examples)[0])


def rows(examples: tuple[Any, ...], low: int, high: int) -> tuple[Any, ...]:
    part: tuple[Any, ...] = keras.tree.map_structure(lambda leaf: leaf[low:high], examples)
    return part


def _scaled(output: Tensor, factors: Tensor) -> Tensor:
    """Multiply a float output of a batch by a factor for each example."""
    if not tf.as_dtype(output.dtype).is_floating:
        return output
    ones = tf.ones([tf.rank(output) - 1], tf.int32)
    shaped = tf.reshape(factors, tf.concat([tf.shape(factors), ones], 0))
    scaled = output * tf.cast(shaped, output.dtype)
    scaled.set_shape(output.shape)
    return scaled


def _copied(leaf: Tensor | None, copies: Tensor) -> Tensor | None:
    """Repeat each example of an output or of labels."""
    if leaf is None or leaf.shape.rank == 0:
        return leaf
    copied = tf.repeat(leaf, copies, axis=0)
    copied.set_shape(tf.TensorShape([None]).concatenate(leaf.shape[1:]))
    return copied


def _spec(leaf: Any) -> tf.TensorSpec:
    return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)
