"""The policy changes under running jobs, with played trainers: nobody fails, nothing is shared."""

from __future__ import annotations

import random

import pytest

from controlplane.core.policies import POLICIES
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Allocation, Event, Job
from jobs.services.scheduling.policy import policy_choose
from jobs.services.submission.job_actions import job_reprioritise
from jobs.services.submission.standing import Standing
from tests.jobs.world import World
from tests.support.builders import job_make

pytestmark = pytest.mark.django_db

LIVE = {JobStatus.PENDING, JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PREEMPTING}


@pytest.mark.parametrize(
    "number", [6, pytest.param(len(POLICIES), id="all", marks=pytest.mark.nightly)]
)
def test_jobs_live_through_every_policy(number: int) -> None:
    """Three jobs, one of which needs two accelerators, go on under whatever decides."""
    draw = random.Random(1)
    world = World()
    jobs = [
        job_make(max_accelerators=3),
        job_make(min_accelerators=2),
        job_make(max_accelerators=4),
    ]
    for policy in draw.sample([*POLICIES], number):
        policy_choose(policy, world.now, actor="user:admin")
        standing = Standing(draw.choice([10, 100, 1000]))
        job_reprioritise(draw.choice(jobs).pk, standing, world.now, actor="user:admin", reason="")
        for _ in range(3):
            world.settle(2)
            check()
            for job in Job.objects.filter(status=JobStatus.RUNNING):
                world.train(job)
        world.now_s += 30.0
    assert Event.objects.filter(kind="resize").exists()
    assert Event.objects.filter(kind="preemption").exists()
    policy_choose("weighted_fair", world.now, actor="user:admin")
    for job in jobs:
        trains = job.generations.filter(phase="active")
        world.until(trains.exists)
        world.finish(job)
    assert {job.status for job in Job.objects.all()} == {JobStatus.FINISHED}


def check() -> None:
    """Check that nobody failed, and that every accelerator has one holder at most."""
    rows = Job.objects.all()
    assert {JobStatus(row.status) for row in rows} <= LIVE
    assert not any(row.restarts for row in rows)
    held = Allocation.objects.filter(released_at=None).values_list("accelerator_id", flat=True)
    assert len(held) == len(set(held))
