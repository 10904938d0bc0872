"""Examples from a `keras.utils.PyDataset`, whose items are whole batches."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import keras
import numpy as np

from agents.trainer.contract.user_errors import JobCodeError, user_code
from agents.trainer.data.arrays import example_order, refuse_changing
from agents.trainer.data.nests import (
    PART_NAMES,
    as_floatx,
    common_length,
    parts_arrays,
    refuse_unlike,
)

#: Number of batches cached. A global batch is read slice by slice, so a few are enough.
CACHED_BATCHES = 4


class BatchSource:
    """Numbers the rows of all batches: example e is row e % size of batch e // size.

    Shuffling follows Keras: whole batches are permuted, rows stay in their batch. So a global batch
    size equal to the data set's gives exactly the data set's batches, and few are read at once.
    """

    def __init__(self, dataset: keras.utils.PyDataset, field: str, code_dir: Path) -> None:
        self._dataset = dataset
        self._field = field
        self._code_dir = code_dir
        self._cache: OrderedDict[int, tuple[Any, ...]] = OrderedDict()
        self._lock = threading.Lock()  # a prefetching thread may read concurrently
        _refuse_epoch_hooks(dataset, field)
        with user_code(code_dir, field, "the data set's length", is_all_theirs=True):
            num_batches = dataset.num_batches
        if num_batches is None:
            raise JobCodeError(
                "infinite_data", field, "the PyDataset has no length; define __len__ (in batches)"
            )
        if num_batches < 1:
            raise JobCodeError("empty_data", field, "there are no batches in the data")
        self._num_batches = int(num_batches)
        self._set_lengths()

    def _set_lengths(self) -> None:
        first = keras.tree.map_structure(np.copy, self._read(0))  # the job may reuse its array
        refuse_changing(first, self._read(0), self._field)
        self._first: tuple[Any, ...] = keras.tree.map_structure(as_floatx, first)
        self.has_sample_weight = len(first) == len(PART_NAMES)
        self.batch_size = common_length(first, f"{self._field}[0]")
        last = self._num_batches - 1
        last_batch = keras.tree.map_structure(np.copy, self._read(last))
        refuse_changing(last_batch, self._read(last), self._field)
        num_last = common_length(last_batch, f"{self._field}[{last}]")
        if num_last > self.batch_size:
            raise self._unequal(last, num_last)
        self._length = last * self.batch_size + num_last

    def __len__(self) -> int:
        return self._length

    def order(self, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
        batches = example_order(self._num_batches, seed, epoch, shuffle)
        rows = np.arange(self.batch_size, dtype=np.int64)
        flat = (batches[:, None] * self.batch_size + rows).ravel()
        return flat[flat < self._length]

    def fetch(self, indices: np.ndarray) -> tuple[Any, ...]:
        batch_numbers, rows = np.divmod(np.asarray(indices, dtype=np.int64), self.batch_size)
        places, pieces = [], []
        for number in dict.fromkeys(batch_numbers.tolist()):
            chosen = np.flatnonzero(batch_numbers == number)
            places.append(chosen)
            pieces.append(_take(self._batch(number), rows[chosen]))
        if not pieces:
            return _take(self._batch(0), rows)
        back = np.argsort(np.concatenate(places), kind="stable")
        joined: tuple[Any, ...] = keras.tree.map_structure(
            lambda *leaves: np.concatenate(leaves)[back], *pieces
        )
        return joined

    def _batch(self, number: int) -> tuple[Any, ...]:
        """Return a batch from the cache, or read it and check its size."""
        with self._lock:
            if number in self._cache:
                self._cache.move_to_end(number)
                return self._cache[number]
            batch = self._batch_read(number)
            num_rows = common_length(batch, f"{self._field}[{number}]")
            expected = min(self.batch_size, self._length - number * self.batch_size)
            if num_rows != expected:
                raise self._unequal(number, num_rows)
            self._cache[number] = batch
            while len(self._cache) > CACHED_BATCHES:
                self._cache.popitem(last=False)
            return batch

    def _batch_read(self, number: int) -> tuple[Any, ...]:
        """Read a batch and copy it in the first batch's types; the job may reuse its arrays."""
        batch = self._read(number)
        refuse_unlike(batch, self._first, f"{self._field}[{number}]", num_axes=1)
        copied: tuple[Any, ...] = keras.tree.map_structure(
            lambda leaf, like: leaf.astype(like.dtype), batch, self._first
        )
        return copied

    def _read(self, number: int) -> tuple[Any, ...]:
        with user_code(self._code_dir, self._field, f"data[{number}]", is_all_theirs=True):
            item = self._dataset[number]
        return parts_arrays(item, f"{self._field}[{number}]")

    def _unequal(self, number: int, num_rows: int) -> JobCodeError:
        return JobCodeError(
            "unequal_batches",
            self._field,
            f"batch {number} has {num_rows} examples, batch 0 has {self.batch_size}; all batches "
            "but the last must be equal in size, the last may be smaller",
        )


def _refuse_epoch_hooks(dataset: keras.utils.PyDataset, field: str) -> None:
    for hook in ("on_epoch_begin", "on_epoch_end"):
        if getattr(type(dataset), hook) is not getattr(keras.utils.PyDataset, hook):
            raise JobCodeError(
                "changing_data",
                field,
                f"{type(dataset).__name__} defines {hook}: data that changes between epochs would "
                "differ from trainer to trainer. Remove it, or give the arrays themselves; "
                "shuffling is done by the platform from the job's seed, augmentation belongs into "
                "layers of the model",
            )


def _take(batch: tuple[Any, ...], rows: np.ndarray) -> tuple[Any, ...]:
    taken: tuple[Any, ...] = keras.tree.map_structure(lambda leaf: leaf[rows], batch)
    return taken
