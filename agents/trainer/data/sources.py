"""The kinds of data that a job may provide, and their common interface `ExampleSource`.

An `ExampleSource` is a numbered sequence of examples that can be fetched at any place, any number
of times, on any trainer, always with the same result. This property lets virtual nodes move between
accelerators without losing or repeating an example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.data.arrays import ArraySource
from agents.trainer.data.items import ItemSource, list_open
from agents.trainer.data.pydataset import BatchSource
from agents.trainer.data.tf_dataset import dataset_read


class ExampleSource(Protocol):
    """Numbered examples in fixed places."""

    has_sample_weight: bool

    @property
    def batch_size(self) -> int | None:
        """Return the size of the batches in which the data came; None if they had none."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def order(self, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
        """Return the order of an epoch's examples: int64 permutation of range(len).

        The order depends only on the arguments and the length.
        """

    def fetch(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read the examples at `indices` (int64, any order).

        Returns `(x,)`, `(x, y)` or `(x, y, sample_weight)`: nested tuples and dicts of NumPy arrays
        with dimension 0 equal to `len(indices)`.

        Raises:
            JobCodeError: the user's data object failed or changed its shape.
        """


def source_open(data: Any, field: str, code_dir: Path) -> ExampleSource:
    """Wrap the data that `build` returned.

    Args:
        data: arrays in a tuple or alone, a `keras.utils.PyDataset`, a finite deterministic
            `tf.data.Dataset`, or an object with `__len__` and `__getitem__`, such as a list, whose
            items are examples.
        field: "data.train" or "data.validation", for error messages.
        code_dir: folder of the user's code, to cut tracebacks down to it.

    Raises:
        JobCodeError: the data is of another kind, empty, or its parts differ in length.
    """
    if isinstance(data, keras.utils.PyDataset):
        return BatchSource(data, field, code_dir)
    if isinstance(data, tf.data.Dataset):
        arrays, batch_size = dataset_read(data, field, code_dir)
        return ArraySource(arrays, field, batch_size)
    if _is_plain(data, list):
        return list_open(data, field)
    if _is_plain(data, tuple) or isinstance(data, Mapping) or _is_array(data):
        return ArraySource(data, field)
    is_indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if is_indexed and not isinstance(data, (str, bytes)):
        return ItemSource(data, field, code_dir)
    hint = ""
    if isinstance(data, Iterator):
        hint = " An iterator can be read only once and only forwards."
    raise JobCodeError(
        "unknown_data",
        field,
        f"data of type {type(data).__name__} cannot be split into virtual nodes.{hint} Give NumPy "
        "arrays (x, y), a list of examples [(x0, y0), ...], a keras.utils.PyDataset, or an object "
        "with __len__ and __getitem__",
    )


def _is_array(data: Any) -> bool:
    return hasattr(data, "__array__") and not isinstance(data, (str, bytes))  # NumPy's text, too


def _is_plain(data: Any, kind: type[list[Any] | tuple[Any, ...]]) -> bool:
    """Return whether data is a list or tuple whose class does not override `__getitem__`."""
    return isinstance(data, kind) and type(data).__getitem__ is kind.__getitem__
