"""A job tries idle accelerators through the control plane: told on its page, learnt, kept."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.core.estimates.throughput import ThroughputModel
from controlplane.core.policies import DEFAULT_POLICY
from jobs.models import Job, JobEstimates
from tests.jobs.kinds_world import settled
from tests.jobs.timed_world import TimedWorld, started, timed_job
from tests.jobs.world import num_held

pytestmark = pytest.mark.django_db

#: On one machine the exchange grows with every trainer, and so it is taken to do between machines.
TRUTH = ThroughputModel(0.0, 0.0125, 0.1, 0.12, 0.1, 0.0, 1.0)
#: A job is on trial for a fifth of its time at most, which is a minute.
PERIOD_S, ROUND_S = 300.0, 20.0
TRIES = "to measure its speed, as there are idle ones"


def tries(job: Job) -> bool:
    return Job.objects.get(pk=job.pk).policy_reason.startswith("Tries")


def test_a_job_tries_idle_accelerators_and_keeps_what_is_faster(
    ada: User, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedWorld, "truth", TRUTH)
    world = TimedWorld(4, 4, DEFAULT_POLICY)
    sizes = {"num_virtual_nodes": 16, "max_accelerators": 16, "stop_limit": 100_000}
    job = timed_job(owner=ada, **sizes)
    client.force_login(ada)
    started(world, job)
    world.train_on(job, 2)
    before = num_held(job)
    # As after a while on fewer accelerators of one machine.
    fitted = ThroughputModel(0.0, 0.0125, 0.1, 0.12, 0.1, 0.12, 1.0)
    known = JobEstimates.objects.filter(job=job)
    known.update(throughput={"cpu": fitted.parameters}, updated_at=world.now)
    while not tries(job) and world.now_s < PERIOD_S + 2 * ROUND_S:
        assert num_held(job) == before <= 4
        world.now_s += ROUND_S
        for played in world.nodes:
            world.follow(played)
        world.cycle()
    more = num_held(job)
    assert more > before
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert f"Tries {more} of 16 cpu {TRIES}" in page
    assert world.now_s >= PERIOD_S
    settled(world, job, more)
    for _ in range(2):
        world.train_on(job, 6)  # measured: the exchange between machines does not grow
        world.now_s += ROUND_S
        world.settle(1)
    assert num_held(job) >= more
    assert not tries(job)
