"""Applications whose speed depends only on their accelerators, from beginning to end."""

# ruff: noqa: ARG002  (the arguments are those of every application)

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.core.estimates.goodput import AdaptiveBatchPerformance, FixedBatchPerformance
from controlplane.core.values.performance import LossForecast
from controlplane.simulator.applications.batches import Batch, Pace
from controlplane.simulator.applications.step_times import Floats, Placement

RecordedPerformance = FixedBatchPerformance | AdaptiveBatchPerformance


@dataclass
class SteadyApplication:
    """Work in one epoch, done at `rate`; subclasses define speed and bounds.

    Attributes:
        work: total progress.

    Raises:
        ValueError: the work is not a positive number.
    """

    name: str
    work: float

    def __post_init__(self) -> None:
        if not 0.0 < self.work < math.inf:
            raise ValueError(f"work of {self.name} must be a positive number, got {self.work:g}")

    def rate(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        """Return progress per second."""
        raise NotImplementedError

    @property
    def progress_ends(self) -> Sequence[float]:
        """Progress at the end of epoch 0 (nothing: 0), 1, 2 ...; the last one is the total work."""
        return (0.0, self.work)

    @property
    def examples_per_progress(self) -> float:
        """The initial batch: useful examples are progress times this."""
        return 1.0

    def most_accelerators(self, batch_size: int | None) -> int:
        """Return the largest usable number of accelerators with a batch (None: its largest one)."""
        raise NotImplementedError

    def batch(
        self, kind: str, placement: Placement, batch_size: int | None, epoch: int
    ) -> Batch | None:
        """Return the batch to run: `batch_size`, or the truly best (None); None: impossible."""
        return Batch(sum(placement), 1, 1)

    def pace(self, kind: str, placement: Placement, batch: Batch, epoch: int) -> Pace:
        """Return the true speed on a placement with a batch in an epoch."""
        return Pace(self.rate(kind, sum(placement), len(placement)), batch)

    def packed_paces(
        self, kind: str, most: int, per_node: int, batch_size: int | None, epoch: int
    ) -> Floats:
        """Return progress per second on 0..`most` accelerators, packed. Shape (most + 1,)."""
        counts = range(1, most + 1)
        return np.array([0.0, *(self.rate(kind, count, -(-count // per_node)) for count in counts)])

    def examples_per_s(
        self, kind: str, placement: Placement, batch_size: int, *, slices_alone: bool = False
    ) -> float:
        """Return the examples per second with a fixed batch.

        Args:
            slices_alone: whether a single accelerator has at least two slices.
        """
        return self.rate(kind, sum(placement), len(placement)) * self.examples_per_progress

    def packed_examples_per_s(
        self, kind: str, most: int, per_node: int, batch_size: int, *, slices_alone: bool = False
    ) -> Floats:
        """Return `examples_per_s` on 0..`most` accelerators, packed. Shape (most + 1,)."""
        return self.packed_paces(kind, most, per_node, None, 0) * self.examples_per_progress

    def examples_left(self, batch_size: int, epoch: int, progress: float) -> float:
        """Return the remaining examples with a fixed batch."""
        return (self.work - progress) * self.examples_per_progress

    def quality(self, epoch: int, progress: float) -> float:
        """Return the present share of the final quality, 0 to 1."""
        return progress / self.work

    def forecast(self, epoch: int, progress: float) -> LossForecast | None:
        """Return the loss forecast from its reports so far; None: no forecast."""
        return None


@dataclass
class RecordedApplication(SteadyApplication):
    """A job of a live cluster: work in useful examples, at the speed of models fitted to its steps.

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
