"""Which batch a job runs on its accelerators, and in how many slices (rules of Pollux, OSDI 2021).

A step on K accelerators runs `slices` slices of `local` examples after each other on each of them:
K * local * slices examples in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Ceilings forgive what floating point adds.
TOLERANCE = 1e-8

#: How many batch sizes are tried, evenly spaced in logarithms.
NUM_CANDIDATES = 50


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """What batches an application can run: whole ones, and examples on one accelerator at once."""

    initial: int
    largest: int
    smallest_local: int
    largest_local: int

    def most_accelerators(self, batch_size: int) -> int:
        """Give on how many accelerators a batch can be spread."""
        return max(batch_size // self.smallest_local, 1)


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


def fixed_batch(
    bounds: BatchBounds, batch_size: int, num_accelerators: int, *, slices_alone: bool = False
) -> Batch:
    """Split a given batch.

    Args:
        slices_alone: a single accelerator has two slices at least, whatever the batch.
    """
    local = math.ceil(batch_size / num_accelerators - TOLERANCE)
    slices = math.ceil(local / bounds.largest_local - TOLERANCE)
    if num_accelerators == 1 and (slices_alone or batch_size > bounds.initial):
        slices = max(slices, 2)
    atomic = math.ceil(local / slices - TOLERANCE)
    atomic = min(atomic, bounds.largest // (num_accelerators * slices))
    return Batch(num_accelerators, max(atomic, 1), slices)


def first_batch(bounds: BatchBounds, num_accelerators: int) -> Batch:
    """Give the batch of a job about which nothing is known: the smallest possible."""
    size = max(bounds.initial, bounds.smallest_local * num_accelerators)
    return fixed_batch(bounds, size, num_accelerators)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Batches that could be run. All arrays have the same shape."""

    sizes: NDArray[np.int64]
    locals: NDArray[np.int64]
    num_slices: NDArray[np.int64]


def candidate_batches(bounds: BatchBounds, counts: NDArray[np.int64]) -> Candidates:
    """List batches to choose from, for each number of accelerators in `counts`.

    Shape (len(counts), NUM_CANDIDATES); sizes are 0 where a batch is impossible.
    """
    count = counts[:, None].astype(float)
    least = np.maximum(bounds.initial, bounds.smallest_local * count)
    is_possible = least <= bounds.largest + TOLERANCE
    least = np.minimum(least, bounds.largest)
    steps = np.linspace(0.0, 1.0, NUM_CANDIDATES)[None, :]
    whole = least * (bounds.largest / least) ** steps
    local = whole / count
    slices = np.ceil(local / bounds.largest_local - TOLERANCE)
    alone = (count == 1) & (local > bounds.initial + TOLERANCE)
    slices = np.where(alone, np.maximum(slices, 2), np.maximum(slices, 1))
    atomic = np.ceil(local / slices - TOLERANCE)
    most = np.maximum(np.floor(bounds.largest / (count * slices)), 1)
    atomic = np.clip(atomic, bounds.smallest_local, np.minimum(most, bounds.largest_local))
    sizes = count * atomic * slices
    is_possible = is_possible & (sizes <= bounds.largest) & (atomic >= bounds.smallest_local)
    return Candidates(
        np.where(is_possible, sizes, 0).astype(np.int64),
        atomic.astype(np.int64),
        slices.astype(np.int64),
    )


def fixed_batches(bounds: BatchBounds, batch_size: int, counts: NDArray[np.int64]) -> Candidates:
    """Give the one way to run a fixed batch on each of the counts. Shape (len(counts), 1)."""
    batches = [fixed_batch(bounds, batch_size, int(count)) for count in counts]
    return Candidates(
        np.array([[batch.size] for batch in batches]),
        np.array([[batch.local] for batch in batches]),
        np.array([[batch.num_slices] for batch in batches]),
    )
