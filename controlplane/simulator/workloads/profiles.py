"""Reads measured applications from folders in the format of Pollux' artifact.

One folder per application: `placements.csv`, `scalability.csv`, `validation-BATCH.csv`. Further
settings (epochs, a lower limit of memory) are read from `app.json` beside them, if there is one, or
are defined here for the applications that Pollux published.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from controlplane.simulator.applications.batches import BatchBounds
from controlplane.simulator.applications.profiled import ProfiledApplication, ProfiledRun
from controlplane.simulator.applications.step_times import (
    Measurement,
    Placement,
    PlacementStepTimes,
)
from controlplane.simulator.workloads.reading import (
    csv_read,
    json_read,
    number_of,
    row_of,
    text_of,
    whole_of,
)

#: Largest local batch, where the measurements of Pollux exceed the one it used.
_LARGEST_LOCAL: Mapping[str, int] = MappingProxyType({"yolov3": 8})

_OPTION = "--profiles"


def profiles_read(
    directory: Path,
    speeds: Mapping[str, Mapping[str, float]] | None = None,
    by_kind: Mapping[str, Path] | None = None,
) -> dict[str, ProfiledApplication]:
    """Read every application below `directory`, by name.

    Args:
        speeds: application -> kind -> speed relative to the accelerators that were measured.
        by_kind: kind -> folder like `directory`, of which the steps measured on that kind are read.

    Raises:
        ValueError: there is none, a file has the wrong format, or a kind lacks an application.
    """
    if not directory.is_dir():
        raise ValueError(f"{_OPTION}: there is no folder {directory}; name one that exists")
    folders = sorted(path.parent for path in directory.glob("*/placements.csv"))
    if not folders:
        raise ValueError(
            f"{_OPTION}: no folder with a placements.csv in {directory}; name the folder that "
            "holds one folder for each application"
        )
    return {
        folder.name: application_read(
            folder,
            (speeds or {}).get(folder.name, {}),
            {kind: above / folder.name for kind, above in (by_kind or {}).items()},
        )
        for folder in folders
    }


def application_read(
    folder: Path, speeds: Mapping[str, float], by_kind: Mapping[str, Path]
) -> ProfiledApplication:
    """Read one application; its slices are those that were measured on every kind.

    Raises:
        ValueError: a file or column is missing or does not hold numbers.
    """
    validations = {
        _batch_of(path): _validation_read(path) for path in sorted(folder.glob("validation-*.csv"))
    }
    if not validations:
        raise ValueError(f"{_OPTION}: {folder} has no validation-BATCH.csv")
    times, (least, most) = _times_read(folder)
    times_by_kind = {}
    for kind, own in by_kind.items():
        if not own.is_dir():
            raise ValueError(
                f"--cluster: there is no folder {own}; measure {folder.name} on {kind}, or give "
                "'speeds' of the kind instead of 'profiles'"
            )
        times_by_kind[kind], (low, high) = _times_read(own)
        least, most = max(least, low), min(most, high)
    if least > most:
        raise ValueError(
            f"{_OPTION}: no 'local_bsz' of {folder} was measured on all kinds; measure one on each"
        )
    about = json_read(folder / "app.json", _OPTION) if (folder / "app.json").exists() else {}
    num_rows = min(run.progress.size for run in validations.values())
    with row_of(_OPTION, str(folder / "app.json")):
        num_epochs = whole_of({"epochs": num_rows, **about}, "epochs")
        if not 1 <= num_epochs <= num_rows:
            raise ValueError(f"'epochs' must be 1 to {num_rows}, the rows of validation-BATCH.csv")
        limits = {"largest_local": _LARGEST_LOCAL.get(folder.name, most), **about}
        all_speeds = speeds_of(about.get("speeds", {})) | dict(speeds)
        return ProfiledApplication(
            name=folder.name,
            bounds=BatchBounds(
                initial=min(validations),
                largest=max(validations),
                smallest_local=least,
                largest_local=min(whole_of(limits, "largest_local"), most),
            ),
            num_epochs=num_epochs,
            validations=validations,
            times=times,
            speeds=all_speeds,
            times_by_kind=times_by_kind,
        )


def speeds_of(factors: Any) -> dict[str, float]:
    """Check relative speeds by name.

    Raises:
        ValueError: they are no object, or one is not a positive number.
    """
    if not isinstance(factors, Mapping):
        raise ValueError("'speeds' must be numbers by application, as {imagenet: 2.5}")
    found = {str(name): number_of(factors, name) for name in factors}
    if min(found.values(), default=1.0) <= 0.0:
        raise ValueError("'speeds' must be positive")
    return found


def _times_read(folder: Path) -> tuple[PlacementStepTimes, tuple[int, int]]:
    """Read the measured steps of a folder, and the least and most examples of a slice in them."""
    placed = _placed_read(folder / "placements.csv")
    local = [row[0] for rows in placed.values() for row in rows]
    return PlacementStepTimes(placed, _spread_read(folder / "scalability.csv")), (
        min(local),
        max(local),
    )


def _batch_of(path: Path) -> int:
    batch = path.stem.removeprefix("validation-")
    if not batch.isdigit() or int(batch) < 1:
        raise ValueError(f"{_OPTION}: {path} must be named after its batch, as validation-64.csv")
    return int(batch)


def _validation_read(path: Path) -> ProfiledRun:
    names = ("progress", "iteration", "grad_sqr", "grad_var", "metric")
    rows: list[list[float]] = []
    for line, row in csv_read(path, _OPTION):
        with row_of(_OPTION, f"line {line} of {path}"):
            values = [number_of(row, name) for name in names]
            if values[0] <= (rows[-1][0] if rows else 0.0):
                raise ValueError("'progress' must grow from row to row, from above 0 on")
            if min(values[2], values[3]) < 0.0 or values[2] + values[3] == 0.0:
                raise ValueError("'grad_sqr' and 'grad_var' must not be negative, nor both 0")
            rows.append(values)
    return ProfiledRun(*np.array(rows, dtype=float).reshape(-1, len(names)).T)


def _placed_read(path: Path) -> dict[Placement, list[tuple[int, float, float]]]:
    placed: dict[Placement, list[tuple[int, float, float]]] = {}
    for line, row in csv_read(path, _OPTION):
        with row_of(_OPTION, f"line {line} of {path}"):
            placement = tuple(int(digit) for digit in text_of(row, "placement"))
            if min(placement) < 1:
                raise ValueError("'placement' must be digits from 1 to 9, one a node")
            placed.setdefault(placement, []).append(_step_read(row))
    if not placed:
        raise ValueError(f"{_OPTION}: {path} has no rows")
    return placed


def _spread_read(path: Path) -> list[Measurement]:
    found = []
    for line, row in csv_read(path, _OPTION):
        with row_of(_OPTION, f"line {line} of {path}"):
            nodes, replicas = whole_of(row, "num_nodes"), whole_of(row, "num_replicas")
            local, step_s, sync_s = _step_read(row)
            found.append(Measurement(nodes, replicas, local, step_s, sync_s))
    return found


def _step_read(row: Mapping[str, str]) -> tuple[int, float, float]:
    """Read examples on one accelerator, and seconds of a step and of the exchange in it."""
    local = whole_of(row, "local_bsz")
    step_s, sync_s = number_of(row, "step_time"), number_of(row, "sync_time")
    if local < 1 or not 0.0 <= sync_s <= step_s or step_s == 0.0:
        raise ValueError("give a positive 'local_bsz', and 0 ≤ 'sync_time' ≤ 'step_time'")
    return local, step_s, sync_s
