"""A job of our own past, simulated: it works at the speeds that were measured of it."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.core.goodput import AdaptiveBatchPerformance, FixedBatchPerformance
from controlplane.core.performance import LossForecast
from controlplane.simulator.applications import Pace
from controlplane.simulator.batches import Batch
from controlplane.simulator.step_times import Floats, Placement

RecordedPerformance = FixedBatchPerformance | AdaptiveBatchPerformance


class RecordedApplication:
    """Work in useful examples, done as the models say that were fitted to a job's own steps.

    An `Application` whose only epoch is all its work.
    """

    def __init__(self, name: str, work: float, performance: RecordedPerformance) -> None:
        """Take over what is known.

        Raises:
            ValueError: there is no work.
        """
        if not work > 0.0:
            raise ValueError(f"work of {name} must be positive, got {work}")
        self.name, self.performance = name, performance
        self._ends = (0.0, work)

    @property
    def progress_ends(self) -> Sequence[float]:
        return self._ends

    @property
    def examples_per_progress(self) -> float:
        return 1.0

    def most_accelerators(self, batch_size: int | None) -> int:  # noqa: ARG002
        return self.performance.most_accelerators

    def batch(
        self,
        kind: str,
        placement: Placement,
        batch_size: int | None,  # noqa: ARG002 - a recorded job has its own rule
        epoch: int,  # noqa: ARG002
    ) -> Batch | None:
        count = sum(placement)
        size = self.performance.batch_size(kind, count, len(placement))
        if size < 1:
            return None
        return Batch(count, max(round(size / count), 1), 1)

    def pace(self, kind: str, placement: Placement, batch: Batch, epoch: int) -> Pace:  # noqa: ARG002
        rate = self.performance.goodput(kind, sum(placement), len(placement))
        return Pace(rate, batch)

    def packed_paces(
        self,
        kind: str,
        most: int,
        per_node: int,
        batch_size: int | None,  # noqa: ARG002
        epoch: int,  # noqa: ARG002
    ) -> Floats:
        return self.performance.goodputs(kind, most, per_node)

    def examples_per_s(
        self,
        kind: str,
        placement: Placement,
        batch_size: int,  # noqa: ARG002
        *,
        slices_alone: bool = False,  # noqa: ARG002
    ) -> float:
        return self.performance.goodput(kind, sum(placement), len(placement))

    def packed_examples_per_s(
        self,
        kind: str,
        most: int,
        per_node: int,
        batch_size: int,  # noqa: ARG002
        *,
        slices_alone: bool = False,  # noqa: ARG002
    ) -> Floats:
        return self.performance.goodputs(kind, most, per_node)

    def examples_left(self, batch_size: int, epoch: int, progress: float) -> float:  # noqa: ARG002
        return self._ends[-1] - progress

    def quality(self, epoch: int, progress: float) -> float:  # noqa: ARG002
        return progress / self._ends[-1]

    def forecast(self, epoch: int, progress: float) -> LossForecast | None:  # noqa: ARG002
        return None  # where its losses were going at that moment was not kept
