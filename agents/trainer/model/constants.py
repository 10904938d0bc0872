"""Constants and lookup tables, which are neither state nor data, and their fingerprints.

A random matrix that `build` draws for a layer is such a constant. Trainers with other ones would
compute something else without a difference in the layout of their states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from agents.trainer.model.stateful_ops import graph_nodes

Tensor = Any
#: Smaller constants are shapes, axes and the like, and may differ between kinds of accelerators.
LEAST_ELEMENTS = 16
#: Steps that numbers are rounded to, so that the last bits of a processor do not count.
ROUNDING = 256
_GOLDEN = 0.618033988749895


def constants_fingerprint(graph: Any, variables: Iterable[Any]) -> str:
    """Return a SHA-256 (hex) over the constants of a traced function.

    Args:
        variables: the job's state, whose values do not count.
    """
    known = {id(variable.value.handle) for variable in variables}
    found = sorted(_described(array) for array in _constants(graph, known))
    return hashlib.sha256("".join(found).encode()).hexdigest()


def tables_fingerprint(layers: Iterable[Any]) -> str:
    """Return a SHA-256 (hex) over the lookup tables that layers hold, such as vocabularies."""
    digest = hashlib.sha256()
    for layer in layers:
        for table in vars(layer).values():
            if isinstance(table, tf.lookup.StaticHashTable) and table.size():
                keys, values = (entries.numpy().tolist() for entries in table.export())
                digest.update(repr(sorted(zip(keys, values, strict=True))).encode())
    return digest.hexdigest()


def _constants(graph: Any, known: set[int]) -> Iterator[np.ndarray]:
    """Yield the constants of a graph, of the functions that it calls, and of what it captures."""
    for node in graph_nodes(graph):
        if node.op == "Const":
            yield tf.make_ndarray(node.attr["value"].tensor)
    for outer, _ in graph.captures:
        if hasattr(outer, "numpy") and outer.dtype not in (tf.resource, tf.variant):
            yield np.asarray(outer.numpy())  # of one text it gives bytes
    for variable in graph.variables:
        if id(variable.handle) not in known:
            yield variable.numpy()


def _described(array: np.ndarray) -> str:
    """Describe type, shape, size and order of numbers, roughly; nothing of few or of text."""
    if array.size < LEAST_ELEMENTS or array.dtype.kind not in "biuf":
        return ""
    values = np.nan_to_num(array.astype("float64").ravel(), posinf=1.0, neginf=-1.0)
    length = float(np.linalg.norm(values)) or 1.0
    places = 0.5 + np.arange(values.size) * _GOLDEN % 1.0  # tells orders apart
    along = round(float(values @ places) / length * ROUNDING)
    return f"{array.dtype}{array.shape}{round(np.log2(length) * ROUNDING)},{along};"


def is_constant(value: Tensor, inputs: Sequence[Tensor] | None = None) -> bool:
    """Return whether a tensor depends on none of these inputs of the function that is traced.

    None: on no input at all.
    """
    names = None if inputs is None else {tensor.op.name for tensor in inputs}
    pending, seen = [value], set()
    while pending:
        tensor = pending.pop()
        if id(tensor.op) in seen:
            continue
        seen.add(id(tensor.op))
        if tensor.op.type == "Placeholder" and (names is None or tensor.op.name in names):
            return False
        pending.extend(tensor.op.inputs)
    return True
