"""The jobs of the throughput benchmark as the control plane would describe them."""

from __future__ import annotations

from benchmarks.specs import spec_make
from benchmarks.throughput_arms.job import NETWORKS
from controlplane.core.protocol.wire import ReductionMode, TrainingSpec


def job_spec(network: str, num_virtual_nodes: int, reduction: ReductionMode) -> TrainingSpec:
    """Describe an endless job."""
    batch_size = NETWORKS[network][2]
    return spec_make({"network": network}, batch_size, num_virtual_nodes, reduction=reduction)
