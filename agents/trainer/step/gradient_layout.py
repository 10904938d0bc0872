"""Layout of the flat vector in which a virtual node's results are sent and summed.

Gradients, changes of non-trainable state, metric sums and the loss of a virtual node share one
vector, so that one reduction serves all of them. The pieces are determined while tracing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import tensorflow as tf

Tensor = Any
#: Number of elements from which on a piece is a segment of its own.
LARGE_PIECE = 16_384
LIMBS = 4
LIMB_BITS = 16


class FieldKind(StrEnum):
    """Kind of a piece of the vector; determines how its sum is used."""

    GRADIENT = "gradient"  # of a trainable variable, weighted by the share of examples
    VALUE = "value"  # "gradient" that is a variable's new value, weighted by the share of examples
    CHANGE = "change"  # of floating-point state, weighted by the share of examples
    WEIGHT = "weight"  # change of a weight by the model itself, weighted by the share of examples
    INTEGER = "integer"  # new value of other state, from the lowest virtual node alone
    METRIC = "metric"  # growth of a metric variable
    LOSS = "loss"  # weighted by the share of examples
    SQUARE = "square"  # |gradient|² of one message, weighted by its share of examples
    MESSAGES = "messages"  # a one, which the reduction sums to the number of messages
    UNMASKED = "unmasked"  # share of the batch's places that masks leave, by which others divide


@dataclass(frozen=True)
class LayoutField:
    """One run of elements in the vector; `index` counts within the list that `kind` implies.

    Attributes:
        by_places: weighted by the share of the batch's unmasked places instead of its examples;
            reading the sum divides it by `UNMASKED`.
    """

    kind: FieldKind
    index: int
    shape: tuple[int, ...]
    size: int
    by_places: bool = False


class MessageWriter:
    """Collects the pieces of one vector while a function is traced."""

    def __init__(self, dtype: tf.DType) -> None:
        self.dtype = dtype
        self.pieces: list[LayoutField] = []
        self._parts: list[Tensor] = []

    def add(
        self,
        kind: FieldKind,
        index: int,
        value: Tensor,
        shape: Sequence[int],
        by_places: bool = False,
    ) -> None:
        """Append a value of `shape`, made dense and cast to the vector's dtype."""
        dense = tf.convert_to_tensor(value)
        self._append(kind, index, tuple(shape), tf.cast(dense, self.dtype), by_places)

    def add_integers(self, index: int, value: Tensor, is_first: Tensor) -> None:
        """Append whole numbers or booleans exactly, as limbs; all zero unless `is_first`."""
        bits = tf.bitcast(tf.cast(value, tf.int64), tf.uint64)
        mask = tf.constant((1 << LIMB_BITS) - 1, tf.uint64)
        limbs = [
            tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, _shift(limb)), mask)
            for limb in range(LIMBS)
        ]
        stacked = tf.cast(tf.bitcast(tf.stack(limbs), tf.int64), self.dtype)
        chosen = tf.where(is_first, stacked, tf.zeros_like(stacked))
        self._append(FieldKind.INTEGER, index, tuple(value.shape), chosen)

    def _append(
        self,
        kind: FieldKind,
        index: int,
        shape: tuple[int, ...],
        value: Tensor,
        by_places: bool = False,
    ) -> None:
        size = math.prod(shape) * (LIMBS if kind is FieldKind.INTEGER else 1)
        self.pieces.append(LayoutField(kind, index, shape, size, by_places))
        self._parts.append(tf.reshape(value, [size]))

    def add_gradients(
        self,
        gradients: Sequence[Tensor | None],
        shapes: Sequence[Sequence[int]],
        weight: Tensor,
        by_places: bool,
    ) -> None:
        """Append the gradients that are not None, their squared length, and a one.

        Args:
            weight: of the message, which the gradients contain.
        """
        assert not self.pieces, "gradients come first"
        for index, (gradient, shape) in enumerate(zip(gradients, shapes, strict=True)):
            if gradient is not None:
                self.add(FieldKind.GRADIENT, index, gradient, shape, by_places)
        # Small ones are joined first: one operation for all of them.
        square = squared_length(self._segments(range(len(self.pieces))), self.dtype)
        self._append(FieldKind.SQUARE, 0, (), square / tf.cast(weight, self.dtype), by_places)
        self._append(FieldKind.MESSAGES, 0, (), tf.ones([], self.dtype))

    def finish(self, pieces: list[LayoutField]) -> list[Tensor]:
        """Fill `pieces` in their order in the vector; return the vector in segments.

        Large pieces are segments of their own, which saves a copy; small ones share the last.
        """
        order = sorted(range(len(self.pieces)), key=lambda k: self.pieces[k].size < LARGE_PIECE)
        pieces.extend(self.pieces[k] for k in order)
        return self._segments(order)

    def _segments(self, places: Sequence[int]) -> list[Tensor]:
        """Return these parts, all small ones joined to one at the end."""
        large = [self._parts[k] for k in places if self.pieces[k].size >= LARGE_PIECE]
        small = [self._parts[k] for k in places if self.pieces[k].size < LARGE_PIECE]
        return [*large, tf.concat(small, axis=0)] if small else large


def message_width(pieces: Iterable[LayoutField]) -> int:
    """Count the elements of a vector."""
    return sum(piece.size for piece in pieces)


def message_read(pieces: Sequence[LayoutField], vector: Tensor) -> list[tuple[LayoutField, Tensor]]:
    """Cut a vector into its pieces but `UNMASKED`, in the shapes they had; integers as limbs."""
    parts = tf.split(vector, [piece.size for piece in pieces])
    kinds = [piece.kind for piece in pieces]
    unmasked = parts[kinds.index(FieldKind.UNMASKED)] if FieldKind.UNMASKED in kinds else None
    read = []
    for piece, part in zip(pieces, parts, strict=True):
        if piece.kind is FieldKind.UNMASKED:
            continue
        value = part / unmasked if piece.by_places else part
        shape = (LIMBS, *piece.shape) if piece.kind is FieldKind.INTEGER else piece.shape
        read.append((piece, tf.reshape(value, shape)))
    return read


def squared_length(vectors: Sequence[Tensor], dtype: tf.DType) -> Tensor:
    """Sum the squares of all elements without making a vector of squares."""
    squares = [tf.nn.l2_loss(vector) for vector in vectors]
    return 2.0 * tf.add_n(squares) if squares else tf.zeros([], dtype)


def integers_read(limbs: Tensor, dtype: tf.DType) -> Tensor:
    """Assemble whole numbers from their limbs."""
    words = tf.bitcast(tf.cast(limbs, tf.int64), tf.uint64)
    bits = tf.add_n(
        [
            tf.bitcast(tf.bitwise.left_shift(words[limb], _shift(limb)), tf.int64)
            for limb in range(LIMBS)
        ]
    )
    return tf.cast(bits, dtype)


def _shift(limb: int) -> Tensor:
    return tf.constant(LIMB_BITS * limb, tf.uint64)
