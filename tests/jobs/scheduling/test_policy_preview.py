"""Previews of the queue: expected starts of waiting jobs under other priorities or policies."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db.models import F
from django.test import Client
from django.utils import timezone

from controlplane.core.values.tiers import Tier
from jobs.models import Job, JobForecast
from jobs.selectors.policy_preview import Preview, policy_preview, reprioritise_preview
from jobs.services.scheduling.cycle import cycle_run
from tests.jobs.timed_world import TimedWorld, timed_job
from tests.support.builders import Clients

pytestmark = pytest.mark.django_db

PREVIEW = "/api/v1/jobs/actions/preview/"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, time_for_forecasts: None) -> TimedWorld:
    world = TimedWorld(1, 4, policy="priority")
    monkeypatch.setattr(timezone, "now", lambda: world.now)
    return world


def queue_of(world: TimedWorld, *owners: User) -> list[Job]:
    """Let a job run on all accelerators, and jobs of falling priorities wait for them.

    A step takes 66 ms on 4 accelerators of one node, with two slices of 8 examples each. The first
    job has 800 steps left, 52.8 s; the others have 1000, 66 s. Forecasts allow a factor of 1.2.
    """
    first = timed_job(owner=owners[0], min_accelerators=4, priority=900)
    world.settle()
    world.train_on(first, 20)
    waiting = [
        timed_job(owner=owner, min_accelerators=4, priority=500 - number).pk
        for number, owner in enumerate(owners)
    ]
    world.settle(1)
    cycle_run(world.now)
    return list(Job.objects.filter(pk__in=waiting).order_by("pk"))


def changes_of(found: Preview) -> dict[int, str]:
    return {start.job.pk: start.text for start in found.starts}


def test_a_job_that_is_moved_to_the_top_starts_next(world: TimedWorld, ada: User) -> None:
    jobs = queue_of(world, ada, ada, ada)
    everything = Job.objects.all()
    found = reprioritise_preview({jobs[2].pk: 600}, {}, world.now, everything)
    assert found.moves == []
    assert changes_of(found) == {
        jobs[2].pk: "3 to 4 min → 40 to 60 s",
        jobs[0].pk: "40 to 60 s → 2 min",
        jobs[1].pk: "2 min → 3 to 4 min",
    }
    after = found.starts[0].after
    assert after is not None
    assert (after.earliest_s, after.latest_s) == pytest.approx((52.8 / 1.2, 52.8 * 1.2), rel=1e-3)
    assert reprioritise_preview({jobs[2].pk: 450}, {}, world.now, everything).starts == []
    # Of other code nobody knows how long it will train.
    Job.objects.filter(pk=jobs[0].pk).update(code_sha256="0" * 64)
    JobForecast.objects.filter(job=jobs[0]).delete()
    found = reprioritise_preview({}, {}, world.now, everything)
    assert changes_of(found) == {
        jobs[0].pk: "no estimate → 40 to 60 s",
        jobs[1].pk: "2 min → no estimate",
        jobs[2].pk: "3 to 4 min → no estimate",
    }


def test_a_job_that_starts_at_once_is_a_move(world: TimedWorld, ada: User) -> None:
    jobs = queue_of(world, ada, ada)
    found = reprioritise_preview({}, {jobs[1].pk: Tier.URGENT}, world.now, Job.objects.all())
    assert [(move.job.pk, move.wanted) for move in found.moves if move.wanted] == [
        (jobs[1].pk, 4),
    ]  # fmt: skip
    assert jobs[1].pk not in changes_of(found)
    assert jobs[0].pk in changes_of(found)


def test_another_policy_has_other_starts(world: TimedWorld, ada: User) -> None:
    jobs = queue_of(world, ada, ada)
    Job.objects.filter(pk=jobs[0].pk).update(submitted_at=F("submitted_at") + timedelta(hours=1))
    assert set(changes_of(policy_preview("fifo", world.now))) == {job.pk for job in jobs}


def test_starts_are_told_of_visible_jobs_and_of_a_few(
    world: TimedWorld, ada: User, admin: User, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = queue_of(world, ada, admin, ada)

    def told(user: User) -> list[tuple[int, bool]]:
        body = {"action": "reprioritise", "jobs": [jobs[0].pk], "priority": 100}
        found = client_of(user).post(PREVIEW, body, format="json").json()["starts"]
        return [
            (row["job"], row["after"]["earliest_s"] < row["before"]["earliest_s"]) for row in found
        ]

    assert told(admin) == [(jobs[1].pk, True), (jobs[2].pk, True), (jobs[0].pk, False)]
    assert told(ada) == [(jobs[2].pk, True), (jobs[0].pk, False)]
    monkeypatch.setattr("jobs.selectors.policy_preview.STARTS_LIMIT", 1)
    assert told(admin) == [(jobs[1].pk, True)]


def test_the_queue_page_tells_them(
    world: TimedWorld, ada: User, admin: User, client: Client
) -> None:
    jobs = queue_of(world, ada, ada)
    client.force_login(admin)
    number = jobs[1].pk
    values = {"job": number, f"seen-{number}": "normal 499", f"tier-{number}": "normal",
              f"priority-{number}": "600", "do": "preview"}  # fmt: skip
    page = client.post("/queue/", values).content.decode()
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert f"#{number} a job expected start: 2 min → 40 to 60 s" in text
    assert f"#{jobs[0].pk} a job expected start: 40 to 60 s → 2 min" in text
