"""Parts of predictions in the run directories of a local job, where they are durable."""

from __future__ import annotations

from pathlib import Path

from controlplane.core.protocol.prediction_parts import (
    PredictionPart,
    examples_safe,
    part_of,
    parts_join,
)
from controlplane.core.protocol.wire import Task, TrainingSpec


def resume_at(spec: TrainingSpec, folder: Path) -> int | None:
    """Return the number of leading examples already predicted; None for a training job."""
    return examples_safe(_parts(folder)) if spec.task is Task.PREDICT else None


def predictions_write(folder: Path, target: Path, num_examples: int) -> None:
    """Write the results of a finished job, joined from the parts of all its leaders.

    Raises:
        ValueError: predictions are missing.
    """
    parts = _parts(folder)
    with target.open("wb") as stream:
        parts_join(parts, num_examples, lambda part: parts[part].open("rb"), stream)


def _parts(folder: Path) -> dict[PredictionPart, Path]:
    paths = sorted(folder.glob("*/outputs/predictions-*.npz"))
    return {part: path for path in paths if (part := part_of(path.name))}
