"""What policies are told about speed: fixed batches, chosen ones, kinds, and remembered tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controlplane.core.estimates.goodput import (
    AdaptiveBatchPerformance,
    FixedBatchPerformance,
    VirtualNodes,
    relative_speeds,
    speeds_completed,
)
from controlplane.core.estimates.throughput import ThroughputModel

# 20 ms a slice and 1 ms an example; 30 ms to exchange on one machine, 100 ms between machines
MODEL = ThroughputModel(0.02, 0.001, 0.03, 0.0, 0.1, 0.0)


def fixed(**changes: object) -> FixedBatchPerformance:
    return FixedBatchPerformance({"a100": MODEL}, VirtualNodes(16), size=160, **changes)  # type: ignore[arg-type]


def adaptive(noise_scale: float = 200.0, high: int = 1024) -> AdaptiveBatchPerformance:
    return AdaptiveBatchPerformance(
        {"a100": MODEL},
        VirtualNodes(16),
        submitted=64,
        low=64,
        high=high,
        multiple=16,
        noise_scale=noise_scale,
    )


def test_virtual_nodes_run_after_each_other_where_accelerators_are_few() -> None:
    job = fixed()
    # slices of 10 examples take 30 ms: 16 of them 480 ms, 4 on each of four 120 ms + 30 ms
    assert job.goodput("a100", 1, 1) == pytest.approx(160 / 0.48)
    assert job.goodput("a100", 4, 1) == pytest.approx(160 / 0.15)
    assert job.goodput("a100", 4, 2) == pytest.approx(160 / 0.22)
    assert job.goodput("a100", 16, 4) == pytest.approx(160 / 0.13)
    assert job.batch_size("a100", 4, 1) == 160


def test_uneven_counts_are_no_faster_than_the_busiest_accelerator() -> None:
    job = fixed()
    table = job.goodputs("a100", 16, 16)
    assert table[9:16] == pytest.approx([table[8]] * 7)
    assert table[16] > table[15]


def test_nothing_runs_on_no_accelerators_or_on_more_than_virtual_nodes() -> None:
    job = fixed()
    assert job.goodput("a100", 0, 0) == 0.0
    assert job.goodput("a100", 17, 1) == 0.0
    assert job.batch_size("a100", 17, 1) == 0
    table = job.goodputs("a100", 20, 4)
    assert table.shape == (21,)
    assert table[0] == 0.0
    assert table[17:].tolist() == [0.0] * 4


@pytest.mark.parametrize("job", [fixed(), adaptive()])
def test_a_table_holds_what_single_questions_get(job: FixedBatchPerformance) -> None:
    table = job.goodputs("a100", 16, 4)
    for count in range(17):
        assert table[count] == pytest.approx(job.goodput("a100", count, -(-count // 4)))


def test_tables_are_computed_once_and_cannot_be_changed() -> None:
    job = fixed()
    table = job.goodputs("a100", 16, 4)
    assert np.shares_memory(table, job.goodputs("a100", 8, 4))
    with pytest.raises(ValueError, match="read-only"):
        table[1] = 1.0
    with pytest.raises(ValueError, match="per_node"):
        job.goodputs("a100", 4, 0)


def test_a_kind_without_a_model_is_like_the_known_one_by_its_relative_speed() -> None:
    job = fixed(speeds={"a100": 4.0, "k80": 1.0})
    # four times as slow: slices of 120 ms
    assert job.goodput("k80", 4, 1) == pytest.approx(160 / 0.51)
    # nobody knows anything about this one: as fast as an a100 would be on average
    assert fixed().goodput("tpu", 4, 1) == pytest.approx(fixed().goodput("a100", 4, 1))


def test_speeds_of_kinds_are_the_median_of_the_jobs_that_know_them() -> None:
    jobs = [
        ({"a100": MODEL, "k80": MODEL.slower(4.0)}, 10.0),
        ({"a100": MODEL, "k80": MODEL.slower(2.0)}, 10.0),
        ({"a100": MODEL, "k80": MODEL.slower(3.0), "t4": MODEL.slower(1.5)}, 10.0),
        ({"t4": MODEL}, 10.0),
    ]
    speeds = relative_speeds(jobs)
    assert speeds == pytest.approx({"a100": 1.0, "k80": 1.0 / 3.0, "t4": 1.0 / 1.5})
    assert relative_speeds(jobs[3:]) == {}


def test_own_speeds_are_completed_by_those_of_others() -> None:
    """Both relative to something of their own; a k80 is twice as slow here as elsewhere."""
    others = {"a100": 4.0, "k80": 1.0, "t4": 2.0}
    own = speeds_completed({"a100": 1.0, "k80": 0.125}, others)
    # ratios 0.25 and 0.125: 0.1875 on median
    assert own == {"a100": 1.0, "k80": 0.125, "t4": 0.375}
    assert speeds_completed({}, others) == others
    assert speeds_completed({"tpu": 1.0}, others) == others
    assert speeds_completed({"tpu": 1.0}, {}) == {"tpu": 1.0}


def test_each_kind_has_its_own_model() -> None:
    models = {"a100": MODEL, "k80": MODEL.slower(3.0)}
    job = FixedBatchPerformance(models, VirtualNodes(16), size=160)
    assert job.goodput("k80", 1, 1) == pytest.approx(160 / (3 * 0.48))
    with pytest.raises(ValueError, match="at least one fitted model"):
        FixedBatchPerformance({}, VirtualNodes(16), size=160)


def test_the_chosen_batch_is_the_best_allowed_one() -> None:
    job = adaptive()

    def goodput(batch: int, count: int) -> float:
        slices = -(-16 // count)
        step_s = slices * (0.02 + 0.001 * batch / 16) + (0.03 if count > 1 else 0.0)
        return batch / step_s * (200 + 64) / (200 + batch)

    for count in (1, 4, 16):
        best = max(range(64, 1025, 16), key=lambda batch: goodput(batch, count))
        # one of some sixty sizes is within a percent of the best of all
        assert job.goodput("a100", count, 1) == pytest.approx(goodput(best, count), rel=0.01)
        assert job.goodput("a100", count, 1) == pytest.approx(
            goodput(job.batch_size("a100", count, 1), count)
        )


def test_noise_decides_how_far_batches_grow() -> None:
    assert adaptive(0.0).batch_size("a100", 4, 1) == 64
    assert adaptive(math.inf).batch_size("a100", 4, 1) == 1024
    quiet, noisy = (adaptive(phi).batch_size("a100", 4, 1) for phi in (50.0, 5000.0))
    assert 64 < quiet < noisy
    assert quiet % 16 == 0


def test_memory_bounds_the_slices_of_virtual_nodes() -> None:
    job = AdaptiveBatchPerformance(
        {"a100": MODEL},
        VirtualNodes(16, largest_slice=8),
        submitted=64,
        low=64,
        high=1024,
        multiple=16,
        noise_scale=math.inf,
    )
    assert 112 <= job.batch_size("a100", 4, 1) <= 128


def test_wrong_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="low <= high"):
        adaptive(high=32)


@given(
    st.integers(1, 64),
    st.floats(0.0, 1e5),
    st.integers(1, 8),
)
@example(1, 0.0, 1)  # noiseless
def test_goodput_is_never_above_throughput_and_never_negative(
    number: int, noise_scale: float, per_node: int
) -> None:
    job = AdaptiveBatchPerformance(
        {"a100": MODEL},
        VirtualNodes(number),
        submitted=number,
        low=number,
        high=number * 16,
        multiple=number,
        noise_scale=noise_scale,
    )
    table = job.goodputs("a100", 40, per_node)
    assert (table >= 0.0).all()
    for count in range(1, 41):
        batch = job.batch_size("a100", count, -(-count // per_node))
        assert (batch > 0) == (table[count] > 0.0)
        # no step is shorter than its first slice
        assert table[count] <= batch / float(MODEL.grad_s(0.0)) + 1e-9
