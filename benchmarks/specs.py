"""Jobs of this machine as the control plane would describe them."""

from __future__ import annotations

from typing import Any

from controlplane.core.protocol.wire import ReductionMode, StopCondition, StopKind, TrainingSpec


def steps_stop(num_steps: int = 10_000_000) -> StopCondition:
    """Stop after so many steps; by default more than any benchmark trains."""
    return StopCondition(kind=StopKind.STEPS, limit=num_steps)


def epochs_stop(num_epochs: int) -> StopCondition:
    """Stop after so many epochs."""
    return StopCondition(kind=StopKind.EPOCHS, limit=num_epochs)


def spec_make(
    settings: dict[str, Any], global_batch_size: int, num_virtual_nodes: int = 4, **others: Any
) -> TrainingSpec:
    """Describe a job whose code is one file; exact and endless unless `others` say otherwise."""
    values: dict[str, Any] = {
        "job_id": 0,
        "name": "benchmark",
        "entry_file": "job.py",
        "code_sha256": "",
        "seed": 0,
        "reduction": ReductionMode.EXACT,
        "stop": steps_stop(),
        "settings": settings,
        "global_batch_size": global_batch_size,
        "num_virtual_nodes": num_virtual_nodes,
    }
    return TrainingSpec(**(values | others))
