"""The stack machine of `core.virtual_nodes.reduction_tree` as a tensor loop for any program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Tensor = Any


def stack_reduce(
    item: Callable[[Tensor], Sequence[Tensor]],
    merges: Tensor,
    widths: Sequence[int | None],
    dtype: tf.DType,
) -> list[tf.TensorArray]:
    """Push `item(0)`, `item(1)` ... and add the two topmost `merges[k]` times after push k.

    An item is a list of separate vectors, which saves copying them into one. Only the entries on
    the stack are alive: O(log V) of them for contiguous virtual nodes.

    Args:
        item: returns the vectors of an index; called once, while tracing.
        merges: int32 [n].
        widths: static number of elements per vector, None when it is known only at run time.

    Returns:
        One stack per vector; entries above the final height are leftovers without meaning.
    """
    shapes = [tf.TensorShape([width]) for width in widths]
    scalar = tf.TensorShape([])
    count = tf.shape(merges)[0]
    empty = [
        tf.TensorArray(
            dtype, size=0, dynamic_size=True, element_shape=shape, clear_after_read=False
        )
        for shape in shapes
    ]

    def push(index: Tensor, top: Tensor, stacks: list[tf.TensorArray]) -> tuple[Any, ...]:
        def merge(done: Tensor, top: Tensor, values: list[Tensor]) -> tuple[Any, ...]:
            sums = []
            for stack, shape, value in zip(stacks, shapes, values, strict=True):
                below = stack.read(top - 1)
                below.set_shape(shape)
                sums.append(below + value)
            return done + 1, top - 1, sums

        _, top, values = tf.while_loop(
            lambda done, *_: done < merges[index],
            merge,
            (tf.constant(0), top, list(item(index))),
            shape_invariants=(scalar, scalar, shapes),
        )
        pushed = [stack.write(top, value) for stack, value in zip(stacks, values, strict=True)]
        return index + 1, top + 1, pushed

    # One iteration at a time: overlapping them would keep the activations of several.
    _, _, stacks = tf.while_loop(
        lambda index, *_: index < count, push, (0, 0, empty), parallel_iterations=1
    )
    return list(stacks)
