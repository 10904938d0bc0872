"""Examples from any object with `__len__` and `__getitem__`: one item is one example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from agents.trainer.data_arrays import (
    PART_NAMES,
    as_floatx,
    example_order,
    nested_arrays,
    parts_split,
    refuse_changing,
    weights_spread,
)
from agents.trainer.user_errors import JobCodeError, user_code


class ItemSource:
    """Stacks items into arrays. Item *i* must be the same whenever and wherever it is read."""

    def __init__(self, items: Any, field: str, code_dir: Path) -> None:
        self._items = items
        self._field = field
        self._code_dir = code_dir
        with user_code(code_dir, field, "len(data)"):
            self._length = len(items)
        if self._length < 1:
            raise JobCodeError("empty_data", field, "there are no examples in the data")
        first = self._item(0)
        refuse_changing(first, self._item(0), field)
        self.has_sample_weight = len(first) == len(PART_NAMES)

    def __len__(self) -> int:
        return self._length

    def order(self, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
        return example_order(self._length, seed, epoch, shuffle)

    def fetch(self, indices: np.ndarray) -> tuple[Any, ...]:
        items = [self._item(int(index)) for index in indices]
        try:
            stacked: tuple[Any, ...] = keras.tree.map_structure(
                lambda *leaves: as_floatx(np.stack(leaves)), *items
            )
        except (ValueError, TypeError) as error:
            raise JobCodeError(
                "data_shape",
                self._field,
                f"items have different shapes or structures ({error}); pad or crop them to one "
                "shape in __getitem__",
            ) from error
        return stacked

    def _item(self, index: int) -> tuple[Any, ...]:
        with user_code(self._code_dir, self._field, f"data[{index}]"):
            item = self._items[index]
        parts = parts_split(item, f"{self._field}[{index}]")
        arrays = tuple(
            nested_arrays(part, f"{self._field}[{index}].{name}", min_rank=0)
            for part, name in zip(parts, PART_NAMES, strict=False)
        )
        return weights_spread(arrays) if len(arrays) == len(PART_NAMES) else arrays
