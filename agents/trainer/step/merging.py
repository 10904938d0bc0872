"""Merged virtual nodes of one accelerator: one pass over the slices of several of them.

In fast mode the order of additions is free, so slices of one size are stacked and the forward pass
is vectorised over the stack (`tf.vectorized_map`). Each virtual node keeps its own random numbers,
batch statistics and weight; the gradient is taken of the sum. A pass therefore differs from
running its virtual nodes one by one only in rounding, and uses the memory of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import psutil
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.constants import constants_fingerprint
from agents.trainer.model.custom_steps import is_custom
from agents.trainer.model.state import ModelState
from agents.trainer.model.stateful_ops import graph_nodes, refuse_process_operations
from agents.trainer.step.gradient_layout import LayoutField, MessageWriter, message_width
from agents.trainer.step.sweep import sweep_signature
from agents.trainer.step.virtual_node import SliceResults, VirtualNode
from controlplane.core.protocol.wire import ReductionMode, TrainingSpec

Tensor = Any
#: Attribute of an operation that names its gradient, and the prefix that `tf.custom_gradient` uses.
_GRADIENT_NAME = "_gradient_op_type"
_CUSTOM_GRADIENT = b"CustomGradient"
#: Share of the accelerator's memory that a pass may take; of the machine's available memory if
#: the accelerator's is not known.
_MEMORY_SHARE = 0.25
_MACHINE_SHARE = 0.0625
#: Every n-th step takes at least two passes: two gradients are needed to estimate their noise.
NOISE_EVERY_STEPS = 8


class NotMergeableError(Exception):
    """The virtual nodes of this model have to run one after another; the message is the reason."""


class PassTracer:
    """Traces passes over stacked slices.

    Attributes:
        bytes_per_example: memory per example, the most of all passes traced so far.
    """

    def __init__(self, node: VirtualNode, example_specs: Sequence[tf.TensorSpec]) -> None:
        self._node = node
        self._example_specs = list(example_specs)
        self.bytes_per_example = 0

    def trace(self, pieces: list[LayoutField], training: bool) -> Any:
        """Trace a pass; fills `pieces`.

        Returns:
            A function with the arguments of a sweep over virtual nodes of one size; it returns
            one row, or none without virtual nodes.

        Raises:
            NotMergeableError: the model cannot be vectorised, or would compute something else.
            JobCodeError: the model draws random numbers from state of the process.
        """
        state = self._node.state
        if is_custom(self._node.model, training):
            raise NotMergeableError("it has a step of its own")
        stacked = partial(self._pass, pieces, training)
        try:
            one_pass = tf.function(stacked, autograph=False).get_concrete_function(
                [tf.TensorSpec(v.shape, v.value.dtype) for v in state.trainable],
                [tf.TensorSpec(v.shape, v.value.dtype) for v in state.fixed],
                [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in self._example_specs],
                tf.TensorSpec([None], tf.float32),
                tf.TensorSpec([None], tf.bool),
                tf.TensorSpec([None, len(state.seeds), 2], tf.int64),
            )
        except (JobCodeError, NotMergeableError):
            raise
        except Exception as error:
            message = f"its operations cannot be run on stacked slices ({error!s:.200})"
            raise NotMergeableError(message) from error
        refuse_process_operations(one_pass.graph)
        _refuse_custom_gradients(one_pass.graph)
        _refuse_captured(one_pass.graph, state)
        state.constants.append(constants_fingerprint(one_pass.graph, state.variables))
        self.bytes_per_example = max(self.bytes_per_example, _bytes_per_example(one_pass.graph))
        return self._sweep(one_pass, message_width(pieces))

    def _pass(
        self,
        pieces: list[LayoutField],
        training: bool,
        trainable: list[Tensor],
        fixed: list[Tensor],
        examples: list[Tensor],
        weights: Tensor,
        is_first: Tensor,
        seeds: Tensor,
    ) -> list[Tensor]:
        """Run slices [k, n, ...] with their weights [k] and seeds [k, generators, 2]."""
        numbers: list[int] = []  # of changed state, found while tracing
        integers: list[int] = []
        by_places: list[frozenset[int] | None] = []

        def forward(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            local, weight, seed = arguments
            results = self._node.forward(fixed, local, weight, seed, training, trainable)
            if results.assigned:
                raise NotMergeableError("it assigns its own weights")
            numbers[:] = [index for index, _ in results.changes]
            integers[:] = [index for index, _ in results.integers]
            changes = [value for _, value in results.changes]
            values = [value for _, value in results.integers]
            if results.divisor is not None:
                raise NotMergeableError("its loss divides by a sum over the examples")
            by_places[:] = [results.by_places]
            return results.loss, results.objective, changes, values, results.metrics, results.weight

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            if training:
                tape.watch(trainable)
            loss, objective, changes, values, metrics, places = tf.vectorized_map(
                forward, (list(examples), weights, seeds), warn=False
            )
            total = tf.reduce_sum(objective)
        lowest = tf.argmax(tf.cast(is_first, tf.int32))
        summed = SliceResults(
            loss=tf.reduce_sum(loss),
            objective=total,
            gradients=None,
            changes=[(n, tf.reduce_sum(v, 0)) for n, v in zip(numbers, changes, strict=True)],
            integers=[(n, v[lowest]) for n, v in zip(integers, values, strict=True)],
            metrics=[tf.reduce_sum(value, 0) for value in metrics],
            weights=[],
            assigned=[],
            weight=tf.reduce_sum(places),
            by_places=by_places[0],
            divisor=None,
        )
        writer = MessageWriter(self._node.dtype)
        if training:
            gradients = tape.gradient(total, trainable)
            shapes = [variable.shape for variable in self._node.state.trainable]
            writer.add_gradients(gradients, shapes, summed.weight, summed.by_places is not None)
        self._node.results_add(writer, summed, tf.reduce_any(is_first), training)
        return writer.finish(pieces)

    def _sweep(self, one_pass: Any, width: int) -> Any:
        """Wrap a pass so that it takes the arguments of a sweep over single virtual nodes."""
        node = self._node

        def sweep(
            program: Tensor, weights: Tensor, num_rows: Tensor, seeds: Tensor, *examples: Tensor
        ) -> Tensor:
            trainable = [tf.convert_to_tensor(v.value) for v in node.state.trainable]
            fixed = [tf.convert_to_tensor(v.value) for v in node.state.fixed]

            def row() -> Tensor:
                leading = tf.stack([tf.shape(program)[0], program[0, 1]])
                slices = []
                for array, spec in zip(examples, self._example_specs, strict=True):
                    stacked = tf.reshape(array, tf.concat([leading, tf.shape(array)[1:]], 0))
                    slices.append(tf.ensure_shape(stacked, [None, *spec.shape]))
                is_first = program[:, 3] > 0
                parts = one_pass(trainable, fixed, slices, weights, is_first, seeds)
                return tf.concat(parts, 0)[tf.newaxis]

            return tf.cond(num_rows > 0, row, lambda: tf.zeros([0, width], node.dtype))

        signature = sweep_signature(node.state, self._example_specs)
        return tf.function(sweep, input_signature=signature, autograph=False)


def why_not_merged(spec: TrainingSpec) -> str:
    """Return why a job's virtual nodes cannot be merged, regardless of its model; empty: they can.

    If the batch size may change, learning rates follow the noise of the gradient, which is
    estimated from the gradients of single virtual nodes.
    """
    if spec.reduction is not ReductionMode.FAST:
        return "in exact mode the order of additions is fixed"
    if spec.batch_size_min is not None:
        return "learning rates follow the gradient of each virtual node where batch sizes change"
    return ""


def passes_plan(
    lengths: Sequence[int], most_examples: int, fewest_passes: int = 1
) -> list[tuple[int, int]]:
    """Cut a list of virtual nodes into passes of one slice size: (first, last excluded) of each.

    Slices of a single example are not stacked: TensorFlow's batched matrix product of shapes such
    as [k, 1, m, d] and [d, e] reads and writes beyond its buffers (seen in 2.21, on CPUs).

    Args:
        lengths: examples of each virtual node; equal lengths are adjacent.
        most_examples: most examples of a pass; a pass always has at least one virtual node.
        fewest_passes: least number of passes, if there are as many virtual nodes.
    """
    runs: list[tuple[int, int]] = []
    for place, length in enumerate(lengths):
        if runs and lengths[runs[-1][0]] == length:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    least = math.ceil(fewest_passes / len(runs)) if runs else 0
    passes: list[tuple[int, int]] = []
    for first, last in runs:
        count = last - first
        fitting = max(1, most_examples // lengths[first]) if lengths[first] > 1 else 1
        number = min(count, max(math.ceil(count / fitting), least))
        cuts = [first + count * part // number for part in range(number + 1)]
        passes.extend(pairwise(cuts))
    return passes


def pass_examples(bytes_per_example: int, memory_bytes: int) -> int:
    """Return the most examples of a pass for the accelerator's `memory_bytes` (0: not known)."""
    available = psutil.virtual_memory().available
    budget = memory_bytes * _MEMORY_SHARE if memory_bytes else available * _MACHINE_SHARE
    return max(1, int(budget // max(1, bytes_per_example)))


def _refuse_custom_gradients(graph: Any) -> None:
    """Raise if an operation has a custom gradient: vectorised operations would lose it."""
    places = sorted(
        {
            node.name.removeprefix("loop_body/").rpartition("/")[0] or node.name
            for node in graph_nodes(graph)
            if node.attr[_GRADIENT_NAME].s.startswith(_CUSTOM_GRADIENT)
        }
    )
    if places:
        raise NotMergeableError(f"it has a custom gradient in {', '.join(places[:3])}")


def _refuse_captured(graph: Any, state: ModelState) -> None:
    """Raise if a slice reads a variable of the model itself instead of its value in this pass.

    A `tf.function` inside the model does so once it was traced with the variable: its gradient by
    the value would be lost.
    """
    captured = {id(tensor) for tensor, _ in graph.captures}
    for variable in (*state.trainable, *state.fixed):
        if id(variable.value.handle) in captured:
            raise NotMergeableError(f"a function inside it reads {variable.path} by itself")


def _bytes_per_example(graph: Any) -> int:
    """Sum the output bytes per example of the operations of a slice: roughly an upper bound.

    Each unknown dimension is assumed to be the number of examples.
    """
    total = 0
    for operation in graph.get_operations():
        for output in operation.outputs:
            if output.shape.rank is None or output.dtype.size <= 0:
                continue
            if any(size is None for size in output.shape):
                known = [size for size in output.shape if size is not None]
                total += math.prod(known) * output.dtype.size
    return total
