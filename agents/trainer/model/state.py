"""A job's complete state: every variable in a fixed order, as tensors, bytes, digest and file.

The order is: trainable variables, non-trainable ones (seed generators included), the global seed
generator, optimizer variables (iteration, slots, loss scale, averages), metric variables, the
state of `BatchScaling` if the batch size may change, that of `Selection` if the job selects its
examples, and `Tunables` if it is tuned. The bytes of a state are the bytes of its variables in that
order, back to back. Parked branches are further states with the same variables: a *whole* state is
the present one followed by them, in the order of their numbers.

Checkpoint file (`checkpoint.npz`, an uncompressed NumPy archive without pickled objects):
`meta` is UTF-8 JSON as uint8 with `format`, `digest`, `progress`, `variables` (name, dtype,
shape), `groups` (numbers of the model's and the optimizer's variables, which come first), `data`
(fingerprint of the job's data) and `branches` (numbers of the parked ones); `v0`, `v1` ... are the
variables of the whole state, each as uint8 bytes in C order.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.atomic_write import atomic_write
from agents.trainer.contract.failures import TrainerError
from agents.trainer.model.batch_scaling import BatchScaling
from agents.trainer.model.branches import Branches
from agents.trainer.model.custom_steps import loss_trackers
from agents.trainer.model.keras_private import (
    global_random_state,
    metric_variables,
    model_layers,
    optimizer_variables,
)
from agents.trainer.model.optimizers import optimizer_of
from agents.trainer.model.tunables import Tunables
from agents.trainer.selection.state import Selection

Tensor = Any
CHECKPOINT_FORMAT = 1
WORD_BYTES = 4
#: Advice for a job whose code built something else in another process.
SAME_BUILD = (
    "build() must give the same everywhere (look for unseeded random numbers, the order of a set "
    "or of a folder's files, the time)"
)


@dataclass(frozen=True, slots=True)
class VariableSpec:
    """Name, dtype and shape of one variable."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class ModelState:
    """The variables of a built and compiled model, its optimizer and its metrics.

    Attributes:
        seeds: states of random generators; set within a step, which does not change them.
        fixed: the other non-trainable variables; every virtual node starts a step from them.
        adapted: statistics of `Normalization` layers, of which traced functions hold copies.
        scaling: scaling of the learning rate, in a job whose batch size may change.
        selection: choice of the training examples, in a job that selects them.
        tunables: values that change without retracing, in a job that is tuned.
        branches: states that are parked beside the present one.
        data_fingerprint: fingerprint of the job's data; "" if not set.
        constants: fingerprints of the model's lookup tables, and of the constants of the functions
            traced with the state.
        group_sizes: numbers of the model's and the optimizer's variables, which come first.
    """

    def __init__(
        self,
        model: keras.Model,
        is_trained: bool = True,
        scaling: BatchScaling | None = None,
        selection: Selection | None = None,
        tunables: Tunables | None = None,
    ) -> None:
        """Collect the variables; of a prediction job only the variables of the layers."""
        self.scaling = scaling
        self.selection = selection
        self.tunables = tunables
        self.branches = Branches(self.capture, self.put)
        self.trainable = list(model.trainable_variables)
        self.non_trainable = list(model.non_trainable_variables)
        random_state = global_random_state()
        if all(variable is not random_state for variable in self.non_trainable):
            self.non_trainable.append(random_state)
        self.seeds = [variable for variable in self.non_trainable if _is_seed(variable)]
        self.fixed = [variable for variable in self.non_trainable if not _is_seed(variable)]
        self.adapted = [
            variable
            for layer in model_layers(model)
            if isinstance(layer, keras.layers.Normalization)
            for variable in layer.variables
        ]
        self.optimizer = optimizer_variables(optimizer_of(model)) if is_trained else []
        found = metric_variables(model)
        found += [variable for each in loss_trackers(model) for variable in each.variables]
        self.metrics = _unique(found) if is_trained else []
        self.variables = _unique(
            self.trainable
            + self.non_trainable
            + self.optimizer
            + self.metrics
            + ([] if scaling is None else [scaling.variable])
            + ([] if selection is None else selection.variables)
            + ([] if tunables is None else [tunables.variable])
        )
        self.specs = tuple(
            VariableSpec(
                f"{position}:{variable.path}", variable.value.dtype.name, tuple(variable.shape)
            )
            for position, variable in enumerate(self.variables)
        )
        self.num_bytes = sum(_num_bytes(spec) for spec in self.specs)
        num_model = len(_unique(self.trainable + self.non_trainable))
        num_first = len(_unique(self.trainable + self.non_trainable + self.optimizer))
        self.group_sizes = (num_model, num_first - num_model)
        self.data_fingerprint = ""
        self.constants: list[str] = []

    def capture(self) -> list[Tensor]:
        """Return the present values without copying.

        TensorFlow copies a variable's buffer on the next write while such a tensor is alive.
        """
        return [tf.convert_to_tensor(variable.value) for variable in self.variables]

    def capture_whole(self) -> list[Tensor]:
        """Return the present values and those of all parked branches, without copying."""
        parked = self.branches.parked
        return self.capture() + [value for number in sorted(parked) for value in parked[number]]

    def metric_values(self) -> list[Tensor]:
        """Return the present values of the metric variables without copying."""
        return [tf.convert_to_tensor(variable.value) for variable in self.metrics]

    def put_metrics(self, values: Sequence[Tensor]) -> None:
        """Assign the metric variables."""
        for variable, value in zip(self.metrics, values, strict=True):
            variable.value.assign(value)

    def put(self, values: Sequence[Tensor]) -> None:
        """Assign values in the order of `variables`."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.value.assign(value)

    def put_bytes(self, payload: np.ndarray, positions: Sequence[int] | None = None) -> None:
        """Assign variables, all or only `positions`, from the bytes (uint8) of `pack`."""
        chosen = range(len(self.specs)) if positions is None else positions
        values = _split(payload, [self.specs[position] for position in chosen])
        for position, value in zip(chosen, values, strict=True):
            self.variables[position].value.assign(value)

    def layout_digest(self) -> bytes:
        """Hash what trainers of one membership must agree on: names, dtypes, shapes, data, code."""
        built = "".join([self.data_fingerprint, *self.constants])
        return hashlib.sha256(_layout(self.specs) + built.encode()).digest()


def pack(values: Sequence[Tensor]) -> np.ndarray:
    """Copy values into one int32 array, zero-padded to whole words."""
    arrays = [_bytes_of(value) for value in values]
    total = sum(array.size for array in arrays)
    words = np.zeros(-(-total // WORD_BYTES), np.int32)
    payload = words.view(np.uint8)
    start = 0
    for array in arrays:
        payload[start : start + array.size] = array
        start += array.size
    return words


def state_digest(specs: Sequence[VariableSpec], values: Sequence[Tensor]) -> str:
    """Return the SHA-256 over names, dtypes, shapes and bytes of all variables, as hex.

    Args:
        specs: of the present state's variables.
        values: of a state, whole or not.
    """
    num_states, left = divmod(len(values), len(specs))
    assert not left, "a whole state has complete branches"
    digest = hashlib.sha256(_layout(list(specs) * num_states))
    for value in values:
        digest.update(_bytes_of(value).data)
    return digest.hexdigest()


def checkpoint_write(
    path: Path,
    state: ModelState,
    values: Sequence[Tensor],
    progress: Mapping[str, Any],
    parked: Sequence[int] = (),
) -> str:
    """Write captured values of a state to a file atomically; returns the state's digest.

    Args:
        values: of the whole state.
        parked: numbers of its parked branches, ascending.
    """
    assert len(values) == len(state.specs) * (1 + len(parked)), "the branches are those of `parked`"
    specs = state.specs
    digest = state_digest(specs, values)
    meta = {
        "format": CHECKPOINT_FORMAT,
        "digest": digest,
        "progress": progress,
        "variables": [[spec.name, spec.dtype, list(spec.shape)] for spec in specs],
        "groups": state.group_sizes,
        "data": state.data_fingerprint,
        "branches": list(parked),
    }
    arrays = {f"v{index}": _bytes_of(value) for index, value in enumerate(values)}
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    with atomic_write(path, is_synced=True) as partial, partial.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)
    return digest


def checkpoint_read(path: Path, state: ModelState) -> dict[str, Any]:
    """Load a checkpoint into the model's variables and branches; returns its progress.

    Raises:
        TrainerError: the file is damaged, belongs to another model or was saved with other data.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            meta = json.loads(archive["meta"].tobytes())
            if meta["format"] != CHECKPOINT_FORMAT:
                raise TrainerError(
                    "internal", f"checkpoint format {meta['format']} is not known to this trainer"
                )
            specs = [
                VariableSpec(name, dtype, tuple(shape)) for name, dtype, shape in meta["variables"]
            ]
            _check_same_data(meta["data"], state.data_fingerprint)
            _check_same_model(specs, state.specs)
            parked = [int(number) for number in meta["branches"]]
            values = [
                value_from_bytes(archive[f"v{index}"], spec)
                for index, spec in enumerate(list(state.specs) * (1 + len(parked)))
            ]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise TrainerError("internal", f"checkpoint {path.name} cannot be read: {error}") from error
    if state_digest(specs, values) != meta["digest"]:
        raise TrainerError("internal", f"checkpoint {path.name} is damaged: digests differ")
    size = len(specs)
    state.put(values[:size])
    state.branches.parked.clear()
    for place, number in enumerate(parked, start=1):
        tensors = values[place * size : (place + 1) * size]
        state.branches.parked[number] = tuple(tf.convert_to_tensor(value) for value in tensors)
    progress: dict[str, Any] = meta["progress"]
    return progress


def state_adopt(path: Path, state: ModelState) -> None:
    """Go on with the state of a trial of the job, which has the same variables and no branches.

    Metrics of the epoch under way, which are sums over the job's own steps, stay.

    Raises:
        TrainerError: as `checkpoint_read`.
    """
    metrics = state.metric_values()
    checkpoint_read(path, state)
    state.put_metrics(metrics)


def _check_same_data(stored: str, wanted: str) -> None:
    """Raise if the job goes on with other data than those that it was trained on so far."""
    if stored and wanted and stored != wanted:
        raise TrainerError(
            "user_code", f"the data are not those with which the job was interrupted: {SAME_BUILD}"
        )


def _check_same_model(stored: Sequence[VariableSpec], wanted: Sequence[VariableSpec]) -> None:
    for old, new in zip(stored, wanted, strict=False):
        if (old.dtype, old.shape) != (new.dtype, new.shape):
            raise TrainerError(
                "internal", f"checkpoint has {old} where the model has {new}: the job code changed"
            )
    if len(stored) != len(wanted):
        raise TrainerError(
            "internal",
            f"checkpoint has {len(stored)} variables, the model {len(wanted)}: the code changed",
        )


def _split(payload: np.ndarray, specs: Sequence[VariableSpec]) -> list[np.ndarray]:
    values = []
    start = 0
    for spec in specs:
        size = _num_bytes(spec)
        values.append(value_from_bytes(payload[start : start + size], spec))
        start += size
    return values


def _bytes_of(value: Tensor) -> np.ndarray:
    """View a value's memory as uint8 without copying."""
    array = np.ascontiguousarray(as_array(value))
    return array.reshape(-1).view(np.uint8)


def as_array(value: Tensor) -> np.ndarray:
    """Return a tensor's or array's value; NumPy does not convert a scalar of bfloat16 by itself."""
    is_scalar = tf.is_tensor(value) and value.shape.rank == 0
    return np.asarray(value.numpy() if is_scalar else value)


def value_from_bytes(payload: np.ndarray, spec: VariableSpec) -> np.ndarray:
    """Return the value of a variable from its bytes (uint8)."""
    dtype = tf.as_dtype(spec.dtype).as_numpy_dtype
    return np.frombuffer(payload.tobytes(), dtype).reshape(spec.shape)


def _num_bytes(spec: VariableSpec) -> int:
    return math.prod(spec.shape) * int(tf.as_dtype(spec.dtype).size)


def _is_seed(variable: Any) -> bool:
    """Return whether a variable is the state of a Keras `SeedGenerator`."""
    return bool(variable.path.rpartition("/")[2] == "seed_generator_state")


def _layout(specs: Sequence[VariableSpec]) -> bytes:
    return json.dumps([[spec.name, spec.dtype, list(spec.shape)] for spec in specs]).encode()


def _unique(variables: Sequence[Any]) -> list[Any]:
    seen: dict[int, Any] = {id(variable): variable for variable in variables}
    return list(seen.values())
