"""The made-up clusters of the benchmark of decision times."""

from __future__ import annotations

import numpy as np

from benchmarks.decision_time import OURS, SIZES, Mix, Size, World, figures_of, measure
from controlplane.core.cycle import decide
from controlplane.core.values.tiers import TIERS

SMALL = Size({"a100": 2, "t4": 2}, 4, 12, 3)


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
    assert figures_of("srtf", 64, Mix.ONE, found) == {"srtf_64_ms": round(found.processor_ms, 2)}
    assert list(figures_of(OURS, 100_000, Mix.ONE, found)) == ["ours_100000_s"]


def test_users_and_tiers_change_nothing_else_about_the_jobs() -> None:
    worlds = {mix: World(SIZES[64], OURS, np.random.default_rng(0), mix) for mix in Mix}
    jobs = {mix: list(world.jobs.values()) for mix, world in worlds.items()}
    assert len({job.user for job in jobs[Mix.ONE]}) == 1
    assert len({job.user for job in jobs[Mix.TIERS]}) > 4
    assert {job.tier for job in jobs[Mix.USERS]} < {job.tier for job in jobs[Mix.TIERS]} <= {*TIERS}
    sizes = {mix: [(job.weight, job.remaining_examples) for job in jobs[mix]] for mix in Mix}
    assert sizes[Mix.ONE] == sizes[Mix.USERS] == sizes[Mix.TIERS]


def test_the_time_of_frames_is_a_part_of_that_of_the_decision() -> None:
    found = measure("weighted_fair", SMALL, repeats=2, mix=Mix.TIERS)
    assert found.frames_ms > 0.0
    assert list(figures_of("weighted_fair", 64, Mix.TIERS, found)) == [
        "weighted_fair_64_ms_tiers", "frames_64_tiers",
    ]  # fmt: skip
