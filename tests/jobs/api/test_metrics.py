"""Metrics: who reads them, what they say, and that the dashboard and the page know them."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from rest_framework.test import APIClient

from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import JobStatus
from jobs import counters, nudges, tasks
from jobs.models import Accelerator, ClusterSetting, Node, ReadingBin
from jobs.request_counts import request_kind, requests_counted
from tests.jobs.world import World
from tests.support.builders import api_token_make, job_make, node_make

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "a-token-for-prometheus-of-the-tests-" + "x" * 20
Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture(autouse=True)
def _nothing_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counters._new.clear()
    monkeypatch.setattr(counters, "_not_before", 0.0)


def scrape(settings: Any) -> str:
    settings.METRICS_TOKEN = TOKEN
    response = Client(headers={"Authorization": f"Bearer {TOKEN}"}).get("/metrics")
    assert response.status_code == 200
    return response.content.decode()


def samples(settings: Any) -> Samples:
    families = text_string_to_metric_families(scrape(settings))
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_prometheus_and_admins_read_them(ada: User, admin: User, settings: Any) -> None:
    def status(header: str) -> int:
        accepted = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3"
        headers = {"Authorization": header, "Accept": accepted}
        return APIClient(headers=headers).get("/metrics").status_code

    # Without a token in the settings, no token is right.
    assert [status("Bearer "), status(f"Bearer {TOKEN}")] == [401, 401]
    settings.METRICS_TOKEN = TOKEN
    assert [status("Bearer "), status(f"Bearer {TOKEN}x")] == [401, 401]
    assert [status(f"Bearer {TOKEN}"), status(f"Bearer {api_token_make(admin)}")] == [200, 200]
    assert status(f"Bearer {api_token_make(ada)}") == 403
    # The token reads metrics alone.
    reader = APIClient(headers={"Authorization": f"Bearer {TOKEN}"})
    assert reader.get("/api/v1/jobs/").status_code == 401
    assert reader.post("/metrics").status_code == 405


def test_jobs_and_accelerators_are_counted(ada: User, settings: Any) -> None:
    world = World(num_nodes=1, num_accelerators=3)
    job_make(ada, max_accelerators=1, num_virtual_nodes=1)
    world.cycle()
    job_make(ada, pending_since=timezone.now() - datetime.timedelta(minutes=5))
    job_make(ada, status=JobStatus.FINISHED)
    node_make("closed", 1, now=timezone.now())
    node_make("lost", 2, now=timezone.now())
    Node.objects.filter(name="closed").update(is_cordoned=True)
    Node.objects.filter(name="lost").update(status="lost")
    found = samples(settings)
    jobs = {name[1][0]: value for name, value in found.items() if name[0] == "virtualflow_jobs"}
    assert {name for name, value in jobs.items() if value} == {"starting", "pending", "finished"}
    assert set(jobs) == set(JobStatus)
    assert found["virtualflow_queue_length", ()] == 1
    assert 299 < found["virtualflow_queue_oldest_wait_seconds", ()] < 900
    states = {state: found["virtualflow_accelerators", ("cpu", state)] for state in
              ("held", "idle", "closed", "offline")}  # fmt: skip
    assert states == {"held": 1, "idle": 2, "closed": 1, "offline": 2}
    assert found["virtualflow_node_last_contact_seconds", ("lost",)] < 600


def test_a_failing_cycle_shows(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    World(num_nodes=1)
    tasks.allocate_cluster()
    monkeypatch.setattr(tasks, "cycle_run", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tasks.allocate_cluster()
    found = samples(settings)
    assert found["virtualflow_cycles_total", ("succeeded",)] == 1
    assert found["virtualflow_cycles_total", ("failed",)] == 1
    assert found["virtualflow_cycle_seconds_total", ()] > 0
    failed_at = timezone.now() - datetime.timedelta(minutes=2)
    ClusterSetting.objects.update(cycle_failed_at=failed_at)
    assert samples(settings)["virtualflow_cycle_failing_seconds", ()] > 119


def test_refused_reports_are_counted(ada: User, settings: Any) -> None:
    world = World(num_nodes=1)
    job_make(ada)
    world.cycle()
    (played,) = world.nodes
    world.follow(played)
    trainer = next(iter(played.trainers.values()))
    played.say(trainer, ReportKind.STEPS, first_step="one")
    world.follow(played)
    assert samples(settings)["virtualflow_reports_refused_total", ()] == 1


def test_implausible_reports_are_counted_by_reason(ada: User, settings: Any) -> None:
    world, job = World(num_nodes=1), job_make(ada)
    world.settle()
    played, trainer = world.leader_of(job)
    steps = {"first_step": 1, "last_step": 2, "epoch": 0, "examples": 64, "num_accelerators": 2}
    played.say(trainer, ReportKind.STEPS, **steps, seconds=1000.0)
    world.tell(played)
    name = "virtualflow_reports_implausible_total"
    assert samples(settings)[name, ("too_slow",)] == 1
    assert samples(settings)[name, ("too_fast",)] == 0


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "page"), ("/jobs/7/", "page"), ("/nonsense", "page"), ("/static/x.js", "static"),
        ("/api/v1/jobs/", "rest"), ("/api/v1/jobs/7/?wait=30", "rest_wait"),
        ("/api/v1/agent/wanted/?version=a&wait=25", "agent_wait"), ("/stream/", "stream"),
        ("/api/v1/jobs/?tag=wait=", "rest"), ("/jobs/?x=1&wait=3", "page"),
        ("/api/v1/agent/reports/", "agent"), ("/metrics", "probe"), ("/readyz", "probe"),
    ],
)  # fmt: skip
def test_a_request_has_one_of_few_kinds(path: str, kind: str) -> None:
    assert request_kind(RequestFactory().get(path)) == kind


def test_requests_and_their_time_are_counted(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 0.02, 10.0, 10.3, 20.0, 120.0])
    monkeypatch.setattr("jobs.request_counts.time.monotonic", lambda: next(times))
    statuses = iter([200, 404, 200])
    answer: Callable[[Any], Any] = requests_counted(lambda _: HttpResponse(status=next(statuses)))
    for _ in range(3):
        answer(RequestFactory().get("/api/v1/jobs/"))
    monkeypatch.undo()
    settings.METRICS_TOKEN = TOKEN
    found = samples(settings)
    assert found["virtualflow_requests_total", ("rest", "2xx")] == 2
    assert found["virtualflow_requests_total", ("rest", "4xx")] == 1
    below = {bound: found["virtualflow_request_seconds_bucket", ("rest", bound)]
             for bound in ("0.01", "0.025", "0.25", "0.5", "10.0", "+Inf")}  # fmt: skip
    assert below == {"0.01": 0, "0.025": 1, "0.25": 1, "0.5": 2, "10.0": 2, "+Inf": 3}
    assert found["virtualflow_request_seconds_count", ("rest",)] == 3
    assert found["virtualflow_request_seconds_sum", ("rest",)] == pytest.approx(100.32)


@pytest.mark.redis
def test_processes_share_their_counters(
    broker: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for process in ("a", "b"):
        monkeypatch.setattr(counters, "_PROCESS", process)
        counters.count("reports_refused", amount=2)
        counters.flush()
        counters.share_tell("watchers", 3)
    counters.count("reports_refused")  # not sent yet
    found = samples(settings)
    assert found["virtualflow_reports_refused_total", ()] == 5
    assert found["virtualflow_stream_watchers", ()] == 6
    for queue in ("celery", "notifications", "replays"):
        assert found["virtualflow_task_queue_length", (queue,)] == 0
    assert found["virtualflow_redis_up", ()] == 1
    tasks.allocate_cluster()
    assert 0 <= samples(settings)["virtualflow_cycle_age_seconds", ()] < 600


def test_a_redis_that_is_away_keeps_the_rest(settings: Any) -> None:
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    nudges.client.cache_clear()
    counters.count("reports_refused")
    found = samples(settings)
    assert found["virtualflow_redis_up", ()] == 0
    assert ("virtualflow_jobs", ("pending",)) in found
    assert ("virtualflow_reports_refused_total", ()) not in found
    assert not counters.is_flush_due()  # not at each request
    settings.REDIS_URL = ""
    nudges.client.cache_clear()
    assert counters.counted()[("reports_refused",)] == 1


@pytest.mark.redis
def test_dashboard_and_page_know_exactly_these_metrics(
    broker: redis.Redis, ada: User, settings: Any
) -> None:
    World(num_nodes=1)
    now = timezone.now()
    ReadingBin.objects.create(
        accelerator=Accelerator.objects.all()[0], width_s=60, at=now, read_at=now, num_readings=1,
        utilisation_percent=1, memory_bytes=1, temperature_c=1, power_w=1,
    )  # fmt: skip
    tasks.allocate_cluster()
    Client().get("/healthz")
    text = scrape(settings)
    exposed = {name for name, _ in samples(settings)}
    exposed -= {name for name in exposed if name.endswith("_created")}
    assert "ada" not in text
    dashboard = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for expression in asked for name in re.findall(r"virtualflow_\w+", expression)}
    assert names - exposed == set()
    whole = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed}
    assert {re.sub(r"_bucket$", "", name) for name in names} == whole
    page = (ROOT / "docs/operations.md").read_text()
    assert {*re.findall(r"`(virtualflow_\w+)", page)} == whole
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
