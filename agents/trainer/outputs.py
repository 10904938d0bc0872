"""What a finished job leaves in `outputs/`: the model, its history and its metrics."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import keras

from agents.trainer.progress import EpochRow, Progress

MODEL_FILE = "model.keras"
HISTORY_FILE = "history.csv"
METRICS_FILE = "metrics.json"
CHECKPOINT_FILE = "checkpoint.npz"


def outputs_write(
    folder: Path, model: keras.Model, progress: Progress, digest: str
) -> tuple[list[str], dict[str, float]]:
    """Write all three files, each under its name only when it is complete.

    Returns:
        The names of the files and the final metrics.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metrics = progress.history[-1].logs if progress.history else {}
    partial = folder / f"partial-{MODEL_FILE}"  # Keras wants the ending
    model.save(partial)
    partial.replace(folder / MODEL_FILE)
    _write_text(folder / HISTORY_FILE, history_csv(progress.history))
    summary: dict[str, Any] = {
        "metrics": metrics,
        "digest": digest,
        "steps": progress.step,
        "epochs": progress.epoch,
        "seconds": progress.training_s,
        "ended_by": progress.ended_by,
    }
    _write_text(folder / METRICS_FILE, json.dumps(summary, indent=2) + "\n")
    return [MODEL_FILE, HISTORY_FILE, METRICS_FILE], metrics


def history_csv(history: tuple[EpochRow, ...]) -> str:
    """Render one row per epoch, like Keras's CSVLogger, with the step beside the epoch."""
    names = sorted({name for row in history for name in row.logs})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["epoch", "step", *names])
    for row in history:
        values = [repr(row.logs[name]) if name in row.logs else "" for name in names]
        writer.writerow([row.epoch, row.step, *values])
    return text.getvalue()


def _write_text(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)
