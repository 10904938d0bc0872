"""Tiny workloads whose course can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from controlplane.simulator import Workload, WorkloadJob
from controlplane.simulator.published.scaled import ScaledApplication

TRACES = Path(__file__).parents[2].parent / "shared/traces"


def job(
    name: str, at: float = 0.0, *, most: int = 4, least: int = 1, weight: float = 1.0
) -> WorkloadJob:
    """Make a job that computes the application of its name."""
    return WorkloadJob(
        name=name,
        submitted_at=at,
        application=name,
        requested=most,
        batch_size=most,
        is_fixed=True,
        min_accelerators=least,
        max_accelerators=most,
        weight=weight,
    )


def workload(*jobs: WorkloadJob, work: float = 400.0) -> Workload:
    """Let every job do `work` examples, one a second on each accelerator."""
    return Workload(
        jobs,
        {
            one.name: ScaledApplication(
                one.name, work, np.arange((one.max_accelerators or 1) + 1, dtype=float)
            )
            for one in jobs
        },
    )
