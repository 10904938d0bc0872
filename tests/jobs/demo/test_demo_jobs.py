"""The demo's own users of REST: the jobs that arrive, and those that rest between two runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.core.wsgi import get_wsgi_application
from django.utils import timezone

from controlplane.core.values.lifecycle import JobStatus
from jobs.demo.demo_jobs import APART_S, ARRIVALS, Arrivals, jobs_pause, jobs_resume
from jobs.job_templates import JOB_TEMPLATES
from jobs.models import IdempotencyKey, Job
from jobs.services.cluster.bootstrap import ensure_admin, ensure_api_token
from tests.jobs.world import World
from tests.support.builders import at, job_make, node_make
from tests.support.connections import connection_kept

pytestmark = pytest.mark.django_db


@pytest.fixture
def rest() -> Iterator[httpx.Client]:
    """Open a client of the site in this process, as the demo's admin."""
    ensure_api_token(ensure_admin("admin", "a good long one"), "demo", "the demo's token")
    headers = {"Authorization": "Bearer the demo's token"}
    transport = httpx.WSGITransport(app=get_wsgi_application())
    base = "http://127.0.0.1/api/v1/"
    client = httpx.Client(transport=transport, base_url=base, headers=headers)
    with connection_kept(), client:
        yield client


def set_status(job_id: int, status: JobStatus) -> None:
    ended_at = at(1) if status == JobStatus.FINISHED else None
    Job.objects.filter(id=job_id).update(status=status, ended_at=ended_at)


def names() -> list[str]:
    return list(Job.objects.order_by("id").values_list("name", flat=True))


def test_the_three_are_templates_of_different_priorities() -> None:
    assert len({arrival.priority for arrival in ARRIVALS}) == len(ARRIVALS) == 3
    assert all(arrival.template in JOB_TEMPLATES for arrival in ARRIVALS)


def test_a_job_arrives_when_the_one_before_has_trained_for_a_while(rest: httpx.Client) -> None:
    said: list[str] = []
    arrivals = Arrivals(rest, said.append, num_nodes=0)
    arrivals.run_once(0.0)
    assert names() == [ARRIVALS[0].name]
    first = Job.objects.get()
    arrivals.run_once(10.0)
    set_status(first.pk, JobStatus.RUNNING)
    arrivals.run_once(20.0)
    arrivals.run_once(20.0 + APART_S - 1.1)
    assert Job.objects.count() == 1
    arrivals.run_once(20.0 + APART_S)
    assert names() == [ARRIVALS[0].name, ARRIVALS[1].name]
    assert said[-1].startswith(f"Job {first.pk + 1} ({ARRIVALS[1].name}, priority 300)")


def test_the_first_job_waits_for_all_nodes(rest: httpx.Client) -> None:
    arrivals = Arrivals(rest, lambda _line: None, num_nodes=2)
    node_make(now=timezone.now())
    arrivals.run_once(0.0)
    assert names() == []
    node_make(now=timezone.now())
    arrivals.run_once(2.0)
    assert names() == [ARRIVALS[0].name]


def test_a_job_arrives_at_once_when_the_one_before_has_ended(rest: httpx.Client) -> None:
    arrivals = Arrivals(rest, lambda _line: None, num_nodes=0)
    for second in (0.0, 2.0, 4.0, 6.0):
        arrivals.run_once(second)
        set_status(Job.objects.order_by("-id")[0].pk, JobStatus.FINISHED)
    assert names() == [arrival.name for arrival in ARRIVALS]
    assert arrivals.is_over


def test_another_run_finds_the_jobs_of_the_one_before(rest: httpx.Client) -> None:
    for _ in range(2):
        arrivals = Arrivals(rest, lambda _line: None, num_nodes=0)
        for second in (0.0, 2.0, 4.0):
            arrivals.run_once(second)
            set_status(Job.objects.order_by("id")[0].pk, JobStatus.FINISHED)
    assert names() == [ARRIVALS[0].name, ARRIVALS[1].name]
    IdempotencyKey.objects.update(body_sha256="of an earlier version")
    arrivals = Arrivals(rest, lambda _line: None, num_nodes=0)
    for second in (0.0, 2.0, 4.0):
        arrivals.run_once(second)
    assert names() == [arrival.name for arrival in ARRIVALS]


def test_a_site_that_is_away_is_asked_again_later() -> None:
    said: list[str] = []
    with httpx.Client(base_url="http://127.0.0.1:1/api/v1/", trust_env=False) as nobody:
        arrivals = Arrivals(nobody, said.append, num_nodes=0)
        arrivals.run_once(0.0)
        arrivals.run_once(APART_S - 1)
        assert len(said) == 1
        assert "The next job waits for the site" in said[0]
        arrivals.run_once(APART_S + 1)
        assert len(said) == 2


def test_running_jobs_rest_and_go_on(rest: httpx.Client, tmp_path: Path) -> None:
    world = World()
    running = job_make()
    world.settle()
    Job.objects.filter(id=running.pk).update(status=JobStatus.RUNNING)
    waiting = job_make(accepted_kinds=["gpu-of-the-future"])
    assert jobs_pause(tmp_path, rest, is_hurried=lambda: True) == 1
    assert json.loads((tmp_path / "set-aside.json").read_text()) == [running.pk]
    world.settle()
    running.refresh_from_db()
    assert running.status == JobStatus.PAUSED

    assert jobs_resume(tmp_path, rest) == 1
    running.refresh_from_db()
    waiting.refresh_from_db()
    assert (running.status, waiting.status) == (JobStatus.PENDING, JobStatus.PENDING)
    assert jobs_resume(tmp_path, rest) == 0
