"""The stack machine of `controlplane.core.reduction` as a tensor loop for any program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

Tensor = Any


def fold(
    item: Callable[[Tensor], Tensor], merges: Tensor, width: int | None, dtype: tf.DType
) -> tf.TensorArray:
    """Push `item(0)`, `item(1)` ... and add the two topmost `merges[k]` times after push k.

    Only the entries on the stack are alive: O(log V) vectors for contiguous virtual nodes.

    Args:
        item: makes the vector [width] of an index; called once, while tracing.
        merges: int32 [n].
        width: static number of elements, None when it is known only at run time.

    Returns:
        The stack; what lies above its final height is left over and means nothing.
    """
    shape = tf.TensorShape([width])
    count = tf.shape(merges)[0]
    stack = tf.TensorArray(
        dtype, size=0, dynamic_size=True, element_shape=shape, clear_after_read=False
    )

    def push(index: Tensor, top: Tensor, stack: tf.TensorArray) -> tuple[Tensor, ...]:
        def merge(done: Tensor, top: Tensor, value: Tensor) -> tuple[Tensor, ...]:
            below = stack.read(top - 1)
            below.set_shape(shape)
            return done + 1, top - 1, below + value

        scalar = tf.TensorShape([])
        _, top, value = tf.while_loop(
            lambda done, *_: done < merges[index],
            merge,
            (tf.constant(0), top, item(index)),
            shape_invariants=(scalar, scalar, shape),
        )
        return index + 1, top + 1, stack.write(top, value)

    # One iteration at a time: overlapping them would keep the activations of several.
    _, _, stack = tf.while_loop(
        lambda index, *_: index < count, push, (0, 0, stack), parallel_iterations=1
    )
    return stack
