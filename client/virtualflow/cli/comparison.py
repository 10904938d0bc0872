"""Several jobs side by side: settings that differ, and what came out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from virtualflow.answers import Job

#: Fields about how a job goes; all others are what it was submitted with.
_STATE = frozenset(
    {
        "id", "name", "owner", "status", "status_code", "status_reason", "policy_reason",
        "expected_start_earliest_at", "expected_start_latest_at",
        "expected_start_changes", "expected_start_changed_at", "num_accelerators", "batch_size",
        "step", "epoch", "loss", "warning", "examples_per_s", "submitted_at", "started_at",
        "ended_at", "version", "revision", "generation", "restarts", "pause_requested", "facts",
        "metrics", "nonfinite", "digest", "error_field", "error_traceback",
        "attained_accelerator_s", "throughput_by_count", "noise_scale", "forecast", "kinds_used",
        "reproducibility", "files", "code_name", "entry_file",
    }
)  # fmt: skip
_OUTCOMES = ("status", "step", "epoch", "loss", "attained_accelerator_s")

Row = tuple[str, list[Any]]


def settings_of(job: Job) -> dict[str, Any]:
    """Return what a job was submitted with, by dotted name."""
    return dict(_flat("", {name: job[name] for name in job if name not in _STATE}))  # type: ignore[literal-required]


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


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
