"""The made-up clusters of the benchmark of decision times."""

from __future__ import annotations

import numpy as np

from benchmarks.decision_time import OURS, SIZES, Size, World, figure_of, measure
from controlplane.core.cycle import decide

SMALL = Size({"a100": 2, "t4": 2}, 4, 12)


def test_sizes_are_those_that_are_asked_for() -> None:
    assert {name: size.num_accelerators for name, size in SIZES.items()} == {n: n for n in SIZES}
    assert (SIZES[10240].num_jobs, SIZES[100_000].num_jobs) == (5000, 20_000)


def test_clusters_come_to_rest_and_live_on() -> None:
    world = World(SMALL, "sia", np.random.default_rng(0))
    for _ in range(12):
        plan = decide(world.snapshot(), "sia")
        world.obey(plan)
    assert plan.resizes == ()
    held = [accelerator for row in world.held.values() for accelerator in row]
    assert len(held) == len(set(held)) == 16
    world.pass_round()
    assert len(world.jobs) == SMALL.num_jobs
    assert all(job.attained_accelerator_s > 0 for i, job in world.jobs.items() if i in world.held)


def test_a_decision_is_timed_by_clock_and_processor() -> None:
    found = measure("srtf", SMALL, repeats=2)
    assert found.processor_ms > 0.0
    assert 0.0 < found.clock_ms <= found.worst_ms
    assert figure_of("srtf", 64, found) == ("srtf_64_ms", round(found.processor_ms, 2))
    assert figure_of(OURS, 100_000, found)[0] == "ours_100000_s"
