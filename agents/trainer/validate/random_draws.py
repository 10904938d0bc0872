"""Random draws of a traced function: whether the data decide how many numbers are drawn."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

#: Beginning of the names of operations that draw from a seed. Their first input is the shape of the
#: numbers, or an array with a row for each. Branches and loops begin so, too: with one number.
DRAWS = "Stateless"
SHAPE = "shape"
#: Operations that look at the shape of an array alone.
SHAPE_READERS = frozenset({"Shape", "ShapeN", "Size", "Rank"})
#: Beginnings of the names of operations whose results are as long as the values decide.
SIZED_BY_VALUES = (
    "Where",
    "Unique",
    "DynamicPartition",
    "NonMaxSuppression",
    "ListDiff",
    "Sparse",
    "Ragged",
)
#: Names of the inputs of other operations that decide the shape of their results.
SIZES = (
    SHAPE,
    "dims",
    "size",
    "sizes",
    "multiples",
    "paddings",
    "begin",
    "end",
    "strides",
    "start",
    "limit",
    "delta",
)


def draws_sized_by_values(graph: Any, data: Collection[Any]) -> bool:
    """Return whether values of some inputs of a graph decide how many random numbers it draws.

    Numbers drawn in the functions that the graph calls, as in loops, are left out.

    Args:
        graph: of a function of TensorFlow, whose state of random numbers is an input.
        data: inputs of the graph. Their shapes may decide it, as in dropout.
    """
    values = {id(tensor) for tensor in data}
    seen = set()
    left = [
        (operation.inputs[0], _input_names(operation)[0] == SHAPE)
        for operation in graph.get_operations()
        if operation.type.startswith(DRAWS) and operation.inputs
    ]
    while left:
        tensor, by_value = left.pop()
        if (id(tensor), by_value) in seen or (tensor.shape.is_fully_defined() and not by_value):
            continue
        seen.add((id(tensor), by_value))
        if by_value and id(tensor) in values:
            return True
        operation = tensor.op
        by_value = (by_value and operation.type not in SHAPE_READERS) or (
            operation.type.startswith(SIZED_BY_VALUES)
        )
        left.extend(
            (given, by_value or name in SIZES)
            for name, given in zip(_input_names(operation), operation.inputs, strict=True)
        )
    return False


def _input_names(operation: Any) -> list[str]:
    """Return the names of an operation's inputs; empty ones if some are lists."""
    names = [argument.name for argument in operation.op_def.input_arg]
    return names if len(names) == len(operation.inputs) else [""] * len(operation.inputs)
