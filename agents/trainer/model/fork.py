"""Start of a job from a state that another job has saved.

The file is untrusted: it may come from another user's job. It is read without pickled objects, its
entries are as large as the file says, and nothing is assigned before everything is checked.

Model and optimizer have to fit, variable by variable. The learning rate, a variable of the
optimizer, is only taken over with the other job's code and settings. The statistics of
`Normalization` layers stay this job's own, as its `build` adapted them: steps compute with copies.
The cursor, the metrics, and the state of batch scaling and selection go on if the data and their
order are those of the other job; otherwise the epoch under way begins anew. A job that was
searching its tunables is forked from the root of its search; the new job tunes from the begin, if
it does. A trial goes on with tunables of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agents.trainer.contract.failures import TrainerError
from agents.trainer.model.progress import NO_GUARD, Activity, Progress
from agents.trainer.model.state import (
    CHECKPOINT_FORMAT,
    ModelState,
    VariableSpec,
    state_digest,
    value_from_bytes,
)
from controlplane.core.protocol.fork import ForkSpec
from controlplane.core.protocol.tuning import BOUNDS, MAX_BRANCHES_RANGE, TunableName
from controlplane.core.protocol.wire import TrainingSpec
from controlplane.core.tuning.course import TuningCourse

MISFIT = "state_misfit"
DAMAGED = "state_damaged"
_CHUNK_BYTES = 1024**2
_META_LIMIT_BYTES = 64 * 1024**2
_COUNT_LIMIT = 2**53
_GENERATOR = re.compile(r"(seed_generator)_\d+(?=/seed_generator_state$)")
_RATE = "learning_rate"
_COUNTS = ("step", "epoch", "batch", "examples", "queued", "chosen", "trained", "empty_epochs")


@dataclass(frozen=True)
class _Saved:
    """A checkpoint file that has been checked, with its variables in their groups."""

    values: list[np.ndarray]
    model: list[tuple[int, VariableSpec]]
    optimizer: list[tuple[int, VariableSpec]]
    others: list[tuple[int, VariableSpec]]
    progress: dict[str, Any]
    data: str


def is_forked_state(path: Path, fork: ForkSpec | None) -> bool:
    """Return whether a checkpoint is the other job's state, not a later one of the job itself."""
    if fork is None:
        return False
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest() == fork.sha256


def fork_read(path: Path, state: ModelState, spec: TrainingSpec) -> Progress:
    """Load another job's state into the variables; return the progress to go on from.

    Raises:
        TrainerError: `state_misfit`: a variable of model or optimizer differs, the first one is
            named; `state_damaged`: the file is no complete checkpoint.
    """
    fork = spec.fork
    assert fork is not None, "only a fork starts from another job's state"
    saved = _saved_read(path)
    here = _groups(state)
    pairs = _fitting("model", saved.model, here[0])
    pairs += _fitting("optimizer", *(_without_rate(group) for group in (saved.optimizer, here[1])))
    if fork.keeps_rate:
        rates = [[row for row in group if _is_rate(row[1])] for group in (saved.optimizer, here[1])]
        pairs += _fitting("optimizer", *rates)
    others = _same(saved.others, here[2])
    goes_on = fork.keeps_order and others is not None and saved.data == state.data_fingerprint
    if spec.tuning is not None and spec.selection is not None:
        goes_on = False  # its first epoch is one of a search, from its first batch on
    progress = _progress(saved, spec, goes_on=goes_on)
    if goes_on and others is not None:
        pairs += others
    kept = {id(variable) for variable in state.adapted}
    kept |= set() if fork.keeps_seed else {id(variable) for variable in state.seeds}
    for position, target in pairs:
        variable = state.variables[target]
        if id(variable) not in kept:
            variable.value.assign(saved.values[position])
    if fork.values:
        assert state.tunables is not None, "a trial's state has tunables"
        state.tunables.assign(fork.values)
    return replace(progress, train_batch_size=_batch_size(state))


def _batch_size(state: ModelState) -> int | None:
    if state.tunables is None:
        return None
    low, high = BOUNDS[TunableName.BATCH_SIZE]
    value = state.tunables.values.get(TunableName.BATCH_SIZE, low)
    if not low <= value <= high:
        raise _damaged(f"its batch size is {value}")
    return state.tunables.batch_size


def _progress(saved: _Saved, spec: TrainingSpec, *, goes_on: bool) -> Progress:
    """Return the cursor: that of the other job, or the begin of its present epoch.

    A stop condition that has ended the other job is forgotten, and so is a failure.
    """
    try:
        counts = [int(saved.progress[name]) for name in _COUNTS]
        progress = Progress.from_json(saved.progress)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _damaged(f"its progress cannot be read: {error!r:.200}") from error
    if not 0 <= min(counts) <= max(counts) < _COUNT_LIMIT:
        raise _damaged("a count of its progress is out of range")
    assert spec.fork is not None, "only a fork starts from another job's state"
    if progress.step != spec.fork.step:
        raise _damaged(f"it is of step {progress.step}, not of step {spec.fork.step}")
    # The first batch is fetched before the search begins: it depends on whether one is due.
    tuning = None if spec.tuning is None or spec.tuning.parallel else TuningCourse()
    if goes_on:
        return replace(
            progress,
            ended_by=None,
            found=None,
            is_failed=False,
            recent=(),
            tuning=tuning,
            adopted=0,
            guard=NO_GUARD,  # this job may have other code
        )
    selects = (
        spec.selection is not None
        and spec.selection.selects(progress.epoch)
        and (spec.tuning is None or spec.tuning.tunes_selection)  # else a search is due
    )
    return Progress(
        step=progress.step,
        epoch=progress.epoch,
        activity=Activity.SELECT if selects else Activity.TRAIN,
        history=progress.history,
        training_s=progress.training_s,
        losses=progress.losses,
        tuning=tuning,
    )


def _saved_read(path: Path) -> _Saved:
    """Read and check a whole file: no compressed entries, no objects, sizes and digest as told."""
    try:
        _entries_check(path)
        with np.load(path, allow_pickle=False) as arrays:
            meta = json.loads(arrays["meta"].tobytes())
            _format_check(meta)
            specs = [_spec_read(*row) for row in meta["variables"]]
            num_branches = len(meta["branches"])
            values = [
                value_from_bytes(arrays[f"v{position}"], spec)
                for position, spec in enumerate(specs * (1 + num_branches))
            ]
        num_model, num_optimizer = (int(number) for number in meta["groups"])
        progress, data, digest = dict(meta["progress"]), str(meta["data"]), meta["digest"]
    except TrainerError:
        raise
    except Exception as error:  # whatever a forged file may raise in NumPy, JSON or TensorFlow
        raise _damaged(f"it cannot be read: {error!r:.200}") from error
    if state_digest(specs, values) != digest:
        raise _damaged("digests differ")
    rows, end = list(enumerate(specs)), num_model + num_optimizer
    if num_branches:  # the first one is the root; what is not of a branch goes on
        present, root = values[: len(specs)], values[len(specs) : 2 * len(specs)]
        values = root[:end] + present[end:-1] + root[-1:]  # tunables come last
    return _Saved(values, rows[:num_model], rows[num_model:end], rows[end:], progress, data)


def _entries_check(path: Path) -> None:
    """Raise unless every entry is stored as it is: a compressed one could grow without bound."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise _damaged("its entries are compressed")
        if sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise _damaged("its entries are larger than the file")
        if archive.getinfo("meta.npy").file_size > _META_LIMIT_BYTES:
            raise _damaged("its description is too large")


def _format_check(meta: dict[str, Any]) -> None:
    if meta["format"] != CHECKPOINT_FORMAT:
        raise _damaged("it was saved by another version")
    if len(meta["branches"]) > MAX_BRANCHES_RANGE[1]:
        raise _damaged("it has too many branches")


def _spec_read(name: str, dtype: str, shape: Sequence[int]) -> VariableSpec:
    sizes = tuple(int(size) for size in shape)
    if min(sizes, default=0) < 0 or math.prod(sizes) > 2**53:
        raise ValueError(f"{name!r:.100} has the shape {sizes}")
    return VariableSpec(str(name), str(dtype), sizes)


def _groups(state: ModelState) -> tuple[list[tuple[int, VariableSpec]], ...]:
    num_model, num_optimizer = state.group_sizes
    rows = list(enumerate(state.specs))
    end = num_model + num_optimizer
    return rows[:num_model], rows[num_model:end], rows[end:]


def _fitting(
    part: str, saved: list[tuple[int, VariableSpec]], here: list[tuple[int, VariableSpec]]
) -> list[tuple[int, int]]:
    """Pair the positions of equal variables; raise `state_misfit` with the first that differs."""
    for (_, old), (_, new) in zip(saved, here, strict=False):
        if _named(old) != _named(new):
            raise TrainerError(
                MISFIT,
                f"the {part} of this job has {_text(new)} where the saved state has {_text(old)}",
            )
    if len(saved) > len(here):
        raise TrainerError(
            MISFIT, f"the saved state has {_text(saved[len(here)][1])}, this job's {part} has not"
        )
    if len(here) > len(saved):
        raise TrainerError(
            MISFIT, f"this job's {part} has {_text(here[len(saved)][1])}, the saved state has not"
        )
    return [(old, new) for (old, _), (new, _) in zip(saved, here, strict=True)]


def _same(
    saved: list[tuple[int, VariableSpec]], here: list[tuple[int, VariableSpec]]
) -> list[tuple[int, int]] | None:
    """Pair the positions of equal variables; None if any differs."""
    if [_named(spec) for _, spec in saved] != [_named(spec) for _, spec in here]:
        return None
    return [(old, new) for (old, _), (new, _) in zip(saved, here, strict=True)]


def _without_rate(rows: list[tuple[int, VariableSpec]]) -> list[tuple[int, VariableSpec]]:
    return [row for row in rows if not _is_rate(row[1])]


def _is_rate(spec: VariableSpec) -> bool:
    return spec.name.rpartition("/")[2] == _RATE


def _named(spec: VariableSpec) -> tuple[str, str, tuple[int, ...]]:
    """Return the path without the position in the state, dtype and shape.

    Keras counts the random generators of a process, so their numbers mean nothing.
    """
    return _GENERATOR.sub(r"\1", spec.name.partition(":")[2]), spec.dtype, spec.shape


def _text(spec: VariableSpec) -> str:
    path, dtype, shape = _named(spec)
    return f"{path!r:.200} ({dtype} {list(shape)})"


def _damaged(message: str) -> TrainerError:
    return TrainerError(DAMAGED, f"the saved state is no complete checkpoint: {message}")
