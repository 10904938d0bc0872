"""The kinds of data that a job may give, each made from the same arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

#: `(x,)`, `(x, y)` or `(x, y, sample_weight)` of nested arrays with a row per example.
Parts = tuple[Any, ...]


def rows_of(parts: Parts, rows: int | slice) -> Parts:
    taken: Parts = keras.tree.map_structure(lambda array: array[rows], parts)
    return taken


def num_rows(parts: Parts) -> int:
    return len(keras.tree.flatten(parts)[0])


class Items:
    """An object with `__len__` and `__getitem__`, and nothing else."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return num_rows(self.parts)

    def __getitem__(self, index: int) -> Parts:
        return rows_of(self.parts, index)


class RefilledItems(Items):
    """Gives the same arrays again and again, filled anew."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.item = keras.tree.map_structure(lambda a: np.empty(a.shape[1:], a.dtype), parts)

    def __getitem__(self, index: int) -> Parts:
        refill(self.item, rows_of(self.parts, index))
        filled: Parts = self.item
        return filled


class NumberedList(list[int]):
    """A list of row numbers whose items are examples."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(range(num_rows(parts)))
        self.parts = parts

    def __getitem__(self, index: Any) -> Any:
        return rows_of(self.parts, super().__getitem__(index))


class Batches(keras.utils.PyDataset):
    def __init__(self, parts: Parts, batch_size: int) -> None:
        super().__init__()
        self.parts, self.batch_size = parts, batch_size

    def __len__(self) -> int:
        return -(-num_rows(self.parts) // self.batch_size)

    def __getitem__(self, index: int) -> Parts:
        low = index * self.batch_size
        return rows_of(self.parts, slice(low, low + self.batch_size))


class RefilledBatches(Batches):
    """Gives rows of the same arrays again and again, filled anew."""

    def __init__(self, parts: Parts, batch_size: int) -> None:
        super().__init__(parts, batch_size)
        self.item = keras.tree.map_structure(
            lambda a: np.empty((batch_size, *a.shape[1:]), a.dtype), parts
        )

    def __getitem__(self, index: int) -> Parts:
        batch = super().__getitem__(index)
        item = rows_of(self.item, slice(num_rows(batch)))
        refill(item, batch)
        return item


def refill(item: Any, values: Any) -> None:
    for array, value in zip(keras.tree.flatten(item), keras.tree.flatten(values), strict=True):
        array[...] = value


def examples_of(parts: Parts) -> list[Parts]:
    return [rows_of(parts, row) for row in range(num_rows(parts))]


def plain_examples_of(parts: Parts) -> list[Parts]:
    """List examples in which single numbers are Python's own."""
    return [
        keras.tree.map_structure(lambda a: a.item() if isinstance(a, np.generic) else a, example)
        for example in examples_of(parts)
    ]


def tf_batches(parts: Parts, batch_size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(parts).batch(batch_size)


#: Makers from arrays and a batch size that only some of them use.
KINDS: dict[str, Callable[[Parts, int], Any]] = {
    "arrays": lambda parts, _: parts,
    "list of examples": lambda parts, _: examples_of(parts),
    "list with plain numbers": lambda parts, _: plain_examples_of(parts),
    "list with items of its own": lambda parts, _: NumberedList(parts),
    "deque": lambda parts, _: deque(examples_of(parts)),
    "object": lambda parts, _: Items(parts),
    "object that fills its arrays anew": lambda parts, _: RefilledItems(parts),
    "PyDataset": Batches,
    "PyDataset that fills its arrays anew": RefilledBatches,
    "tf.data.Dataset": tf_batches,
}
