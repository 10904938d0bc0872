"""Sweeps over the virtual nodes of a trainer: functions that run slices one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from agents.trainer.model.state import ModelState

Tensor = Any


def sweep_signature(state: ModelState, example_specs: Sequence[tf.TensorSpec]) -> list[Any]:
    """Return the signature of functions that run virtual nodes one after another.

    Their arguments are `program` and `weights` of a `BatchPlan`, the number of rows of sums, the
    seeds of each virtual node, and the examples.
    """
    return [
        tf.TensorSpec([None, 4], tf.int32),
        tf.TensorSpec([None], tf.float32),
        tf.TensorSpec([], tf.int32),
        tf.TensorSpec([None, len(state.seeds), 2], tf.int64),
        *example_specs,
    ]


def slice_of(
    examples: Sequence[Tensor], specs: Sequence[tf.TensorSpec], start: Tensor, length: Tensor
) -> list[Tensor]:
    """Return `length` examples from `start` on, with the shapes of `specs`."""
    local = [array[start : start + length] for array in examples]
    for array, spec in zip(local, specs, strict=True):
        array.set_shape(spec.shape)
    return local


def rows_joined(
    run: Callable[[Tensor], Sequence[Tensor]], count: Tensor, specs: Sequence[tf.TensorSpec]
) -> list[Tensor]:
    """Run slices 0 to `count` - 1 one after another; return each output's rows, joined.

    Args:
        run: returns the outputs of a slice, such as a virtual node's; called once, while tracing.
        specs: of the outputs, for any number of examples.
    """
    empty = [
        tf.TensorArray(spec.dtype, size=count, element_shape=spec.shape, infer_shape=False)
        for spec in specs
    ]

    def body(index: Tensor, arrays: list[tf.TensorArray]) -> tuple[Any, ...]:
        outputs = zip(arrays, run(index), strict=True)
        return index + 1, [array.write(index, rows) for array, rows in outputs]

    # One iteration at a time: overlapping them would keep the activations of several.
    _, arrays = tf.while_loop(
        lambda index, _: index < count, body, (0, empty), parallel_iterations=1
    )
    return [array.concat() for array in arrays]
