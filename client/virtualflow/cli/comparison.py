"""Several jobs side by side: settings that differ, and what came out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from virtualflow.answers import Job

_SUBMITTED = (
    "template",
    "code_sha256",
    "task",
    "source_job",
    "global_batch_size",
    "batch_size_min",
    "batch_size_max",
    "num_virtual_nodes",
    "min_accelerators",
    "max_accelerators",
    "accepted_kinds",
    "allow_mixed_kinds",
    "priority",
    "seed",
    "reduction",
    "shuffle",
    "on_nonfinite",
)
_OUTCOMES = ("status", "step", "epoch", "loss", "attained_accelerator_s")

Row = tuple[str, list[Any]]


def settings_of(job: Job) -> dict[str, Any]:
    """Return what a job was submitted with, by dotted name."""
    values: dict[str, Any] = {name: job.get(name) for name in _SUBMITTED}
    return values | dict(_flat("stop", job["stop"])) | dict(_flat("settings", job["settings"]))


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(f"{prefix}.{name}", value)
        else:
            yield f"{prefix}.{name}", value


def setting_differences(jobs: Sequence[Job]) -> list[Row]:
    """Return the settings that are not the same in all jobs, one value per job."""
    rows = _rows([settings_of(job) for job in jobs])
    return [(name, values) for name, values in rows if any(v != values[0] for v in values)]


def outcomes(jobs: Sequence[Job]) -> list[Row]:
    """Return status, progress and all final metrics, one value per job."""
    return _rows(
        [
            {name: job.get(name) for name in _OUTCOMES}
            | {f"metrics.{name}": value for name, value in job["metrics"].items()}
            for job in jobs
        ]
    )


def _rows(columns: Sequence[Mapping[str, Any]]) -> list[Row]:
    names = dict.fromkeys(name for column in columns for name in column)
    return [(name, [column.get(name) for column in columns]) for name in names]
