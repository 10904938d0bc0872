"""Examples from objects with `__len__` and `__getitem__`, lists among them: an item is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from agents.trainer.contract.user_errors import JobCodeError, user_code
from agents.trainer.data.arrays import ArraySource, example_order, refuse_changing
from agents.trainer.data.nests import (
    PART_NAMES,
    as_floatx,
    is_value_list,
    parts_arrays,
    refuse_unlike,
)


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
                array[row, ...] = leaf  # of text an object, not an array around it
        return stacked

    def _read(self, index: int) -> tuple[Any, ...]:
        with user_code(self._code_dir, self._field, f"data[{index}]", is_all_theirs=True):
            item = self._items[index]
        return parts_arrays(item, f"{self._field}[{index}]", min_rank=0)


def list_open(data: list[Any], field: str) -> ArraySource:
    """Interpret a list as examples, or as Keras's `[x, y]` or `[x, y, sample_weight]`.

    Examples are stacked into arrays once. Only a list of at most three entries that are not all
    tuples can have the Keras form; such a list has it if its entries hold arrays of one length and
    are too different to be examples.

    Raises:
        JobCodeError: the list is empty, or both interpretations or neither are possible.
    """
    if not data:
        raise JobCodeError("empty_data", field, "there are no examples in the data")
    if is_value_list(data):
        return ArraySource((data,), field)
    if len(data) > len(PART_NAMES) or all(isinstance(item, tuple) for item in data):
        return _stacked(_examples(data, field), field)
    try:
        arrays = ArraySource(tuple(data), field)
    except JobCodeError as error:
        return _examples_or_both_reasons(data, field, error)
    try:
        _examples(data, field)
    except JobCodeError:
        return arrays
    raise JobCodeError(
        "ambiguous_data",
        field,
        f"the list's {len(data)} items, arrays of one shape, can be examples or whole arrays "
        "[x, y]; give whole arrays as a tuple, (x,) or (x, y), and examples as tuples in a list, "
        "[(x0,), (x1,)] or [(x0, y0), (x1, y1)]",
    )


def _examples_or_both_reasons(data: list[Any], field: str, refusal: JobCodeError) -> ArraySource:
    try:
        examples = _examples(data, field)
    except JobCodeError as error:
        if refusal.code != "length_mismatch":
            raise
        reason = f"{error.message}. Nor can the list be whole arrays [x, y]: {refusal.message}"
        raise JobCodeError(error.code, error.field, reason) from error
    return _stacked(examples, field)


def _examples(data: list[Any], field: str) -> list[tuple[Any, ...]]:
    items = [parts_arrays(item, f"{field}[{index}]", min_rank=0) for index, item in enumerate(data)]
    for index, item in enumerate(items):
        refuse_unlike(item, items[0], f"{field}[{index}]", is_typed=False)
    return items


def _stacked(examples: list[tuple[Any, ...]], field: str) -> ArraySource:
    """Stack examples; numbers of different types are promoted by NumPy's rules."""
    columns = zip(*(keras.tree.flatten(example) for example in examples), strict=True)
    arrays = [np.stack(column) for column in columns]
    return ArraySource(keras.tree.pack_sequence_as(examples[0], arrays), field)
