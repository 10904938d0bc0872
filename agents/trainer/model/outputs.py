"""Files that a trainer writes to `outputs/`: checkpoints, model, history and metrics."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

from agents.trainer.contract.atomic_write import atomic_write, text_write
from agents.trainer.model.history import EpochRow
from agents.trainer.model.progress import Progress
from agents.trainer.model.state import ModelState, checkpoint_write, state_digest
from controlplane.core.protocol.codec import encode

Tensor = Any

logger = logging.getLogger(__name__)

MODEL_FILE = "model.keras"
#: In its place, where Keras cannot save the model.
WEIGHTS_FILE = "model.weights.h5"
HISTORY_FILE = "history.csv"
METRICS_FILE = "metrics.json"
CHECKPOINT_FILE = "checkpoint.npz"


def state_save(
    folder: Path,
    state: ModelState,
    values: Sequence[Tensor],
    progress: Progress,
    name: str = CHECKPOINT_FILE,
) -> dict[str, Any]:
    """Write a whole state, parked branches included, to the file `name`.

    Returns:
        The data of a CHECKPOINTED report.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    digest = checkpoint_write(path, state, values, progress.to_json(), progress.parked)
    return {
        "step": progress.step,
        "epoch": progress.epoch,
        "file": name,
        "sha256": digest,
        "bytes": path.stat().st_size,
    }


def results_save(
    folder: Path, model: keras.Model, state: ModelState, progress: Progress
) -> dict[str, Any]:
    """Write the results of a finished job, each file under its name only when it is complete.

    Returns:
        The data of the leader's FINISHED report.
    """
    digest = state_digest(state.specs, state.capture())
    folder.mkdir(parents=True, exist_ok=True)
    metrics = progress.history[-1].logs if progress.history else {}
    name = _model_write(model, folder)
    files = [name, *results_write(folder, progress, digest, progress.ended_by)]
    return {
        "metrics": json_numbers(metrics),
        "not_finite": not_finite(metrics),
        "nonfinite": encode(progress.nonfinite),
        "digest": digest,
        "files": files,
    }


def _model_write(model: keras.Model, folder: Path) -> str:
    """Save the model, or its weights where Keras cannot save it; returns the file's name."""
    name = MODEL_FILE
    try:
        with atomic_write(folder / name) as partial:
            model_save(model, partial)
    except OSError:  # such as of a full disk
        raise
    except Exception as error:
        name = WEIGHTS_FILE
        reason = str(error).strip().partition("\n")[0]
        logger.warning("%s is saved, as the whole model cannot be: %s", name, reason)
        with atomic_write(folder / name) as partial:
            model.save_weights(partial)
    return name


def failure_save(folder: Path, state: ModelState, progress: Progress) -> dict[str, Any]:
    """Write the files of a job that stopped at a loss or metric that is not finite.

    The checkpoint leaves the failure out, so that the job can resume from it with other settings.
    """
    going_on = replace(progress, found=None, is_failed=False)
    saved = state_save(folder, state, state.capture_whole(), going_on)
    assert progress.found is not None, "a job that failed so knows why"
    files = results_write(folder, progress, saved["sha256"], progress.found.code)
    return {"files": [CHECKPOINT_FILE, *files], "bytes": saved["bytes"]}


def json_numbers(logs: Mapping[str, float]) -> dict[str, float | None]:
    """Replace nan and infinity, which JSON does not have, by None."""
    return {name: value if math.isfinite(value) else None for name, value in logs.items()}


def not_finite(logs: Mapping[str, float]) -> dict[str, str]:
    """Return the text ("nan", "inf" or "-inf") of each number that `json_numbers` replaces."""
    return {name: str(value) for name, value in logs.items() if not math.isfinite(value)}


def model_save(model: keras.Model, path: Path) -> None:
    """Save a model, also where the job's code turns warnings into errors: Keras gives some."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.simplefilter("ignore", DeprecationWarning)  # of Keras's own code
        model.save(path)


def results_write(folder: Path, progress: Progress, digest: str, ended_by: str | None) -> list[str]:
    """Write history and metrics; returns the names of the files."""
    text_write(folder / HISTORY_FILE, history_csv(progress.history))
    metrics = progress.history[-1].logs if progress.history else {}
    summary: dict[str, Any] = {
        "metrics": json_numbers(metrics),
        "not_finite": not_finite(metrics),
        "digest": digest,
        "steps": progress.step,
        "epochs": progress.epoch,
        "seconds": progress.training_s,
        "ended_by": ended_by,
    }
    text_write(folder / METRICS_FILE, json.dumps(summary, indent=2, allow_nan=False) + "\n")
    return [HISTORY_FILE, METRICS_FILE]


def history_csv(history: tuple[EpochRow, ...]) -> str:
    """Render one row per epoch, like Keras's CSVLogger, with an additional column `step`.

    Metrics named `epoch` or `step` have columns `epoch (metric)` and `step (metric)`.
    """
    names = sorted({name for row in history for name in row.logs})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    own = ["epoch", "step"]
    writer.writerow([*own, *(f"{name} (metric)" if name in own else name for name in names)])
    for row in history:
        values = [repr(row.logs[name]) if name in row.logs else "" for name in names]
        writer.writerow([row.epoch, row.step, *values])
    return text.getvalue()
