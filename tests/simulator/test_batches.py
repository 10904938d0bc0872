"""How batches fall into slices, and which of them can be chosen."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controlplane.core.estimates.goodput import AdaptiveBatchPerformance, FixedBatchPerformance
from controlplane.core.estimates.throughput import ThroughputModel
from controlplane.simulator.applications.batches import (
    Accumulation,
    Batch,
    BatchBounds,
    WorkerBatch,
    candidate_batches,
    fixed_batch,
)

# 20 ms a slice and 1 ms an example; 30 ms to exchange on one machine, 100 ms between machines
MODEL = ThroughputModel(0.02, 0.001, 0.03, 0.0, 0.1, 0.0)

BOUNDS = BatchBounds(initial=128, largest=4096, smallest_local=32, largest_local=1024)


def test_fixed_batches_by_hand() -> None:
    # 2048 on one: two slices of 1024. On three: 683 each, one slice.
    assert fixed_batch(BOUNDS, 2048, 1) == Batch(1, 1024, 2)
    assert fixed_batch(BOUNDS, 2048, 3) == Batch(3, 683, 1)
    # A single accelerator has two slices as soon as the batch is not the initial one.
    assert fixed_batch(BOUNDS, 256, 1) == Batch(1, 128, 2)
    assert fixed_batch(BOUNDS, 128, 1) == Batch(1, 128, 1)
    assert fixed_batch(BOUNDS, 128, 1, slices_alone=True) == Batch(1, 64, 2)
    # 4096 on three would be 3 * 1366 = 4098: no more than the largest batch.
    assert fixed_batch(BOUNDS, 4096, 3) == Batch(3, 682, 2)
    assert fixed_batch(BOUNDS, BOUNDS.first(8), 8) == Batch(8, 32, 1)


def test_candidates_stay_in_bounds() -> None:
    found = candidate_batches(BOUNDS, np.array([1, 5, 128, 129]))
    assert found.sizes[:3].min(where=found.sizes[:3] > 0, initial=10**9) >= 128
    assert found.sizes.max() <= 4096
    assert (found.sizes[2] == 4096).any()  # 128 * 32, the only one possible there
    assert not found.sizes[3].any()  # 129 * 32 is too much
    is_used = found.sizes > 0
    assert found.locals[is_used].min() >= 32
    assert found.locals[is_used].max() <= 1024


def test_accumulation_uses_as_few_slices_as_fit() -> None:
    job = FixedBatchPerformance({"a100": MODEL}, Accumulation(largest_slice=32), size=128)
    # 128 = 4 slices of 32 on one, 2 on two, 1 on four, 22 examples each on six
    assert job.goodput("a100", 1, 1) == pytest.approx(128 / (4 * 0.052))
    assert job.goodput("a100", 2, 1) == pytest.approx(128 / (2 * 0.052 + 0.03))
    assert job.goodput("a100", 4, 1) == pytest.approx(128 / (0.052 + 0.03))
    assert job.goodput("a100", 6, 1) == pytest.approx(132 / (0.042 + 0.03))
    assert job.batch_size("a100", 6, 1) == 132
    assert job.most_accelerators == 128


def test_one_accelerator_alone_may_have_to_split_large_batches() -> None:
    split = Accumulation(largest_slice=256, whole_up_to=64)
    alone = FixedBatchPerformance({"a100": MODEL}, split, size=128)
    assert alone.goodput("a100", 1, 1) == pytest.approx(128 / (2 * 0.084))
    small = FixedBatchPerformance({"a100": MODEL}, split, size=64)
    assert small.goodput("a100", 1, 1) == pytest.approx(64 / 0.084)


def test_rounding_up_stays_below_the_most_that_a_batch_may_be() -> None:
    job = FixedBatchPerformance({"a100": MODEL}, Accumulation(64, most=128), size=128)
    assert job.batch_size("a100", 6, 1) == 126


def test_every_worker_may_have_a_batch_of_its_own() -> None:
    job = FixedBatchPerformance({"a100": MODEL}, WorkerBatch(8), size=32)
    assert job.goodput("a100", 1, 1) == pytest.approx(32 / 0.052)
    assert job.goodput("a100", 4, 1) == pytest.approx(4 * 32 / (0.052 + 0.03))
    assert job.batch_size("a100", 4, 2) == 128
    assert job.most_accelerators == 8
    assert job.goodput("a100", 9, 3) == 0.0
    assert job.goodputs("a100", 12, 4)[8:].tolist() == [pytest.approx(8 * 32 / 0.152), 0, 0, 0, 0]


@given(st.integers(1, 64), st.floats(0.0, 1e5), st.integers(1, 8))
@example(1, 0.0, 1)  # noiseless, and batches that cannot be
def test_batches_that_cannot_be_have_no_goodput(
    initial: int, noise_scale: float, per_node: int
) -> None:
    job = AdaptiveBatchPerformance(
        {"a100": MODEL},
        Accumulation(32, 4),
        submitted=initial,
        low=initial,
        high=initial * 16,
        noise_scale=noise_scale,
    )
    table = job.goodputs("a100", 40, per_node)
    assert np.isfinite(table).all()
    for count in range(1, 41):
        batch = job.batch_size("a100", count, -(-count // per_node))
        assert (batch > 0) == (table[count] > 0.0) == (count <= math.floor(initial * 16 / 4))
