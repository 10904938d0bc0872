"""Reads measured applications from folders in the format of Pollux' artifact.

One folder an application: `placements.csv`, `scalability.csv`, `validation-BATCH.csv`. What the
folders do not say (epochs, a lower limit of memory) stands in `app.json` beside them, if there is
one, or is known here for the applications that Pollux published.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from controlplane.simulator.batches import BatchBounds
from controlplane.simulator.profiled import ProfiledApplication, Validation
from controlplane.simulator.step_times import Measurement, Placement, StepTimes

#: Epochs of the published applications; their folders hold as many rows.
_LARGEST_LOCAL: Mapping[str, int] = MappingProxyType({"yolov3": 8})

Row = dict[str, str]


def profiles_read(
    directory: Path, speeds: Mapping[str, Mapping[str, float]] | None = None
) -> dict[str, ProfiledApplication]:
    """Read every application below `directory`, by name.

    Args:
        speeds: application -> kind -> speed relative to the accelerators that were measured.

    Raises:
        ValueError: there is none, or a file cannot be read as what it should be.
    """
    folders = sorted(path.parent for path in directory.glob("*/placements.csv"))
    if not folders:
        raise ValueError(
            f"profiles: no folder with a placements.csv in {directory}; name the folder that holds "
            "one folder for each application"
        )
    return {
        folder.name: application_read(folder, (speeds or {}).get(folder.name, {}))
        for folder in folders
    }


def application_read(folder: Path, speeds: Mapping[str, float]) -> ProfiledApplication:
    """Read one application.

    Raises:
        ValueError: a file or column is missing or does not hold numbers.
    """
    about = _about(folder)
    validations = {
        int(path.stem.split("-")[1]): _validation_read(path)
        for path in sorted(folder.glob("validation-*.csv"))
    }
    if not validations:
        raise ValueError(f"profiles: {folder} has no validation-BATCH.csv")
    placed: dict[Placement, list[tuple[int, float, float]]] = {}
    for row in _rows(folder / "placements.csv"):
        placement = tuple(int(digit) for digit in row["placement"])
        placed.setdefault(placement, []).append(
            (int(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"]))
        )
    spread = [
        Measurement(
            int(row["num_nodes"]),
            int(row["num_replicas"]),
            int(row["local_bsz"]),
            float(row["step_time"]),
            float(row["sync_time"]),
        )
        for row in _rows(folder / "scalability.csv")
    ]
    local = [row[0] for rows in placed.values() for row in rows]
    default = _LARGEST_LOCAL.get(folder.name, max(local))
    bounds = BatchBounds(
        initial=min(validations),
        largest=max(validations),
        smallest_local=min(local),
        largest_local=int(about.get("largest_local", default)),
    )
    epochs = min(run.progress.size for run in validations.values())
    return ProfiledApplication(
        name=folder.name,
        bounds=bounds,
        num_epochs=int(about.get("epochs", epochs)),
        validations=validations,
        times=StepTimes(placed, spread),
        speeds={**about.get("speeds", {}), **speeds},
    )


def _about(folder: Path) -> dict[str, Any]:
    path = folder / "app.json"
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    if not isinstance(found, dict):
        raise ValueError(f"profiles: {path} must hold an object")
    return found


def _validation_read(path: Path) -> Validation:
    rows = list(_rows(path))

    def column(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([float(row[name]) for row in rows])

    return Validation(
        column("progress"),
        column("iteration"),
        column("grad_sqr"),
        column("grad_var"),
        column("metric"),
    )


def _rows(path: Path) -> Iterator[Row]:
    """Give the rows of a CSV file, a missing or bad one as a ValueError that names it."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise ValueError(f"profiles: cannot read {path}: {error.strerror}") from error
    for number, row in enumerate(rows, start=2):
        if None in row.values():
            raise ValueError(f"profiles: line {number} of {path} has too few columns")
        yield row
