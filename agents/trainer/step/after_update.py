"""State that a custom `train_step` computes after its update, such as averages of the weights.

A slice has no updated weights. What depends on them, and not on the examples, is left out of its
results; the operations that compute it are copied out of the slice's graph, and run once, after
the optimizer's update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Tensor = Any


class AfterUpdate:
    """Assignments after the optimizer's update, found while the step of a slice is traced.

    Attributes:
        read: tensors that stand for variables as they are after the update: (variable, tensor).
        unsettled: variables that depend on the updated weights and differ between slices.
    """

    def __init__(
        self, read: Sequence[tuple[Any, Tensor]], fixed: Sequence[tuple[Any, Tensor]]
    ) -> None:
        """Begin without assignments.

        Args:
            fixed: values of variables before the step: (variable, tensor).
        """
        self.read = list(read)
        self.unsettled: list[Any] = []
        self._fixed = list(fixed)
        self._assigned: list[tuple[Any, Tensor]] = []

    def __bool__(self) -> bool:
        return bool(self._assigned)

    def defer(self, variable: Any, value: Tensor, is_sum: bool = False) -> None:
        """Assign a new value, which depends on the update, later.

        Args:
            is_sum: the variable is a metric's, to which every slice adds.
        """
        sources = {tensor.op for _, tensor in self.read + self._fixed}
        found = _operations(value, self.read + self._fixed)
        if is_sum or any(op.type == "Placeholder" and op not in sources for op in found):
            self.unsettled.append(variable)
        self._assigned.append((variable, value))

    def values_before(self) -> list[Tensor]:
        """Return the values before the step that `assign` needs; to be traced."""
        return [tf.identity(variable.value) for variable, _ in self._fixed]

    def assign(self, before: Sequence[Tensor]) -> None:
        """Run the assignments; to be traced after the update.

        Args:
            before: from `values_before`.
        """
        present = [tf.identity(variable.value) for variable, _ in self.read]
        standing = [tensor for _, tensor in self.read + self._fixed]
        mapped = dict(zip((t.name for t in standing), [*present, *before], strict=True))
        new = _copied([value for _, value in self._assigned], self.read + self._fixed, mapped)
        for (variable, _), value in zip(self._assigned, new, strict=True):
            variable.value.assign(tf.cast(value, variable.dtype))


def _operations(value: Tensor, sources: Sequence[tuple[Any, Tensor]]) -> set[Any]:
    """Return the operations that a tensor depends on, those of `sources` without their inputs."""
    ends = {tensor.op for _, tensor in sources}
    pending, found = [value.op], set()
    while pending:
        operation = pending.pop()
        if operation not in found:
            found.add(operation)
            pending += [] if operation in ends else [each.op for each in operation.inputs]
    return found


def _copied(
    values: Sequence[Tensor], sources: Sequence[tuple[Any, Tensor]], mapped: dict[str, Tensor]
) -> list[Tensor]:
    """Copy the operations of `values` into the graph being traced, with other sources."""
    ends = {tensor.op for _, tensor in sources}
    names = {
        operation.name
        for value in values
        for operation in _operations(value, sources)
        if operation not in ends
    }
    given = values[0].graph.as_graph_def()
    wanted = tf.compat.v1.GraphDef(library=given.library, versions=given.versions)
    for node in given.node:
        if node.name in names:
            copy = wanted.node.add()
            copy.CopyFrom(node)
            copy.attr.pop("_class", None)  # operations to be placed beside, which may be left out
            data = [name for name in node.input if not name.startswith("^")]
            del copy.input[:]
            copy.input.extend(data)
    inputs = {_plain(name) for node in wanted.node for name in node.input}
    computed = [value for value in values if value.op not in ends]
    new = tf.graph_util.import_graph_def(
        wanted,
        input_map={name: tensor for name, tensor in mapped.items() if _plain(name) in inputs},
        return_elements=[value.name for value in computed],
        name="after_update",
    )
    results = dict(zip((value.name for value in computed), new, strict=True))
    return [results[v.name] if v.name in results else mapped[v.name] for v in values]


def _plain(name: str) -> str:
    """Return a tensor's name as a node's inputs have it, where output 0 has no number."""
    return name.removesuffix(":0")
