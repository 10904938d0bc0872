"""Batch sizes that the platform chooses: when, how far, and what a job's life does to them."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.estimates.throughput import ThroughputModel
from jobs.models import Event, Generation, Job, JobEstimates, StepReport
from jobs.selectors.estimates.batch_sizes import examples_done
from jobs.selectors.estimates.job import samples_read
from jobs.selectors.series import BatchSpan, batch_spans_of
from tests.jobs.timed_world import TimedWorld, started
from tests.support.builders import job_make
from tests.support.present import present

pytestmark = pytest.mark.django_db


class SizedWorld(TimedWorld):
    """A world whose control plane acts while jobs train."""

    #: 2.5 ms and 0.1 ms an example for a slice, and 60 ms for any exchange.
    truth = ThroughputModel(0.0025, 0.0001, 0.06, 0.0, 0.06)
    report_s = 3.0

    def train_and_act(self, job: Job, num_reports: int) -> list[int]:
        """Let a job report, and everybody act after every fifth report; gives its batch sizes."""
        sizes = []
        for number in range(1, num_reports + 1):
            sizes.append(self.report(job))
            if number % 5 == 0:
                self.cycle()
                self.follow_all()
        return sizes


def adaptive_job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "global_batch_size": 64,
        "batch_size_min": 32,
        "batch_size_max": 1024,
        "num_virtual_nodes": 8,
        "max_accelerators": 4,
        "stop_kind": "epochs",
    }
    return job_make(**(values | changes))


def sizes_asked(job: Job) -> list[tuple[int, int]]:
    rows = Event.objects.filter(job=job, kind="batch_size").order_by("id")
    return [(row.data["before"], row.data["after"]) for row in rows]


def test_it_tries_twice_the_size_then_goes_to_the_best() -> None:
    world, job = SizedWorld(1, 1), adaptive_job()
    started(world, job)
    sizes = world.train_and_act(job, 50)
    # Noise from 20 reports first; then doublings, 30 s apart. The best is at 299, but from
    # 256 on it promises less than 5 % more.
    changes = [place for place in range(1, len(sizes)) if sizes[place] != sizes[place - 1]]
    assert [sizes[0], *(sizes[place] for place in changes)] == [64, 128, 256]
    assert changes[0] >= 20
    assert changes[1] - changes[0] >= 10
    assert sizes_asked(job) == [(64, 128), (128, 256)]
    first, second = Event.objects.filter(job=job, kind="batch_size").order_by("id")[:2]
    assert first.actor == "system:batch_size"
    # From one size alone half of a slice's time counts as fixed, so the first step is a try.
    assert "noise scale 448: 64 → 128 examples a step promise 1.19x" in first.message
    assert second.message.startswith("Batch size 128 → 256: noise scale 448: 128 → 256 examples")
    assert job.batch_size == sizes[-1]
    assert examples_done(job, 64) == 64  # its first epoch, and reports tell of no more than it has
    assert examples_done(job, 10**6) == 10 * sum(sizes)
    forked = Job(step=450, epoch=2, global_batch_size=64, fork={"keeps_order": False})
    assert examples_done(forked, 640, 128) == 2 * 640 + 128
    # Ten steps to a report: what is drawn begins with the first step of each size.
    assert batch_spans_of(job) == [
        BatchSpan(1, 64), BatchSpan(10 * changes[0] + 1, 128), BatchSpan(10 * changes[1] + 1, 256),
    ]  # fmt: skip
    row = Generation.objects.get(job=job, phase="active")
    assert (row.num_members, row.previous is not None) == (1, True)
    assert Event.objects.filter(job=job, kind="resize_requested").count() == 1  # its start
    told = present(Event.objects.filter(job=job, kind="resize").order_by("id").last())
    assert told.message.startswith("Batch size 256 at step ")
    assert told.message.endswith("state identical")
    kept = present(StepReport.objects.filter(job=job).order_by("last_step").last())
    assert (kept.batch_size, kept.learning_rate) == (sizes[-1], 0.1)


def test_a_job_that_did_not_ask_for_it_keeps_its_size() -> None:
    world = SizedWorld(1, 1)
    job = adaptive_job(batch_size_min=None, batch_size_max=None)
    started(world, job)
    assert set(world.train_and_act(job, 25)) == {64}
    assert (job.batch_size, sizes_asked(job)) == (None, [])
    membership = Generation.objects.get(job=job, phase="active").membership
    assert membership.global_batch_size is None


def test_sizes_that_tuning_tries_are_those_of_the_reports() -> None:
    world = SizedWorld(1, 1)
    tuning = {"space": {"batch_size": {"low": 32, "high": 256}}}
    job = adaptive_job(batch_size_min=None, batch_size_max=None, tuning=tuning)
    started(world, job)
    for size in (*[64] * 30, *[256] * 30):
        world.report(job, batch_size=size)
    world.cycle()
    assert (job.batch_size_now, job.chosen_batch_size, sizes_asked(job)) == (256, None, [])
    assert batch_spans_of(job) == [BatchSpan(1, 64), BatchSpan(301, 256)]
    assert examples_done(job, 10**6) == 300 * (64 + 256)
    truth = {size: float(world.truth.step_s(1, 1, size / 8, 8)) for size in (64, 256)}
    assert job.examples_per_s == pytest.approx(256 / truth[256])
    learnt = samples_read(JobEstimates.objects.get(job=job))
    assert {key.batch_size: value.step_s for key, value in learnt.items()} == pytest.approx(
        truth, rel=1e-3
    ), "times of both sizes are kept apart"
    world.report(job, batch_size=264)
    assert Event.objects.get(job=job, kind="report_refused")
    assert job.batch_size_now == 256, "a size that it cannot have"


def test_without_noise_nothing_is_chosen() -> None:
    world, job = SizedWorld(1, 1), adaptive_job()
    started(world, job)
    for _ in range(25):
        world.report(job, noise=None)
    world.cycle()
    world.follow_all()
    assert sizes_asked(job) == []


@pytest.mark.parametrize(
    ("facts", "largest"),
    [
        ({"num_examples": 100}, 96),
        # 2**30 bytes less a tenth and 64 MiB hold 10.7 times 80 MiB: 10 examples in each of 8.
        (
            {
                "memory": {
                    "process_bytes": 0,
                    "base_bytes": 0,
                    "bytes_per_example": 80 * 2**20,
                }
            },
            80,
        ),
    ],
)
def test_data_and_memory_are_bounds_too(facts: dict[str, Any], largest: int) -> None:
    world, job = SizedWorld(1, 1), adaptive_job(facts=facts)
    started(world, job)
    world.train_and_act(job, 30)
    assert [after for _, after in sizes_asked(job)] == [largest]


def test_a_recovery_keeps_what_was_chosen_and_a_resize_chooses_anew() -> None:
    world = SizedWorld(num_nodes=2, num_accelerators=2)
    job = adaptive_job()
    world.until(lambda: job.generations.filter(phase="active", num_members=4).exists())
    world.train_and_act(job, 45)
    # The exchange makes the best size 1079 on four accelerators; three doublings lead to 512.
    assert job.batch_size == 512
    assert sizes_asked(job) == [(64, 128), (128, 256), (256, 512)]

    slots = Generation.objects.get(job=job, phase="active").membership.slots
    world.kill(job, slots[-1])
    world.until(lambda: job.generations.filter(phase="active", num_members=3).exists())
    recovered = Generation.objects.get(job=job, phase="active").membership
    assert recovered.recover
    assert recovered.global_batch_size == 512

    Job.objects.filter(id=job.pk).update(max_accelerators=1)
    world.until(lambda: job.generations.filter(phase="active", num_members=1).exists())
    # Without an exchange the best is at 299; 64 candidates in equal ratios come near it.
    alone = Generation.objects.get(job=job, phase="active").membership
    assert alone.global_batch_size == pytest.approx(299, rel=0.05)
    resize = present(Event.objects.filter(job=job, kind="batch_size").order_by("id").last())
    assert resize.actor.startswith("policy:")
