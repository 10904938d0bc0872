"""The jobs of the selection benchmark as the control plane would describe them."""

from __future__ import annotations

from typing import Any

from benchmarks.specs import spec_make
from controlplane.core.protocol.selection import SelectionSpec
from controlplane.core.protocol.wire import StopCondition, TrainingSpec

BATCH_SIZE = 64


def job_spec(
    settings: dict[str, Any],
    stop: StopCondition,
    selection: SelectionSpec | None = None,
    seed: int = 1,
    entry_file: str = "job.py",
) -> TrainingSpec:
    """Describe a job with these settings."""
    return spec_make(
        settings, BATCH_SIZE, stop=stop, selection=selection, seed=seed, entry_file=entry_file
    )
