"""Our own policy over simulated time: nobody starves, weights and fairness hold in the long run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from controlplane.core.cycle import decide
from controlplane.core.values.types import Accelerator, Job, Snapshot
from tests.core.snapshots import Speed, accelerators_make, after, job_make, snapshot_make

ROUND_S = 30.0


@dataclass
class World:
    """Jobs that advance at their true speed under the policy, asked every half minute."""

    accelerators: tuple[Accelerator, ...]
    now: float = 0.0
    snapshot: Snapshot = field(init=False)
    ended: dict[int, float] = field(default_factory=dict)
    held_s: dict[int, float] = field(default_factory=dict)
    first_start: dict[int, float] = field(default_factory=dict)
    stops: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.snapshot = snapshot_make(self.accelerators)

    def submit(self, job: Job) -> None:
        self.snapshot = replace(self.snapshot, jobs=(*self.snapshot.jobs, job))

    def step(self) -> None:
        """Decide, obey, train for one round."""
        held = self.snapshot.held
        self.snapshot = replace(self.snapshot, now=self.now)
        for _ in range(3):  # what waits for a release goes on at once
            plan = decide(self.snapshot, "goodput_fair")
            for resize in plan.resizes:
                if not resize.wanted:
                    self.stops[resize.job_id] = self.stops.get(resize.job_id, 0) + 1
            self.snapshot = after(self.snapshot, plan)
            if not plan.waiting:
                break
        held = self.snapshot.held
        jobs = []
        for job in self.snapshot.jobs:
            count = len(held.get(job.id, ()))
            if count:
                self.first_start.setdefault(job.id, self.now)
                self.held_s[job.id] = self.held_s.get(job.id, 0.0) + ROUND_S
            assert job.performance is not None
            assert job.remaining_examples is not None
            speed = job.performance.goodput("gpu", count, -(-count // 4))
            left = job.remaining_examples - speed * ROUND_S
            if left <= 0.0:
                self.ended[job.id] = self.now + ROUND_S
                continue
            done = job.done_examples + speed * ROUND_S
            attained = job.attained_accelerator_s + count * ROUND_S
            jobs.append(
                replace(
                    job,
                    remaining_examples=left,
                    done_examples=done,
                    attained_accelerator_s=attained,
                )
            )
        self.now += ROUND_S
        live = {job.id for job in jobs}
        self.snapshot = replace(
            self.snapshot,
            jobs=tuple(jobs),
            held={job_id: row for job_id, row in held.items() if job_id in live},
        )

    def run(self, until_s: float, arrive: Callable[[int, float], Job | None]) -> None:
        """Go on for a while; `arrive` may submit a job every round."""
        number = 100
        while self.now < until_s:
            job = arrive(number, self.now)
            if job is not None:
                self.submit(job)
                number += 1
            self.step()


def job_of(job_id: int, work: float, at: float, **options: object) -> Job:
    job = job_make(job_id, at=at, **options)  # type: ignore[arg-type]
    return replace(job, remaining_examples=work, performance=Speed(per_s=1.0, company=0.02))


def stream(work: float, weight: float = 1.0) -> Callable[[int, float], Job]:
    """Send a job every round that keeps `work` / ROUND_S accelerators busy on average."""
    return lambda number, now: job_of(number, work, now, weight=weight, most=4)


@pytest.mark.parametrize(
    ("weight", "fair_s"), [(1.0, 3600.0), pytest.param(4.0, 16_000.0, marks=pytest.mark.nightly)]
)
def test_job_that_needs_the_whole_cluster_starts_in_its_fair_time(
    weight: float, fair_s: float
) -> None:
    """Small jobs, more important ones too, come as fast as the cluster can do them.

    Alone it takes five minutes. Beside 14 jobs of four times its priority it has 8 / 57 of an
    accelerator, as much as a fiftieth of the cluster.
    """
    world = World(accelerators_make(*["gpu gpu gpu gpu"] * 2))
    world.submit(job_of(1, 2_000.0, 0.0, least=8))
    world.run(fair_s + 1800.0, stream(8 * ROUND_S * 0.95, weight))
    assert world.first_start.get(1, 1e9) < fair_s + 1200.0
    assert world.held_s[1] >= 120.0


def test_low_priority_job_goes_on_beside_important_ones() -> None:
    world = World(accelerators_make("gpu gpu gpu gpu"))
    world.submit(job_of(1, 2_000.0, 0.0, weight=1.0))
    world.run(5400.0, stream(4 * ROUND_S * 0.9, weight=10.0))
    assert 1 in world.ended


def test_nobody_is_stopped_over_and_over() -> None:
    world = World(accelerators_make(*["gpu gpu gpu gpu"] * 2))
    draw = random.Random(1)
    world.run(
        3600.0,
        lambda number, now: (
            job_of(number, 10 ** draw.uniform(1.5, 3.5), now) if draw.random() < 0.4 else None
        ),
    )
    assert len(world.ended) > 20
    assert max(world.stops.values(), default=0) <= 3
    assert sum(world.stops.values()) / len(world.ended) < 0.5


def test_jobs_of_hours_in_a_crowd_do_not_overtake_each_other() -> None:
    """Twelve equal jobs of three hours on four accelerators: they take turns by the hour at most.

    A wait that is short for jobs of that length is no reason to stop one for another.
    """
    world = World(accelerators_make("gpu gpu gpu gpu"))
    for number in range(1, 13):
        job = job_of(number, 10_000.0, 0.0, most=1)
        world.submit(replace(job, resize_s=30.0))
    world.run(7200.0, lambda number, now: None)
    assert max(world.stops.values()) <= 1


def test_heavier_jobs_end_first_and_lighter_ones_in_time() -> None:
    world = World(accelerators_make(*["gpu gpu gpu gpu"] * 2))
    for number in range(1, 9):
        weight = 8.0 if number % 2 else 1.0
        world.submit(job_of(number, 3_000.0, 0.0, weight=weight))
    world.run(6000.0, lambda number, now: None)
    heavy = [world.ended[number] for number in (1, 3, 5, 7)]
    light = [world.ended[number] for number in (2, 4, 6, 8)]
    assert max(heavy) < min(light)


def test_finish_time_fairness_is_bounded_under_load() -> None:
    """No job takes 1.5 times as long as alone on its share, from half a minute of work on."""
    world = World(accelerators_make(*["gpu gpu gpu gpu"] * 4))
    draw = random.Random(3)
    begun: dict[int, tuple[float, float]] = {}
    crowd: dict[int, float] = {}

    def arrive(number: int, now: float) -> Job | None:
        for job in world.snapshot.jobs:
            crowd[job.id] = crowd.get(job.id, 0.0) + len(world.snapshot.jobs) * ROUND_S
        if now > 3600.0 or draw.random() < 0.88:
            return None
        begun[number] = (now, 10 ** draw.uniform(2.5, 4.0))
        return job_of(number, begun[number][1], now)

    world.run(9000.0, arrive)
    worst = 0.0
    for number, (at, work) in begun.items():
        took = world.ended[number] - at
        mean = max(crowd.get(number, 0.0) / took, 1.0)
        share = min(16.0 / mean, 8.0)
        speed = share / (1.0 + 0.02 * (share - 1.0)) if share >= 1.0 else share
        worst = max(worst, (took - ROUND_S) / (work / speed))  # ends are seen a round late
    assert worst < 1.5
