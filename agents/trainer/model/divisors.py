"""Divisors of losses: sums over the examples by which a job's own code divides a loss.

`sum(losses * mask) / sum(mask)` is a mean over the places that a mask leaves, as is the mean of
`boolean_mask(losses, mask)`. That of a batch is the mean of its slices', weighted by the divisors.
A divisor is found in the traced graph between the loss and the examples.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

Tensor = Any
#: Least divisor of a slice for each of its examples: beside another slice's it is nothing, but in a
#: batch without any, regularisers keep their weight.
NO_PLACES = 1e-20
_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank"})
_DIVISIONS = frozenset({"RealDiv", "DivNoNan", "Div"})
_UNCHANGED = frozenset({"Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "StopGradient"})
#: Operations that leave a mean a mean if all their operands but one are the same for every slice.
_LINEAR = _UNCHANGED | {"Neg", "Mul", "AddV2", "Add", "AddN", "Sub", "Pack", "Sum", "Mean"}
#: Operations that keep a divisor from being 0.
_BOUNDS = frozenset({"Maximum", "AddV2", "Add"})
#: Inputs of a function other than the examples: weights, states of random generators.
_INPUTS = frozenset({"Placeholder", "ReadVariableOp"})
#: Operation that finds the places of a mask.
_PLACES = "Where"


@dataclass(frozen=True)
class Divisor:
    """A sum over a slice's examples by which its loss divides.

    Attributes:
        kind: the same for sums that are computed alike.
        share: the sum for each example, at least `NO_PLACES`: float32.
        is_empty: whether it is 0.
    """

    kind: bytes
    share: Tensor
    is_empty: Tensor

    def settled(self, value: Any) -> Any:
        """Return a tensor, slices or None, with 0 for what 0 / 0 made of a slice without places."""
        if value is None:
            return None
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(self.settled(value.values), value.indices, value.dense_shape)
        value = tf.convert_to_tensor(value)
        is_kept = tf.math.is_finite(value) | ~self.is_empty
        return tf.where(is_kept, value, tf.zeros_like(value))

    def weighted(self, value: Any) -> Any:
        """Return a tensor or slices, settled and times the share."""
        value = self.settled(value)
        return None if value is None else value * tf.cast(self.share, value.dtype)


@dataclass(frozen=True)
class _Origin:
    """What decides the values of an operation; the shapes of the examples do not count.

    Attributes:
        depends: values of examples do.
        is_pure: no inputs but the examples do.
        has_places: so do the places of a mask.
    """

    depends: bool = False
    is_pure: bool = True
    has_places: bool = False


class Divisors:
    """Divisors of numbers that are computed from a slice, in the graph of its examples."""

    def __init__(self, examples: Sequence[Tensor], copies: Tensor | int = 1) -> None:
        """Take `copies` of each example as the slice."""
        self._count = tf.cast(tf.shape(examples[0])[0], tf.float32) * tf.cast(copies, tf.float32)
        given = [*examples, copies] if tf.is_tensor(copies) else examples
        self._origins = {tensor.op: _Origin(depends=True) for tensor in given}

    def only(self, numbers: Sequence[Any]) -> Divisor | None:
        """Return the divisor of those numbers that have any; None if there are several."""
        found = [self.of(tf.convert_to_tensor(number)) for number in numbers]
        kinds = {each.kind: each for each in found if each is not None}
        return next(iter(kinds.values())) if len(kinds) == 1 else None

    def common(self, numbers: Sequence[Tensor]) -> Divisor | None:
        """Return the divisor that all these numbers have; None if one has another or none."""
        found = [self.of(number) for number in numbers]
        return found[0] if len({each and each.kind for each in found}) == 1 else None

    def indices(self, numbers: Sequence[Any], divisor: Divisor) -> frozenset[int]:
        """Return the indices of the numbers that have this divisor."""
        found = [self.of(tf.convert_to_tensor(number)) for number in numbers]
        return frozenset(k for k, each in enumerate(found) if each and each.kind == divisor.kind)

    def of(self, number: Any) -> Divisor | None:
        """Return the sum by which a number divides last, before which all is linear.

        None if there is none, or if it depends on something else than the examples.
        """
        if not tf.is_symbolic_tensor(number):
            return None  # a constant
        tensor = number
        while tensor.shape.rank == 0 or tensor.op.type == "Pack":
            operation = tensor.op
            if operation.type == "Mean" and self._has_places(operation.inputs[0]):
                chosen = operation.inputs[0]
                share = tf.cast(tf.size(chosen), tf.float32) / self._count
                return _divisor(chosen.name.encode(), share)
            operands = self._dependent(operation)
            if operation.type in _DIVISIONS and self._origin(operation.inputs[1]).depends:
                return self._sum_of(operation.inputs[1])
            if operation.type not in _LINEAR | _DIVISIONS or len(operands) != 1:
                return None
            tensor = operands[0]
        return None

    def _sum_of(self, tensor: Tensor) -> Divisor | None:
        """Return a divisor that is a sum, or a mean, over the examples; None for another one."""
        while tensor.shape.rank == 0 and tensor.op.type in _UNCHANGED | _BOUNDS:
            operands = self._dependent(tensor.op)
            if len(operands) != 1:
                return None
            tensor = operands[0]
        kind = tensor.op.type
        if kind not in ("Sum", "Mean") or tensor.shape.rank or not self._origin(tensor).is_pure:
            return None
        value = tf.cast(tensor, tf.float32)
        return _divisor(_kind(tensor), value if kind == "Mean" else value / self._count)

    def _dependent(self, operation: Any) -> list[Tensor]:
        return [each for each in operation.inputs if self._origin(each).depends]

    def _has_places(self, tensor: Tensor) -> bool:
        return bool(tensor.shape.rank != 0 and self._origin(tensor).has_places)

    def _origin(self, tensor: Tensor) -> _Origin:
        known = self._origins
        waiting = [tensor.op]
        while waiting:
            operation = waiting[-1]
            inputs = [] if operation.type in _SHAPES else [each.op for each in operation.inputs]
            unknown = [each for each in inputs if each not in known]
            if operation in known:
                waiting.pop()
            elif unknown:
                waiting += unknown
            else:
                given = [known[each] for each in inputs]
                known[waiting.pop()] = _Origin(
                    any(each.depends for each in given),
                    operation.type not in _INPUTS and all(each.is_pure for each in given),
                    operation.type == _PLACES or any(each.has_places for each in given),
                )
        return known[tensor.op]


def _kind(tensor: Tensor) -> bytes:
    """Return a digest of the operations that compute a tensor, and of their inputs."""
    known: dict[Any, bytes] = {}
    waiting = [tensor.op]
    while waiting:
        operation = waiting[-1]
        unknown = [each.op for each in operation.inputs if each.op not in known]
        if operation in known:
            waiting.pop()
        elif unknown:
            waiting += unknown
        else:
            node = copy.deepcopy(operation.node_def)
            del node.input[:]
            if operation.type == "Const" or operation.inputs:
                node.name = ""
            given = [known[each.op] + bytes([each.value_index]) for each in operation.inputs]
            text = node.SerializeToString(deterministic=True)
            known[waiting.pop()] = hashlib.sha256(b"".join([text, *given])).digest()
    return known[tensor.op]


def _divisor(kind: bytes, share: Tensor) -> Divisor:
    return Divisor(kind, tf.maximum(share, NO_PLACES), tf.equal(share, 0.0))
