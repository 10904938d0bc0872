"""Examples from any object with `__len__` and `__getitem__`: one item is one example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from agents.trainer.contract.user_errors import JobCodeError, user_code
from agents.trainer.data.arrays import example_order, refuse_changing
from agents.trainer.data.nests import PART_NAMES, as_floatx, parts_arrays, refuse_unlike


class ItemSource:
    """Stacks items into arrays. Item *i* must be the same in every read and on every trainer.

    Item 0 determines structure, shapes and types.
    """

    batch_size: int | None = None

    def __init__(self, items: Any, field: str, code_dir: Path) -> None:
        self._items = items
        self._field = field
        self._code_dir = code_dir
        with user_code(code_dir, field, "len(data)", is_all_theirs=True):
            self._length = len(items)
        if self._length < 1:
            raise JobCodeError("empty_data", field, "there are no examples in the data")
        first = keras.tree.map_structure(np.copy, self._read(0))  # the job may reuse its array
        refuse_changing(first, self._read(0), field)
        self._first: tuple[Any, ...] = keras.tree.map_structure(as_floatx, first)
        self.has_sample_weight = len(first) == len(PART_NAMES)

    def __len__(self) -> int:
        return self._length

    def order(self, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
        return example_order(self._length, seed, epoch, shuffle)

    def fetch(self, indices: np.ndarray) -> tuple[Any, ...]:
        stacked: tuple[Any, ...] = keras.tree.map_structure(
            lambda leaf: np.empty((len(indices), *leaf.shape), leaf.dtype), self._first
        )
        arrays = keras.tree.flatten(stacked)
        for row, index in enumerate(indices):
            item = self._read(int(index))
            refuse_unlike(item, self._first, f"{self._field}[{index}]")
            for array, leaf in zip(arrays, keras.tree.flatten(item), strict=True):
                array[row] = leaf
        return stacked

    def _read(self, index: int) -> tuple[Any, ...]:
        with user_code(self._code_dir, self._field, f"data[{index}]", is_all_theirs=True):
            item = self._items[index]
        return parts_arrays(item, f"{self._field}[{index}]", min_rank=0)
