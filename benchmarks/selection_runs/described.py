"""The jobs of the selection benchmark as the control plane would describe them."""

from __future__ import annotations

from typing import Any

from controlplane.core.protocol.selection import SelectionSpec
from controlplane.core.protocol.wire import ReductionMode, StopCondition, StopKind, TrainingSpec

BATCH_SIZE = 64
NUM_VIRTUAL_NODES = 4


def epochs_stop(num_epochs: int) -> StopCondition:
    """Stop after so many epochs."""
    return StopCondition(kind=StopKind.EPOCHS, limit=num_epochs)


def job_spec(
    settings: dict[str, Any],
    stop: StopCondition,
    selection: SelectionSpec | None = None,
    seed: int = 1,
    entry_file: str = "job.py",
) -> TrainingSpec:
    """Describe a job with these settings."""
    return TrainingSpec(
        job_id=0,
        name="selection",
        entry_file=entry_file,
        code_sha256="0" * 64,
        settings=settings,
        global_batch_size=BATCH_SIZE,
        num_virtual_nodes=NUM_VIRTUAL_NODES,
        seed=seed,
        reduction=ReductionMode.EXACT,
        stop=stop,
        selection=selection,
    )
