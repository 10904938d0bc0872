"""A job's batch on its accelerators, and its number of slices (rules of Pollux, OSDI 2021).

A step on K accelerators runs `slices` slices of `local` examples after each other on each of them:
K * local * slices examples in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controlplane.core.estimates.goodput import batch_candidates
from controlplane.core.estimates.throughput import Floats

#: Tolerance of ceilings for floating-point errors.
TOLERANCE = 1e-8

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Accumulation:
    """Every accelerator has its share of the batch, in as few equal slices as fit. A `Split`.

    Attributes:
        largest_slice, smallest_slice: bounds of the examples that one accelerator works on at once.
        most: upper bound of batches, after rounding.
        whole_up_to: a single accelerator splits larger batches at least in two, as trainers without
            virtual nodes need that to measure the noise of their gradients.
    """

    largest_slice: int
    smallest_slice: int = 1
    most: float = math.inf
    whole_up_to: float = math.inf

    def most_accelerators(self, batch_size: float) -> int:
        """Return the number of smallest slices."""
        return int(batch_size / self.smallest_slice + TOLERANCE)

    def slices(self, batch_size: Floats, count: Counts) -> tuple[Floats, Floats, Counts]:
        """Split as the protocol requires; batches are rounded to whole examples per accelerator."""
        local = batch_size / count
        several = np.ceil(np.ceil(local - TOLERANCE) / self.largest_slice - TOLERANCE)
        several = np.maximum(several, 1.0)
        is_alone = (count == 1) & (batch_size > self.whole_up_to + TOLERANCE)
        several = np.where(is_alone, np.maximum(several, 2.0), several)
        size = np.ceil(local / several - TOLERANCE)
        if math.isfinite(self.most):
            size = np.minimum(size, np.floor(self.most / (count * several) + TOLERANCE))
        batch = np.where(size >= self.smallest_slice, size * count * several, 0.0)
        return batch, size, several.astype(np.int64)


@dataclass(frozen=True, slots=True)
class WorkerBatch:
    """Every accelerator has a batch of its own, so a step's batch grows with them. A `Split`.

    Attributes:
        most: largest number of accelerators.
    """

    most: int

    def most_accelerators(self, batch_size: float) -> int:  # noqa: ARG002 - the same for all
        return self.most

    def slices(self, batch_size: Floats, count: Counts) -> tuple[Floats, Floats, Counts]:
        """Split as the protocol requires, where `batch_size` is that of one accelerator."""
        batch = np.where(count <= self.most, batch_size * count, 0.0)
        size = np.broadcast_to(batch_size, batch.shape)
        return batch, size, np.ones(batch.shape, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """Bounds of an application's batches: whole ones, and examples on one accelerator at once."""

    initial: int
    largest: int
    smallest_local: int
    largest_local: int

    def most_accelerators(self, batch_size: int) -> int:
        """Return the number of accelerators over which a batch can be spread."""
        return max(batch_size // self.smallest_local, 1)

    def first(self, num_accelerators: int) -> int:
        """Return the batch of a job of unknown speed: the smallest possible."""
        return max(self.initial, self.smallest_local * num_accelerators)

    @property
    def chosen(self) -> Accumulation:
        """The split of a batch that the platform chooses."""
        return Accumulation(self.largest_local, self.smallest_local, self.largest, self.initial)

    @property
    def asked(self) -> Accumulation:
        """The split of a batch that its owner requested, without a lower bound of slices."""
        return Accumulation(self.largest_local, 1, self.largest, self.initial)


@dataclass(frozen=True, slots=True)
class Batch:
    """The slices of a step on a given number of accelerators."""

    num_accelerators: int
    local: int
    num_slices: int

    @property
    def size(self) -> int:
        """Examples of a step."""
        return self.num_accelerators * self.local * self.num_slices


@dataclass(frozen=True, slots=True)
class Pace:
    """True speed of a job on its accelerators.

    Attributes:
        progress_per_s: progress per second.
        batch: composition of a step.
        step_s, sync_s: seconds of a step with one slice, and of the exchange in it; 0: not
            measured, so no model is fitted.
        noise: gradient noise scale in examples, as shown by its gradients.
    """

    progress_per_s: float
    batch: Batch
    step_s: float = 0.0
    sync_s: float = 0.0
    noise: float = 0.0


def fixed_batch(
    bounds: BatchBounds, batch_size: int, num_accelerators: int, *, slices_alone: bool = False
) -> Batch:
    """Split a given batch.

    Args:
        slices_alone: whether a single accelerator has at least two slices for any batch.
    """
    split = Accumulation(
        bounds.largest_local, 1, bounds.largest, 0 if slices_alone else bounds.initial
    )
    _, size, several = split.slices(np.array([float(batch_size)]), np.array([num_accelerators]))
    return Batch(num_accelerators, max(int(size[0]), 1), int(several[0]))


@dataclass(frozen=True, slots=True)
class Candidates:
    """Feasible batches. All arrays have the same shape; sizes are 0 for impossible ones."""

    sizes: Counts
    locals: Counts
    num_slices: Counts


def candidate_batches(bounds: BatchBounds, counts: Counts) -> Candidates:
    """List the batches from which the platform chooses on each number of accelerators in `counts`.

    Shape (len(counts), number of batch sizes).
    """
    sizes = batch_candidates(bounds.initial, bounds.largest, bounds.initial, 1)
    found = bounds.chosen.slices(sizes[None, :], counts[:, None])
    batch, local, slices = (row.astype(np.int64) for row in found)
    return Candidates(batch, np.maximum(local, 1), slices)


def fixed_batches(bounds: BatchBounds, batch_size: int, counts: Counts) -> Candidates:
    """Return the only way to run a fixed batch on each of the counts. Shape (len(counts), 1)."""
    batches = [fixed_batch(bounds, batch_size, int(count)) for count in counts]
    return Candidates(
        np.array([[batch.size] for batch in batches]),
        np.array([[batch.local] for batch in batches]),
        np.array([[batch.num_slices] for batch in batches]),
    )
