"""Examples from a plain list: one item is one example, stacked into arrays once."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.data.arrays import ArraySource
from agents.trainer.data.nests import PART_NAMES, is_number_list, parts_arrays, refuse_unlike


def list_open(data: list[Any], field: str) -> ArraySource:
    """Interpret a list as examples, or as Keras's `[x, y]` or `[x, y, sample_weight]`.

    Only a list of at most three entries that are not all tuples can have the Keras form; such a
    list has it if its entries hold arrays of one length and are too different to be examples.

    Raises:
        JobCodeError: the list is empty, or both interpretations or neither are possible.
    """
    if not data:
        raise JobCodeError("empty_data", field, "there are no examples in the data")
    if is_number_list(data):
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
