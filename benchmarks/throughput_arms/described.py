"""The jobs of the throughput benchmark as the control plane would describe them."""

from __future__ import annotations

from benchmarks.throughput_arms.job import NETWORKS
from controlplane.core.protocol.wire import ReductionMode, StopCondition, StopKind, TrainingSpec


def job_spec(network: str, num_virtual_nodes: int, reduction: ReductionMode) -> TrainingSpec:
    """Describe an endless job."""
    return TrainingSpec(
        job_id=0,
        name=network,
        entry_file="job.py",
        code_sha256="",
        settings={"network": network},
        global_batch_size=NETWORKS[network][2],
        num_virtual_nodes=num_virtual_nodes,
        seed=0,
        reduction=reduction,
        stop=StopCondition(kind=StopKind.STEPS, limit=10**9),
    )
