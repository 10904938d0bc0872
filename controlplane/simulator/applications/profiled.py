"""A fully measured application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from controlplane.core.estimates.goodput import AdaptiveBatchPerformance, FixedBatchPerformance
from controlplane.core.estimates.throughput import ThroughputModel
from controlplane.core.values.performance import LossForecast, Performance
from controlplane.simulator.applications.batches import (
    Batch,
    BatchBounds,
    Pace,
    candidate_batches,
    fixed_batch,
    fixed_batches,
)
from controlplane.simulator.applications.step_times import (
    Floats,
    Placement,
    PlacementStepTimes,
    packed,
)

#: Least squared norm of a gradient as a share of its variance: measured ones go down to 0.
LEAST_SIGNAL = 1e-9

#: Methods of an application that compute each answer once.
_REMEMBERED = (
    *("batch", "pace", "packed_paces", "packed_examples_per_s"),
    *("_iterations_of", "_packed_table", "_tried"),
)


@dataclass(frozen=True)
class ProfiledRun:
    """One training run at one batch size, epoch by epoch. All arrays have one row an epoch.

    Attributes:
        progress, iterations: values at the end of each epoch.
        sqr, var: squared norm and variance of the gradient in each epoch.
        metric: value reached at the end of each epoch.
    """

    progress: Floats
    iterations: Floats
    sqr: Floats
    var: Floats
    metric: Floats


@dataclass
class ProfiledApplication:
    """A fully measured application (see `profiles`), with the methods of `SteadyApplication`.

    Attributes:
        times: steps on the accelerators that the profile was measured on.
        speeds: kind of accelerator -> speed of computing relative to these.
        times_by_kind: steps measured on a kind itself, for which `speeds` does not count.
    """

    name: str
    bounds: BatchBounds
    num_epochs: int
    validations: Mapping[int, ProfiledRun]
    times: PlacementStepTimes
    speeds: Mapping[str, float] = field(default_factory=dict)
    times_by_kind: Mapping[str, PlacementStepTimes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sizes = np.array(sorted(self.validations), dtype=float)
        runs = [self.validations[int(size)] for size in self._sizes]
        rows = self.num_epochs
        self._sqr = np.stack([run.sqr[:rows] for run in runs])  # (batch sizes, epochs)
        self._var = np.stack([run.var[:rows] for run in runs])
        self._iterations = np.stack([run.iterations[:rows] for run in runs])
        least = np.min(np.stack([run.progress[:rows] for run in runs]), axis=0)
        self._ends = (0.0, *(float(end) for end in least))
        self._metric = runs[0].metric[:rows]
        for name in _REMEMBERED:
            setattr(self, name, cache(getattr(self, name)))

    @property
    def progress_ends(self) -> Sequence[float]:
        return self._ends

    @property
    def examples_per_progress(self) -> float:
        return float(self.bounds.initial)

    def most_accelerators(self, batch_size: int | None) -> int:
        return self.bounds.most_accelerators(batch_size or self.bounds.largest)

    @property
    def code(self) -> str:
        return self.name

    def first_batch(self, num_accelerators: int) -> int:
        return self.bounds.first(num_accelerators)

    def batch(
        self, kind: str, placement: Placement, batch_size: int | None, epoch: int
    ) -> Batch | None:
        count = sum(placement)
        if batch_size is not None:
            return fixed_batch(self.bounds, batch_size, count)
        sizes, local, slices, seconds = self._tried(kind, placement)
        rates = self._gain(sizes, epoch) / seconds
        best = int(np.argmax(rates)) if rates.size else 0
        is_possible = rates.size > 0 and rates[best] > 0.0
        return Batch(count, int(local[best]), int(slices[best])) if is_possible else None

    def pace(self, kind: str, placement: Placement, batch: Batch, epoch: int) -> Pace:
        step, sync = self._step_seconds(kind, placement, np.array([batch.local]))[:, 0]
        total = step + (batch.num_slices - 1) * (step - sync)
        sqr, var = self._statistics(batch.size, epoch)
        gain = (var + sqr) / (var / (batch.size / self.bounds.initial) + sqr)
        noise = self.bounds.initial * var / max(sqr, LEAST_SIGNAL * var)
        return Pace(float(gain / total), batch, float(step), float(sync), float(noise))

    def packed_paces(
        self, kind: str, most: int, per_node: int, batch_size: int | None, epoch: int
    ) -> Floats:
        sizes, seconds = self._packed_table(kind, most, per_node, batch_size)
        paces = np.where(sizes > 0, self._gain(np.maximum(sizes, 1), epoch) / seconds, 0.0)
        return np.concatenate([[0.0], paces.max(axis=1)])

    def examples_per_s(
        self, kind: str, placement: Placement, batch_size: int, *, slices_alone: bool = False
    ) -> float:
        batch = fixed_batch(self.bounds, batch_size, sum(placement), slices_alone=slices_alone)
        step, sync = self._step_seconds(kind, placement, np.array([batch.local]))[:, 0]
        return float(batch_size / (step + (batch.num_slices - 1) * (step - sync)))

    def packed_examples_per_s(
        self, kind: str, most: int, per_node: int, batch_size: int, *, slices_alone: bool = False
    ) -> Floats:
        rates = [
            self.examples_per_s(
                kind, packed(count, per_node), batch_size, slices_alone=slices_alone
            )
            for count in range(1, most + 1)
        ]
        return np.array([0.0, *rates])

    def examples_left(self, batch_size: int, epoch: int, progress: float) -> float:
        """Interpolate the number of iterations that the measured runs needed, epoch by epoch."""
        if epoch >= self.num_epochs:
            return 0.0
        ends = self._ends
        done = (progress - ends[epoch]) / (ends[epoch + 1] - ends[epoch])
        before = self.iterations(batch_size, epoch - 1) if epoch else 0.0
        now = before + done * (self.iterations(batch_size, epoch) - before)
        return max(self.iterations(batch_size, self.num_epochs - 1) - now, 0.0) * batch_size

    def iterations(self, batch_size: int, epoch: int) -> float:
        """Return the iterations at the end of `epoch`, interpolated between batch sizes."""
        return float(self._iterations_of(batch_size)[epoch])

    def _iterations_of(self, batch_size: int) -> Floats:
        return np.array([np.interp(batch_size, self._sizes, row) for row in self._iterations.T])

    def modelled(
        self,
        models: Mapping[str, ThroughputModel],
        speeds: Mapping[str, float],
        noise: float,
        batch_size: int | None,
    ) -> Performance:
        if batch_size is not None:
            return FixedBatchPerformance(models, self.bounds.asked, speeds=speeds, size=batch_size)
        return AdaptiveBatchPerformance(
            models,
            self.bounds.chosen,
            speeds=speeds,
            submitted=self.bounds.initial,
            low=self.bounds.initial,
            high=self.bounds.largest,
            noise_scale=noise,
        )

    def forecast(self, epoch: int, progress: float) -> LossForecast | None:  # noqa: ARG002
        return None  # the profiles hold metrics, no losses

    def quality(self, epoch: int, progress: float) -> float:
        """Return the progress of the smallest batch's metric from its first to its best value."""
        best = self._metric[-1]
        first = self._metric[0]
        if epoch == 0 or best == first:
            return min(progress / self._ends[-1], 1.0)
        now = self._metric[min(epoch, self.num_epochs) - 1]
        return float(np.clip((now - first) / (best - first), 0.0, 1.0))

    def _packed_table(
        self, kind: str, most: int, per_node: int, batch_size: int | None
    ) -> tuple[NDArray[np.int64], Floats]:
        """Return batch sizes and seconds of a step on 1..`most` accelerators, packed.

        Shapes (most, number of batches to choose from); sizes are 0 where there is none.
        """
        counts = np.arange(1, most + 1)
        if batch_size is None:
            tried = candidate_batches(self.bounds, counts)
        else:
            tried = fixed_batches(self.bounds, batch_size, counts)
        seconds = np.ones(tried.sizes.shape)
        for row, count in enumerate(counts):
            step, sync = self._step_seconds(kind, packed(int(count), per_node), tried.locals[row])
            seconds[row] = step + (tried.num_slices[row] - 1) * (step - sync)
        return tried.sizes, seconds

    def _tried(
        self, kind: str, placement: Placement
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Floats]:
        """Return sizes, examples of a slice, slices and seconds of the batches to choose from."""
        found = candidate_batches(self.bounds, np.array([sum(placement)]))
        chosen = found.sizes[0] > 0
        sizes, local, slices = (
            row[0][chosen] for row in (found.sizes, found.locals, found.num_slices)
        )
        if not sizes.size:
            return sizes, local, slices, np.empty(0)
        step, sync = self._step_seconds(kind, placement, local)
        return sizes, local, slices, step + (slices - 1) * (step - sync)

    def _step_seconds(self, kind: str, placement: Placement, local: NDArray[np.int64]) -> Floats:
        if kind in self.times_by_kind:
            return self.times_by_kind[kind].seconds(placement, local)
        step, sync = self.times.seconds(placement, local)
        speed = self.speeds.get(kind, 1.0)
        if speed == 1.0:
            return np.stack([step, sync])
        # Only the computing part scales with the speed, not the exchange.
        return np.stack([(step - sync) / speed + sync, sync])

    def _statistics(self, batch_size: float, epoch: int) -> tuple[float, float]:
        row = min(epoch, self.num_epochs - 1)
        return (
            float(np.interp(batch_size, self._sizes, self._sqr[:, row])),
            float(np.interp(batch_size, self._sizes, self._var[:, row])),
        )

    def _gain(self, sizes: NDArray[np.int64], epoch: int) -> Floats:
        row = min(epoch, self.num_epochs - 1)
        sqr = np.interp(sizes, self._sizes, self._sqr[:, row])
        var = np.interp(sizes, self._sizes, self._var[:, row])
        return np.asarray((var + sqr) / (var / (sizes / self.bounds.initial) + sqr), dtype=float)
