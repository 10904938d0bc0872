"""Compiled losses of a model, which are private to Keras: their terms, reductions and masks.

A mean over a batch's unmasked places is the mean of its slices' means, weighted by the number of
these places in each. Keras takes masks from the output, as of an embedding with `mask_zero=True`,
and from the loss, as of one with `ignore_class`. A mean that divides by the sum of sample weights
is one over places that count by their weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend

from agents.trainer.model.divisors import NO_PLACES
from agents.trainer.model.keras_private import attributes_set, has_own

Tensor = Any
SUM_REDUCTION = "sum"
WEIGHTED_REDUCTION = "mean_with_sample_weight"


class NoExampleLossError(ValueError):
    """The compiled losses give no value for each example of a batch."""


@dataclass(frozen=True)
class MeanTerm:
    """A compiled loss that is a mean, as computed once.

    Attributes:
        name: of the output, or of the loss.
        masks: Keras's masks of the output and of the loss's values, and the sample weights if it
            divides by their sum; None where there is none.
        is_weighted: the loss is trained; one with the weight 0 is in the logs alone.
        total: variable that sums the loss for the logs; None if the model has no other loss.
        is_own: a `__call__` of the job's own may apply the masks, or may not.
    """

    name: str
    masks: tuple[Tensor | None, ...] = ()
    is_weighted: bool = True
    total: Any = None
    is_own: bool = False

    @property
    def is_masked(self) -> bool:
        """True if places are left out of the mean, or count by their weights."""
        return any(mask is not None for mask in self.masks)

    def unmasked(self) -> Tensor:
        """Return by how much each place counts, 0 if it is masked: float32, in the masks' shape."""
        given = [tf.cast(mask, tf.float32) for mask in self.masks if mask is not None]
        rank = max(mask.shape.rank for mask in given)
        alike = [mask[(..., *[tf.newaxis] * (rank - mask.shape.rank))] for mask in given]
        return math.prod(alike[1:], start=alike[0])


class _NotedLoss(keras.Loss):  # type: ignore[misc]  # no types in Keras
    """A loss with the values of another one, which notes the masks that Keras applies to them."""

    def __init__(
        self,
        term: MeanTerm,
        loss: keras.Loss,
        terms: list[MeanTerm],
        drops_masks: bool = False,
        reduction: str | None = None,
    ) -> None:
        if drops_masks and loss.reduction == WEIGHTED_REDUCTION:
            reduction = "sum_over_batch_size"
        super().__init__(loss.name, reduction or loss.reduction, loss.dtype)
        self._term = term
        self._loss = loss
        self._terms = terms
        self._drops_masks = drops_masks
        self._given: tuple[Tensor | None, Tensor | None] = (None, None)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        divides = self._loss.reduction == WEIGHTED_REDUCTION
        self._given = (backend.get_keras_mask(y_pred), sample_weight if divides else None)
        if self._drops_masks:
            y_pred = keras.tree.map_structure(tf.identity, y_pred)
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true: Any, y_pred: Any) -> Tensor:
        values = keras.ops.convert_to_tensor(self._loss.call(y_true, y_pred))
        masks = (*self._given, backend.get_keras_mask(values))
        # One number for the whole batch is the same with any mask.
        self._terms.append(replace(self._term, masks=masks if values.shape.rank else ()))
        return tf.identity(values) if self._drops_masks else values


def compiled_losses(model: keras.Model) -> list[tuple[str, Any]]:
    """List the compiled losses of a built model, each with its name."""
    return [(str(entry.name), entry.loss) for entry in _entries(model)]


def _entries(model: keras.Model) -> list[Any]:
    compiled = model._compile_loss  # noqa: SLF001
    return [] if compiled is None else compiled._flat_losses or []  # noqa: SLF001


def masked_totals(model: keras.Model, terms: Sequence[MeanTerm]) -> list[Any]:
    """List the variables in which Keras sums the loss, and its masked terms, for the logs."""
    tracker = model._loss_tracker  # noqa: SLF001
    whole = [] if tracker is None else [tracker.total]
    return whole + [term.total for term in terms if term.is_masked and term.total is not None]


def example_losses(
    model: keras.Model, batch: tuple[Any, Any, Any], predictions: Any
) -> tuple[Tensor, Tensor]:
    """Return the loss of each example of `(x, y, sample_weight)`, and whether it has a weight.

    Losses are the compiled losses, called with reduction "none": times sample weights and loss
    weights, averaged over all unmasked places of an example (summed over all axes but the first
    for a loss with reduction "sum"), and added over the outputs. Regularisers and `add_loss` are
    left out.

    Returns:
        Losses, float32 [n], and whether any weight of the example is not 0, bool [n].

    Raises:
        NoExampleLossError: a loss does not give values per example, or `compute_loss` is the
            job's own.
    """
    _, targets, sample_weight = batch
    compiled = model._compile_loss  # noqa: SLF001
    if has_own(model, "compute_loss") or compiled is None or not compiled.built:
        raise NoExampleLossError
    collected: list[tuple[Tensor, Tensor]] = []
    with _losses_replaced(model, lambda entry: _loss_collected(entry, collected)):
        compiled(targets, predictions, sample_weight)
    losses, weighted = zip(*collected, strict=True)
    return tf.add_n(losses), tf.reduce_any(tf.stack(weighted), axis=0)


def _loss_collected(entry: Any, collected: list[tuple[Tensor, Tensor]]) -> Any:
    """Substitute a loss by a function that appends its values per example and returns 0.

    With each value comes whether the example has a weight other than 0.
    """

    def collect(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        shape = _values_shape(entry.loss, y_true, y_pred)
        if not shape.rank or shape[0] != keras.tree.flatten(y_pred)[0].shape[0]:
            raise NoExampleLossError
        terms: list[MeanTerm] = []
        noted = _NotedLoss(MeanTerm(str(entry.name)), entry.loss, terms, reduction="none")
        value = tf.convert_to_tensor(noted(y_true, y_pred, sample_weight))
        reduce = tf.reduce_sum if entry.loss.reduction == SUM_REDUCTION else tf.reduce_mean
        reduced = reduce(value, axis=list(range(1, value.shape.rank)))
        weight = 1.0 if entry.loss_weights is None else entry.loss_weights
        loss = tf.cast(reduced, tf.float32) * tf.cast(weight, tf.float32)
        is_weighted = tf.fill(tf.shape(loss), tf.cast(weight, tf.bool))
        if sample_weight is not None:
            given = tf.cast(sample_weight, tf.bool)
            is_weighted &= tf.reduce_any(given, axis=list(range(1, given.shape.rank)))
        if terms[0].is_masked:
            unmasked = terms[0].unmasked()
            share = tf.reduce_mean(unmasked, axis=list(range(1, unmasked.shape.rank)))
            is_weighted &= share > 0.0
            if entry.loss.reduction != SUM_REDUCTION:
                loss = tf.math.divide_no_nan(loss, share)
        collected.append((loss, is_weighted))
        return tf.zeros([])

    return entry._replace(loss=collect)


def _values_shape(loss: keras.Loss, y_true: Any, y_pred: Any) -> tf.TensorShape:
    """Return the shape of a loss before weights and masks, which would broadcast one number.

    Raises:
        NoExampleLossError: the loss has a `__call__` of its own, which may reduce as it likes.
    """
    if _calls_itself(loss):
        raise NoExampleLossError
    convert = partial(keras.ops.convert_to_tensor, dtype=loss.dtype)
    given = (keras.tree.map_structure(convert, values) for values in (y_true, y_pred))
    return tf.TensorShape(keras.ops.convert_to_tensor(loss.call(*given)).shape)


@contextmanager
def means_noted(model: keras.Model, drops_masks: bool = False) -> Iterator[list[MeanTerm]]:
    """Yield a list of the compiled losses in the block that are means.

    Args:
        drops_masks: compute the means over all places, also of losses that ignore a class.
    """
    terms: list[MeanTerm] = []
    compiled = model._compile_loss  # noqa: SLF001
    trackers = [] if compiled is None else compiled.metrics
    totals = {id(entry): each.total for entry, each in zip(_entries(model), trackers, strict=False)}

    def noted(entry: Any) -> Any:
        if getattr(entry.loss, "reduction", None) == SUM_REDUCTION:
            return entry
        term = MeanTerm(
            str(entry.name), is_weighted=not _is_weightless(entry), total=totals.get(id(entry))
        )
        if _calls_itself(entry.loss):
            return entry._replace(loss=_own_noted(term, entry.loss, terms))
        return entry._replace(loss=_NotedLoss(term, entry.loss, terms, drops_masks))

    with _losses_replaced(model, noted):
        yield terms


def _own_noted(term: MeanTerm, loss: Any, terms: list[MeanTerm]) -> Any:
    def noted(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        masks = (backend.get_keras_mask(y_pred),)
        terms.append(replace(term, masks=masks, is_own=True))
        return loss(y_true, y_pred, sample_weight)

    return noted


def _calls_itself(loss: Any) -> bool:
    return type(loss).__call__ is not keras.Loss.__call__


def _is_weightless(entry: Any) -> bool:
    return isinstance(entry.loss_weights, (int, float)) and not entry.loss_weights


def unmasked_share(terms: Sequence[MeanTerm]) -> Tensor | None:
    """Return the share of places that masks leave, float32; None if no loss is masked.

    All terms with a weight have the same masks, or `other_weights` gives a reason.
    """
    masked = [term for term in terms if term.is_masked]
    return tf.maximum(tf.reduce_mean(masked[0].unmasked()), NO_PLACES) if masked else None


def other_weights(model: keras.Model, terms: Sequence[MeanTerm]) -> str:
    """Return which loss cannot be weighted by the unmasked places of a slice, and why.

    Empty if none is masked, or all compiled losses are means over the same places.
    """
    masked = [term for term in terms if term.is_masked]
    if not masked:
        return ""
    for name in ("compute_loss", "train_step"):
        if has_own(model, name):
            return f"the model has a {name}() of its own"
    if own := [term.name for term in terms if term.is_own]:
        return f"the loss of {own[0]!r} has a __call__() of its own"
    has_sums = len(terms) < len(_entries(model))
    masks = {tuple(map(id, term.masks)) for term in terms if term.is_masked or term.is_weighted}
    if has_sums or len(masks) > 1:
        return "the losses of other outputs are not means over the same places"
    return ""


@contextmanager
def sums_scaled(
    model: keras.Model, factor: Tensor, added_factor: Tensor | None = None
) -> Iterator[set[str]]:
    """Multiply losses that are sums over the batch by `factor` inside the block, and no other term.

    These are losses with reduction "sum", and arrays that `add_loss` was given. A virtual node's
    loss is weighted by its share of the examples, as required for a mean; for a sum, `factor`
    cancels that weight, while regularisers keep it. Yields the names of the losses, as called.

    Args:
        added_factor: on the arrays of `add_loss`, if another one.
    """
    name = "_aggregate_additional_loss"
    total_of = getattr(model, name)
    added_factor = factor if added_factor is None else added_factor
    names: set[str] = set()

    def scaled(loss: Tensor) -> Tensor:
        total = total_of(loss)
        if not is_summed(loss):
            return total
        names.add("of add_loss()")
        return total * tf.cast(added_factor, total.dtype)

    with (
        attributes_set([(model, name, scaled)]),
        _losses_replaced(model, lambda entry: _loss_scaled(entry, factor, names)),
    ):
        yield names


def is_summed(loss: Any) -> bool:
    """Return whether a loss grows with the slice: an array, which Keras and a tape add up."""
    shape = tf.TensorShape(getattr(loss, "shape", ()))
    return shape.rank is not None and not shape.is_fully_defined()


@contextmanager
def losses_noted(model: keras.Model) -> Iterator[list[Tensor]]:
    """Yield a list of the values of the compiled losses in the block, before their weights.

    A loss whose weight is 0, which trains nothing, is left out.
    """
    values: list[Tensor] = []

    def noted(entry: Any) -> Any:
        def loss(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
            value = entry.loss(y_true, y_pred, sample_weight)
            values.append(value)
            return value

        return entry if _is_weightless(entry) else entry._replace(loss=loss)

    with _losses_replaced(model, noted):
        yield values


@contextmanager
def _losses_replaced(model: keras.Model, replace: Callable[[Any], Any]) -> Iterator[None]:
    """Replace the entries of the compiled losses inside the block."""
    compiled = model._compile_loss  # noqa: SLF001
    if compiled is None or not compiled.built:
        yield
        return
    original = compiled._flat_losses  # noqa: SLF001
    compiled._flat_losses = [replace(entry) for entry in original]  # noqa: SLF001
    try:
        yield
    finally:
        compiled._flat_losses = original  # noqa: SLF001


def _loss_scaled(entry: Any, factor: Tensor, names: set[str]) -> Any:
    """Scale the loss itself, not its weight, so that the loss's own tracker is scaled too."""
    if getattr(entry.loss, "reduction", None) != SUM_REDUCTION:
        return entry

    def scaled(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        value = entry.loss(y_true, y_pred, sample_weight)
        names.add(f"{entry.name!r} ({type(entry.loss).__name__})")
        return tf.cast(factor, value.dtype) * value

    return entry._replace(loss=scaled)
