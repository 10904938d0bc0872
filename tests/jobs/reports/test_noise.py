"""What trainers tell of the noise of gradients is kept with the job and shown."""

from __future__ import annotations

import math
from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane.core.estimates.noise_scale import SMOOTHING
from jobs.models import Job, StepReport
from jobs.selectors.estimates.noise import noise_scale_of
from tests.jobs.world import World
from tests.support.builders import job_make
from tests.support.present import present

pytestmark = pytest.mark.django_db


def running(ada: User) -> tuple[World, Job]:
    world = World()
    job = job_make(ada, global_batch_size=64)
    world.until(lambda: Job.objects.get(id=job.pk).generations.filter(phase="active").exists())
    return world, job


def tell_steps(world: World, job: Job, first: int, noise: Any, batch_size: int | None) -> None:
    world.tell(world.steps_say(job, first, first, batch_size=batch_size, noise=noise))
    job.refresh_from_db()


def test_reports_are_averaged_for_the_batch_that_was_submitted(ada: User, client_of: Any) -> None:
    world, job = running(ada)
    job.refresh_from_db()
    assert noise_scale_of(job) is None
    tell_steps(world, job, 1, {"sqr": 4.0, "var": 1.0}, 64)
    first = present(noise_scale_of(job))
    assert (first.examples, first.num_reports) == (pytest.approx(16.0), 1)
    tell_steps(world, job, 2, {"sqr": 8.0, "var": 1.0}, 32)  # variance 0.5 with 64 examples
    second = present(noise_scale_of(job))
    assert second.sqr == pytest.approx((4.0 * SMOOTHING + 8.0) / (SMOOTHING + 1))
    assert second.var == pytest.approx((1.0 * SMOOTHING + 0.5) / (SMOOTHING + 1))
    told = client_of(ada).get(f"/api/v1/jobs/{job.pk}/").json()["noise_scale"]
    assert told["examples"] == pytest.approx(64 * second.var / second.sqr)
    assert told["num_reports"] == 2
    steps = client_of(ada).get(f"/api/v1/jobs/{job.pk}/metrics/").json()["steps"]
    assert [(row["noise_sqr"], row["noise_var"]) for row in steps] == [(4.0, 1.0), (8.0, 1.0)]
    rows = StepReport.objects.filter(job=job).order_by("first_step")
    assert [(row.noise_sqr, row.noise_var) for row in rows] == [(4.0, 1.0), (8.0, 1.0)]


@pytest.mark.parametrize("odd", [None, 7, {}, {"sqr": "x", "var": 1.0}, {"sqr": 1.0, "var": None}])
def test_reports_that_cannot_tell_change_nothing(ada: User, client_of: Any, odd: Any) -> None:
    world, job = running(ada)
    tell_steps(world, job, 1, odd, None)
    assert (job.step, job.noise) == (1, {})
    assert client_of(ada).get(f"/api/v1/jobs/{job.pk}/").json()["noise_scale"] is None


def test_an_infinite_noise_scale_travels_as_null(ada: User, client_of: Any) -> None:
    world, job = running(ada)
    tell_steps(world, job, 1, {"sqr": -0.5, "var": 1.0}, None)
    noise = present(noise_scale_of(job))
    assert math.isinf(noise.examples)
    told = client_of(ada).get(f"/api/v1/jobs/{job.pk}/").json()["noise_scale"]
    assert (told["examples"], told["sqr"]) == (None, -0.5)
