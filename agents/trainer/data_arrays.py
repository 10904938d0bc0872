"""Examples held in arrays, and what all sources share: nested arrays, epoch order, weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from agents.trainer.user_errors import JobCodeError

PART_NAMES = ("x", "y", "sample_weight")
#: Booleans, signed and unsigned integers, floats.
NUMBER_KINDS = frozenset("biuf")
_UINT64_MASK = (1 << 64) - 1


def example_order(num_examples: int, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """Give the order of an epoch: int64 permutation of `range(num_examples)`.

    Sorts one random word per example. The words come from Philox, a counter-based generator keyed
    by (seed, epoch), whose raw stream NumPy keeps fixed between versions (`permutation` is not).
    """
    if not shuffle:
        return np.arange(num_examples, dtype=np.int64)
    key = np.array([seed & _UINT64_MASK, epoch & _UINT64_MASK], dtype=np.uint64)
    words = np.random.Philox(key=key).random_raw(num_examples)
    return np.argsort(words, kind="stable").astype(np.int64)


class ArraySource:
    """Examples in memory: `(x,)`, `(x, y)` or `(x, y, sample_weight)` of nested arrays.

    Floats are handed out in Keras's `floatx`, as `fit` does; other numbers keep their type.
    """

    def __init__(self, data: Any, field: str) -> None:
        parts = parts_split(data, field)
        self._parts = tuple(
            nested_arrays(part, f"{field}.{name}")
            for part, name in zip(parts, PART_NAMES, strict=False)
        )
        self._length = common_length(self._parts, field)
        self.has_sample_weight = len(self._parts) == len(PART_NAMES)
        if self.has_sample_weight:
            self._parts = weights_spread(self._parts)

    def __len__(self) -> int:
        return self._length

    def order(self, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
        return example_order(self._length, seed, epoch, shuffle)

    def fetch(self, indices: np.ndarray) -> tuple[Any, ...]:
        taken: tuple[Any, ...] = keras.tree.map_structure(
            lambda array: as_floatx(array[indices]), self._parts
        )
        return taken


class ClassWeightedSource:
    """Another source with sample weights made from its labels, as `fit(class_weight=...)` does."""

    has_sample_weight = True

    def __init__(self, source: Any, class_weight: Mapping[int, float], field: str) -> None:
        if source.has_sample_weight:
            raise JobCodeError(
                "class_weight",
                field,
                "the data has sample weights already; multiply class weights into them and leave "
                "class_weight out",
            )
        example = source.fetch(np.zeros(1, dtype=np.int64))
        if len(example) < 2 or keras.tree.is_nested(example[1]):
            raise JobCodeError(
                "class_weight",
                field,
                "class_weight works with one array of labels; give sample weights instead",
            )
        self._source = source
        self._class_weight = dict(class_weight)

    def __len__(self) -> int:
        return len(self._source)

    def order(self, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
        order: np.ndarray = self._source.order(seed, epoch, shuffle)
        return order

    def fetch(self, indices: np.ndarray) -> tuple[Any, ...]:
        x, y = self._source.fetch(indices)
        return x, y, self._weights_of(y)

    def _weights_of(self, y: np.ndarray) -> np.ndarray:
        """Look up one weight per example: labels may be one-hot, unnamed classes weigh 1."""
        flat = y.reshape(len(y), -1) if y.ndim < 2 else y
        labels = flat[..., 0] if flat.shape[-1] == 1 else np.argmax(flat, axis=-1)
        weights = [self._class_weight.get(int(label), 1.0) for label in np.round(labels).ravel()]
        return np.asarray(weights, dtype=keras.config.floatx())


class UnitWeightedSource:
    """Another source with sample weights of 1, which change nothing.

    Training and validation data then have the same parts when only one of them is weighted.
    `weights` are those of one example of the other one, for their structure and shapes.
    """

    has_sample_weight = True

    def __init__(self, source: Any, weights: Any) -> None:
        self._source = source
        self._weights = weights

    def __len__(self) -> int:
        return len(self._source)

    def order(self, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
        order: np.ndarray = self._source.order(seed, epoch, shuffle)
        return order

    def fetch(self, indices: np.ndarray) -> tuple[Any, ...]:
        x, y = self._source.fetch(indices)
        ones = keras.tree.map_structure(
            lambda leaf: np.ones((len(indices), *leaf.shape[1:]), leaf.dtype), self._weights
        )
        return x, y, ones


def same_values(left: Any, right: Any) -> bool:
    """Say whether two nests of arrays hold the same bits."""
    leaves, others = keras.tree.flatten(left), keras.tree.flatten(right)
    return len(leaves) == len(others) and all(
        _is_same_array(np.asarray(one), np.asarray(other))
        for one, other in zip(leaves, others, strict=True)
    )


def refuse_changing(once: Any, again: Any, field: str) -> None:
    """Compare two readings of the same place.

    Raises:
        JobCodeError: they differ, so trainers would see different data.
    """
    if not same_values(once, again):
        raise JobCodeError(
            "nondeterministic_data",
            field,
            "reading item 0 twice gave different values; __getitem__ must depend on its index "
            "alone. Move random augmentation into layers of the model",
        )


def _is_same_array(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype == object:  # text: its bytes are addresses
        return np.array_equal(one, other)
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def parts_split(data: Any, field: str) -> tuple[Any, ...]:
    """Split data as Keras does: a tuple or list is (x,), (x, y) or (x, y, w), all else is x.

    Raises:
        JobCodeError: there are no parts or too many.
    """
    if not isinstance(data, (tuple, list)):
        return (data,)
    parts = tuple(data)
    while len(parts) > 1 and parts[-1] is None:  # (x, y, None), as pack_x_y_sample_weight makes it
        parts = parts[:-1]
    if not 1 <= len(parts) <= len(PART_NAMES):
        raise JobCodeError(
            "data_structure",
            field,
            f"expected (x, y) or (x, y, sample_weight), got {len(parts)} parts; put several inputs "
            "into one tuple or dict: ((a, b), y)",
        )
    return parts


def nested_arrays(value: Any, path: str, min_rank: int = 1) -> Any:
    """Turn nested dicts, tuples and lists into the same nest with arrays of numbers as leaves.

    Lists become tuples, as in Keras; a list of plain numbers is one array.

    Args:
        value: what the user gave.
        path: where it stands, for error messages.
        min_rank: 1 for a batch of examples, 0 for a single example.

    Raises:
        JobCodeError: a leaf is not an array of numbers, or has fewer dimensions.
    """
    if isinstance(value, Mapping):
        return {
            key: nested_arrays(item, f"{path}[{key!r}]", min_rank) for key, item in value.items()
        }
    is_structure = isinstance(value, tuple) and min_rank == 0  # (1.0, 2.0): two outputs' targets
    if isinstance(value, (tuple, list)) and (is_structure or not _is_number_list(value)):
        return tuple(nested_arrays(item, f"{path}[{i}]", min_rank) for i, item in enumerate(value))
    array = number_array(value, path)
    if array.ndim < min_rank:
        raise JobCodeError(
            "data_structure", path, f"got the single value {value!r:.60}; give one per example"
        )
    return array


def number_array(value: Any, path: str) -> np.ndarray:
    """Turn one leaf into an array of numbers.

    Raises:
        JobCodeError: it is no array, or not of numbers.
    """
    is_plain = isinstance(value, (int, float, np.generic, tuple, list))
    if not is_plain and not hasattr(value, "__array__"):
        raise JobCodeError(
            "data_type",
            path,
            f"{type(value).__name__} is not an array; turn it into a dense NumPy array in build",
        )
    array = np.asarray(value)
    if array.dtype.kind not in NUMBER_KINDS:
        raise JobCodeError(
            "data_type",
            path,
            f"values of type {array.dtype} cannot be trained on; turn them into numbers in build "
            "(a StringLookup or TextVectorization layer can be applied there)",
        )
    return array


def as_floatx(array: np.ndarray) -> np.ndarray:
    """Cast floats to Keras's `floatx`; leave other numbers as they are."""
    if array.dtype.kind == "f":
        return array.astype(keras.config.floatx(), copy=False)
    return array


def common_length(parts: tuple[Any, ...], field: str) -> int:
    """Give dimension 0 of all arrays in `parts`.

    Raises:
        JobCodeError: the lengths differ, or there are no examples.
    """
    sizes = [
        f"{name}: {', '.join(str(len(leaf)) for leaf in keras.tree.flatten(part))}"
        for part, name in zip(parts, PART_NAMES, strict=False)
    ]
    lengths = {len(leaf) for part in parts for leaf in keras.tree.flatten(part)}
    if len(lengths) > 1:
        raise JobCodeError(
            "length_mismatch",
            field,
            f"all arrays must have the same number of examples, got {'; '.join(sizes)}",
        )
    length = lengths.pop() if lengths else 0
    if length == 0:
        raise JobCodeError("empty_data", field, "there are no examples in the data")
    return length


def weights_spread(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give every output its sample weights when one array stands for several outputs."""
    x, y, weight = parts
    if keras.tree.is_nested(y) and not keras.tree.is_nested(weight):
        weight = keras.tree.map_structure(lambda _: weight, y)
    return x, y, weight


def _is_number_list(value: tuple[Any, ...] | list[Any]) -> bool:
    return bool(value) and all(isinstance(item, (int, float, np.generic)) for item in value)
