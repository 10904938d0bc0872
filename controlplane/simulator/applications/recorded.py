"""A recorded job of a live cluster, simulated at its measured speeds."""

# ruff: noqa: ARG002  (the arguments are those of every application)

from __future__ import annotations

from dataclasses import dataclass

from controlplane.core.estimates.goodput import AdaptiveBatchPerformance, FixedBatchPerformance
from controlplane.simulator.applications.batches import Batch
from controlplane.simulator.applications.steady import SteadyApplication
from controlplane.simulator.applications.step_times import Floats, Placement

RecordedPerformance = FixedBatchPerformance | AdaptiveBatchPerformance


@dataclass
class RecordedApplication(SteadyApplication):
    """Work in useful examples, at the speed of models fitted to a job's own steps.

    The loss forecast of the time was not recorded.
    """

    performance: RecordedPerformance

    def rate(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        return self.performance.goodput(kind, num_accelerators, num_nodes)

    def most_accelerators(self, batch_size: int | None) -> int:
        return self.performance.most_accelerators

    def batch(
        self, kind: str, placement: Placement, batch_size: int | None, epoch: int
    ) -> Batch | None:
        """Split by the job's own rule, independently of the requested batch."""
        count = sum(placement)
        size = self.performance.batch_size(kind, count, len(placement))
        return Batch(count, max(round(size / count), 1), 1) if size >= 1 else None

    def packed_paces(
        self, kind: str, most: int, per_node: int, batch_size: int | None, epoch: int
    ) -> Floats:
        return self.performance.goodputs(kind, most, per_node)
