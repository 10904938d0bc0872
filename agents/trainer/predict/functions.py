"""The traced function of a prediction job, and the layout in which its outputs are sent.

A virtual node's slice is run in inference mode, with random generators set from (seed, step,
virtual node). Slices do not depend on the mapping, so neither do the bits of their predictions.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.constants import constants_fingerprint
from agents.trainer.model.state import WORD_BYTES, ModelState
from agents.trainer.model.stateful_ops import refuse_process_operations
from agents.trainer.step.functions import example_specs
from agents.trainer.step.prefetch import LocalPiece
from agents.trainer.step.sweep import rows_joined, sweep_signature
from controlplane.core.protocol.prediction_parts import ARRAYS_LIMIT, OUTPUT_NAME

Tensor = Any
#: Name of the output of a model with a single, unnamed output.
ONLY_OUTPUT = "predictions"


@dataclass(frozen=True, slots=True)
class Output:
    """One output: its name in the results, the shape per example, and its type."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        """Bytes per example."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class OutputLayout:
    """Layout of all outputs of an example in one row of whole words."""

    outputs: tuple[Output, ...]

    @property
    def row_words(self) -> int:
        """Number of int32 words of a row."""
        return -(-sum(output.num_bytes for output in self.outputs) // WORD_BYTES)

    def pack(self, arrays: Sequence[np.ndarray], num_rows: int) -> np.ndarray:
        """Copy each output's array [num_rows, ...] into rows, int32 [num_rows, row_words].

        Raises:
            JobCodeError: an output has another number of rows.
        """
        rows = np.zeros((num_rows, self.row_words), np.int32)
        payload = rows.view(np.uint8).reshape(num_rows, self.row_words * WORD_BYTES)
        start = 0
        for output, array in zip(self.outputs, arrays, strict=True):
            if array.shape != (num_rows, *output.shape):
                raise _refusal(
                    f"output {output.name!r} has shape {list(array.shape)} for {num_rows} "
                    "examples; its first axis must be the examples, and the rest must not depend "
                    "on how many there are"
                )
            flat = np.ascontiguousarray(array).reshape(num_rows, math.prod(output.shape))
            payload[:, start : start + output.num_bytes] = flat.view(np.uint8)
            start += output.num_bytes
        return rows

    def unpack(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the outputs by name from the rows of `pack`."""
        payload = np.ascontiguousarray(rows).view(np.uint8)
        arrays = {}
        start = 0
        for output in self.outputs:
            part = np.ascontiguousarray(payload[:, start : start + output.num_bytes])
            arrays[output.name] = part.view(output.dtype).reshape(len(rows), *output.shape)
            start += output.num_bytes
        return arrays


class PredictFunctions:
    """The prediction of one model, traced once for every mapping and membership.

    Attributes:
        layout: layout of the model's outputs for an example.
        changed: state that the model changes as it predicts, which is left as it is.
    """

    def __init__(self, model: keras.Model, state: ModelState, sample: tuple[Any, ...]) -> None:
        """Trace for examples like `sample`: `(x,)`.

        Raises:
            JobCodeError: an output cannot be split by example.
        """
        self.model = model
        self.state = state
        self.sample = sample
        self.example_specs = example_specs(sample)
        self.changed: list[Any] = []
        self._names: list[str] = []
        seeds_spec = tf.TensorSpec([len(state.seeds), 2], tf.int64)
        self._one = tf.function(self._predict_one, autograph=False).get_concrete_function(
            self.example_specs, seeds_spec
        )
        refuse_process_operations(self._one.graph, may_call_python=True)
        state.constants.append(constants_fingerprint(self._one.graph, state.variables))
        self.layout = OutputLayout(
            tuple(
                _output(name, tensor)
                for name, tensor in zip(self._names, self._one.structured_outputs, strict=True)
            )
        )
        signature = sweep_signature(state, self.example_specs)
        self._sweep = tf.function(self._predict, input_signature=signature, autograph=False)

    def predict(self, piece: LocalPiece) -> np.ndarray:
        """Predict the virtual nodes of a piece.

        Returns:
            int32 [examples of the piece, layout.row_words], virtual node by virtual node.

        Raises:
            JobCodeError: an output does not have one row per example.
        """
        arrays = [output.numpy() for output in self._sweep(*piece.arguments)]
        return self.layout.pack(arrays, int(piece.arguments[0][:, 1].numpy().sum()))

    def _predict_one(self, examples: list[Tensor], seeds: Tensor) -> list[Tensor]:
        """Run the model's `predict_step` for one virtual node; its state does not change."""
        (inputs,) = keras.tree.pack_sequence_as(self.sample, examples)
        mapping = [(variable, seeds[k]) for k, variable in enumerate(self.state.seeds)]
        with keras.StatelessScope(mapping) as scope:
            given = self.model.predict_step((inputs,))
        self.changed = [
            variable
            for variable in self.state.trainable + self.state.fixed
            if scope.get_current_value(variable) is not None
        ]
        named = keras.tree.flatten_with_path(given)
        self._names = [_output_name(path) for path, _ in named]
        _names_check(self._names)
        return [_dense(name, value) for name, (_, value) in zip(self._names, named, strict=True)]

    def _predict(
        self,
        program: Tensor,
        weights: Tensor,  # noqa: ARG002  same signature as the training functions
        num_rows: Tensor,  # noqa: ARG002
        seeds: Tensor,
        *examples: Tensor,
    ) -> list[Tensor]:
        """Run the virtual nodes one after another; returns each output's rows, concatenated."""

        def run(index: Tensor) -> list[Tensor]:
            start, length = program[index, 0], program[index, 1]
            local = [array[start : start + length] for array in examples]
            outputs: list[Tensor] = self._one(local, seeds[index])
            return outputs

        specs = [
            tf.TensorSpec((None, *output.shape), output.dtype) for output in self.layout.outputs
        ]
        return rows_joined(run, tf.shape(program)[0], specs)


def _output_name(path: Sequence[Any]) -> str:
    """Name an output by its path: dict keys, their slashes as dots; positions as `output_0` ..."""
    if not path:
        return ONLY_OUTPUT
    name = ".".join(f"output_{key}" if isinstance(key, int) else str(key) for key in path)
    return re.sub(r"[/\\]", ".", name)  # the names are those of files in an archive


def _names_check(names: Sequence[str]) -> None:
    """Raise if the arrays of outputs with these names cannot be joined in one file."""
    if not 1 <= len(names) <= ARRAYS_LIMIT:
        raise _refusal(f"the model gives {len(names)} outputs; give 1 to {ARRAYS_LIMIT}")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise _refusal(f"two outputs have the name {twice[0]!r}; rename one key of the dict")
    if unfit := [name for name in names if not OUTPUT_NAME.fullmatch(name)]:
        raise _refusal(f"an output has the name {unfit[0]!r:.60}; give 1 to 200 characters, no NUL")


def _dense(name: str, value: Any) -> Tensor:
    if not isinstance(value, tf.Tensor):
        raise _refusal(
            f"output {name!r} is a {type(value).__name__}; give dense tensors (for ragged ones "
            "`.to_tensor()` with a shape)"
        )
    if value.dtype in (tf.string, tf.resource, tf.variant):
        raise _refusal(f"output {name!r} holds {value.dtype.name}; give numbers")
    # NumPy files do not support bfloat16; float32 represents its values exactly.
    return tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value


def _output(name: str, tensor: Tensor) -> Output:
    shape = tensor.shape
    if shape.rank is None or shape.rank < 1:
        raise _refusal(f"output {name!r} has shape {shape}; its first axis must be the examples")
    if not shape[1:].is_fully_defined():
        raise _refusal(
            f"output {name!r} has shape {shape}: every example's part must have the same, known "
            "shape; set it in the model (a Reshape layer, or padding to a fixed length)"
        )
    return Output(name, tuple(shape[1:]), np.dtype(tensor.dtype.as_numpy_dtype))


def _refusal(message: str) -> JobCodeError:
    return JobCodeError("output_shape", "code.build", message)
