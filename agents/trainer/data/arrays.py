"""Examples held in arrays, and helpers of all sources: epoch order, weights, comparison."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.data.nests import (
    PART_NAMES,
    array_bytes,
    as_floatx,
    common_length,
    is_text,
    parts_arrays,
)

_UINT64_MASK = (1 << 64) - 1
#: Most numbers of an array of labels that are compared: targets as large as images may be on disk.
_EXTREMES_LIMIT = 1 << 26
#: Most columns of an array of labels that are looked at one by one.
_COLUMNS_LIMIT = 16
#: Most examples whose labels are compared where data are read by item or batch, most seconds, and
#: items that are held at a time.
_READ_LIMIT = 256
_READ_LIMIT_S = 2.0
_READ_ITEMS = 8


def example_order(num_examples: int, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """Return the order of an epoch: int64 permutation of `range(num_examples)`.

    Sorts one random word per example. The words come from Philox, a counter-based generator keyed
    by (seed, epoch), whose raw stream is fixed between NumPy versions (`permutation` is not).
    """
    if not shuffle:
        return np.arange(num_examples, dtype=np.int64)
    key = np.array([seed & _UINT64_MASK, epoch & _UINT64_MASK], dtype=np.uint64)
    words = np.random.Philox(key=key).random_raw(num_examples)
    return np.argsort(words, kind="stable").astype(np.int64)


class ArraySource:
    """Examples in memory: `(x,)`, `(x, y)` or `(x, y, sample_weight)` of nested arrays.

    Floats are returned in Keras's `floatx`, as in `fit`; other numbers keep their type.
    """

    def __init__(self, data: Any, field: str, batch_size: int | None = None) -> None:
        self.batch_size = batch_size
        self._parts = parts_arrays(data, field)
        self._length = common_length(self._parts, field)
        self.has_sample_weight = len(self._parts) == len(PART_NAMES)

    def __len__(self) -> int:
        return self._length

    def order(self, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
        return example_order(self._length, seed, epoch, shuffle)

    def fetch(self, indices: np.ndarray) -> tuple[Any, ...]:
        taken: tuple[Any, ...] = keras.tree.map_structure(
            lambda array: as_floatx(array[indices]), self._parts
        )
        return taken

    def extremes(self) -> np.ndarray:
        """Return the places of the examples with the least and the largest labels and weights.

        A label that a loss treats apart (-1, 255, nan, a rare class) is nearly always one of them,
        as is padding (0) of sequences of whole numbers in x, by which a loss may be masked.
        """
        places = set()
        for array in _told_apart(self._parts):
            rows = array[: max(1, _EXTREMES_LIMIT * self._length // array.size)]
            lows, highs = _row_extremes(rows)
            places |= {*np.argmin(lows, 0).tolist(), *np.argmax(highs, 0).tolist()}
        return np.array(sorted(places), np.int64)


class AdaptedSource:
    """Base of sources that change the parts of another one's examples."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.batch_size: int | None = source.batch_size

    def extremes(self) -> np.ndarray:
        """Return the places of those of the other source."""
        return extreme_examples(self._source)

    def __len__(self) -> int:
        return len(self._source)

    def order(self, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
        order: np.ndarray = self._source.order(seed, epoch, shuffle)
        return order


class ClassWeightedSource(AdaptedSource):
    """Another source with sample weights made from its labels, as `fit(class_weight=...)` does."""

    has_sample_weight = True

    def __init__(self, source: Any, class_weight: Mapping[int, float]) -> None:
        if source.has_sample_weight:
            raise JobCodeError(
                "class_weight",
                "data.train",
                "the data has sample weights already; multiply class weights into them and leave "
                "class_weight out",
            )
        example = source.fetch(np.zeros(1, dtype=np.int64))
        if len(example) < 2 or keras.tree.is_nested(example[1]):
            raise JobCodeError(
                "class_weight",
                "data.train",
                "class_weight works with one array of labels; give sample weights instead",
            )
        super().__init__(source)
        self._class_weight = dict(class_weight)
        if self._weights_of(example[1]).shape != (1,):
            raise JobCodeError(
                "class_weight",
                "data.train",
                f"class_weight works with one label for each example, and these have labels of the "
                f"shape {example[1].shape[1:]}; give sample weights of that shape instead",
            )

    def fetch(self, indices: np.ndarray) -> tuple[Any, ...]:
        x, y = self._source.fetch(indices)
        return x, y, self._weights_of(y)

    def _weights_of(self, y: np.ndarray) -> np.ndarray:
        """Look up one weight per example; labels may be one-hot, unlisted classes weigh 1."""
        flat = y.reshape(len(y), -1) if y.ndim < 2 else y
        labels = flat[..., 0] if flat.shape[-1] == 1 else np.argmax(flat, axis=-1)
        weights = [self._class_weight.get(int(label), 1.0) for label in np.round(labels).ravel()]
        return np.asarray(weights, dtype=keras.config.floatx())


class UnitWeightedSource(AdaptedSource):
    """Another source with sample weights of 1, which have no effect.

    Gives training and validation data the same parts when only one of them is weighted. `weights`
    are the weights of one example of the weighted one, for their structure and shapes.
    """

    has_sample_weight = True

    def __init__(self, source: Any, weights: Any) -> None:
        super().__init__(source)
        self._weights = weights

    def fetch(self, indices: np.ndarray) -> tuple[Any, ...]:
        x, y = self._source.fetch(indices)
        ones = keras.tree.map_structure(
            lambda leaf: np.ones((len(indices), *leaf.shape[1:]), leaf.dtype), self._weights
        )
        return x, y, ones


class TypedSource(AdaptedSource):
    """Another source in the types of `like`, as long as that changes no value.

    Data in memory are looked at as a whole at once; of other data one example, the rest as they are
    read.
    """

    def __init__(self, source: Any, like: tuple[Any, ...], field: str) -> None:
        super().__init__(source)
        self._types = [leaf.dtype for leaf in keras.tree.flatten(like)]
        self._field = field
        self.has_sample_weight = source.has_sample_weight
        self.fetch(np.arange(len(source) if isinstance(source, ArraySource) else 1))

    def fetch(self, indices: np.ndarray) -> tuple[Any, ...]:
        parts = self._source.fetch(indices)
        leaves = keras.tree.flatten(parts)
        typed = [self._typed(*pair) for pair in zip(leaves, self._types, strict=False)]
        typed += leaves[len(typed) :]  # weights that the training data do not have
        packed: tuple[Any, ...] = keras.tree.pack_sequence_as(parts, typed)
        return packed

    def _typed(self, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if is_text(array) != (dtype.kind == "O"):
            held, wanted = ("text", "numbers") if is_text(array) else ("numbers", "text")
            reason = f"holds {held} where the training data hold {wanted}; give both the same type"
            raise JobCodeError("data_type", self._field, reason)
        with np.errstate(invalid="ignore"):  # what is no number has no whole number
            typed = array.astype(dtype, copy=False)
        if dtype.kind != "f" and not np.array_equal(typed, array):
            raise JobCodeError(
                "data_type",
                self._field,
                f"holds values of type {array.dtype} that the type {dtype} of the training data "
                f"cannot hold; give the training data the type {array.dtype} too",
            )
        return typed


def extreme_examples(source: Any) -> np.ndarray:
    """Return `ArraySource.extremes` of a source, or those of a sample if it is not in memory."""
    if isinstance(source, (ArraySource, AdaptedSource)):
        return source.extremes()
    until, lows, highs = time.monotonic() + _READ_LIMIT_S, [], []
    parts = _sample_parts(len(source), source.batch_size)
    places = np.zeros(0, np.int64)
    for part in parts:
        found = [_row_extremes(array) for array in _told_apart(source.fetch(part))]
        lows.append([low for low, _ in found])
        highs.append([high for _, high in found])
        places = np.concatenate([places, part])
        if time.monotonic() > until:
            break
    rows = [np.argmin(np.concatenate(each), 0) for each in zip(*lows, strict=True)]
    rows += [np.argmax(np.concatenate(each), 0) for each in zip(*highs, strict=True)]
    return np.unique(places[np.concatenate(rows)]) if rows else places[:0]


def _row_extremes(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest number of each row [n, 1], or of a few columns as they are.

    Each column may be a label with a number of its own that a loss treats apart.
    """
    rows = array.reshape(len(array), -1)
    if rows.shape[1] <= _COLUMNS_LIMIT:
        return rows, rows
    return rows.min(1, keepdims=True), rows.max(1, keepdims=True)


def _told_apart(parts: tuple[Any, ...]) -> list[np.ndarray]:
    """List the arrays of numbers of which a loss may treat some apart."""
    x, *others = (keras.tree.flatten(part) for part in parts)
    sequences = [array for array in x if array.dtype.kind in "iu" and array.ndim > 1]
    labels = [array for part in others for array in part if array.dtype.kind in "biuf"]
    return [array for array in (*sequences, *labels) if array.size]


def _sample_parts(num_examples: int, batch_size: int | None) -> list[np.ndarray]:
    """Cut a sample of places, spread evenly, into parts that are read at once: whole batches."""
    size = batch_size or 1
    num_batches = -(-num_examples // size)
    count = min(num_batches, max(1, _READ_LIMIT // size))
    firsts = np.linspace(0, num_batches - 1, count).astype(np.int64) * size
    if batch_size is None:
        return np.array_split(firsts, -(-count // _READ_ITEMS))
    return [np.arange(first, min(first + size, num_examples)) for first in firsts]


def same_values(left: Any, right: Any) -> bool:
    """Return whether two nests of arrays hold the same bits."""
    leaves, others = keras.tree.flatten(left), keras.tree.flatten(right)
    return len(leaves) == len(others) and all(
        _is_same_array(np.asarray(one), np.asarray(other))
        for one, other in zip(leaves, others, strict=True)
    )


def refuse_changing(once: Any, again: Any, field: str) -> None:
    """Compare two readings of the same place.

    Raises:
        JobCodeError: the readings differ, so trainers would use different data.
    """
    if not same_values(once, again):
        raise JobCodeError(
            "nondeterministic_data",
            field,
            "reading an item twice gave different values; __getitem__ must depend on its index "
            "alone. Move random augmentation into layers of the model",
        )


def _is_same_array(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and array_bytes(one) == array_bytes(other)
