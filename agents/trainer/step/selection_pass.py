"""The selection pass of a trainer: the loss of each example of its virtual nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from agents.trainer.model.compiled_losses import NoExampleLossError
from agents.trainer.model.constants import constants_fingerprint
from agents.trainer.model.stateful_ops import refuse_process_operations
from agents.trainer.step.sweep import rows_joined, slice_of, sweep_signature
from agents.trainer.step.virtual_node import VirtualNode

Tensor = Any
_LOSSES = tf.TensorSpec([None], tf.float32)


def losses_traced(node: VirtualNode, specs: Sequence[tf.TensorSpec]) -> Any:
    """Trace a loop over virtual nodes, with the arguments of a sweep.

    A model whose loss gives no value for each example of a slice gets its examples one by one.

    Args:
        specs: of the flat arrays of a slice.

    Returns:
        A function that returns the losses of the examples, in their order: float32 [n].
    """
    of_slice: Any
    try:
        of_slice = _slice_traced(node, specs, is_single=False)
    except NoExampleLossError:
        of_slice = partial(_one_by_one, _slice_traced(node, specs, is_single=True), specs)

    def sweep(
        program: Tensor, weights: Tensor, num_rows: Tensor, seeds: Tensor, *examples: Tensor
    ) -> Tensor:
        del weights, num_rows  # nothing is summed
        fixed = [tf.convert_to_tensor(v.value) for v in node.state.fixed]

        def losses(index: Tensor) -> list[Tensor]:
            local = slice_of(examples, specs, program[index, 0], program[index, 1])
            return [of_slice(fixed, local, seeds[index])]

        return rows_joined(losses, tf.shape(program)[0], [_LOSSES])[0]

    signature = sweep_signature(node.state, specs)
    return tf.function(sweep, input_signature=signature, autograph=False)


def _slice_traced(node: VirtualNode, specs: Sequence[tf.TensorSpec], is_single: bool) -> Any:
    losses = tf.function(partial(node.losses, is_single), autograph=False)
    traced = losses.get_concrete_function(
        [tf.TensorSpec(v.shape, v.value.dtype) for v in node.state.fixed],
        list(specs),
        tf.TensorSpec([len(node.state.seeds), 2], tf.int64),
    )
    refuse_process_operations(traced.graph)
    node.state.constants.append(constants_fingerprint(traced.graph, node.state.variables))
    return traced


def _one_by_one(
    of_one: Any,
    specs: Sequence[tf.TensorSpec],
    fixed: list[Tensor],
    local: list[Tensor],
    seeds: Tensor,
) -> Tensor:
    def loss(index: Tensor) -> list[Tensor]:
        return [of_one(fixed, slice_of(local, specs, index, 1), seeds)]

    return rows_joined(loss, tf.shape(local[0])[0], [_LOSSES])[0]
