"""Nodes, enrolment tokens, policy, cluster, templates, API tokens, OpenAPI, health."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from jobs.exceptions import ForbiddenError
from jobs.job_templates import JOB_TEMPLATES
from jobs.models import ApiToken, EnrolmentToken, Event, Node
from jobs.services.cluster.api_tokens import api_token_create
from jobs.services.cluster.nodes import enrolment_token_create, node_enrol
from jobs.services.scheduling.cycle import cycle_run
from tests.jobs.world import World
from tests.support.builders import (
    agent_client,
    api_token_make,
    enrol_request,
    job_make,
    logged_in,
    node_make,
)

Clients = Callable[..., APIClient]


def test_nodes(ada: User, client_of: Clients) -> None:
    node_make("alpha", 2)
    beta, _ = node_make("beta", 1)
    client = client_of(ada)
    rows = client.get("/api/v1/nodes/").json()["results"]
    assert {row["name"]: len(row["accelerators"]) for row in rows} == {"alpha": 2, "beta": 1}
    one = client.get(f"/api/v1/nodes/{beta.pk}/").json()
    assert (one["status"], one["accelerators"][0]["kind"]) == ("online", "cpu")
    assert "agent_token_digest" not in one
    assert client.get(f"/api/v1/nodes/{beta.pk + 1}/").status_code == 404


def test_only_admins_cordon(ada: User, admin: User, client_of: Clients) -> None:
    node, _ = node_make()
    url = f"/api/v1/nodes/{node.pk}/cordon/"
    assert client_of(ada).post(url).status_code == 403
    for _ in range(2):
        response = client_of(admin).post(url, {"reason": "new fan"})
        assert (response.status_code, response.data["status"]) == (200, "cordoned")
    event = Event.objects.get(kind="node_cordoned")
    assert (event.actor, event.data) == ("user:admin", {"reason": "new fan"})
    for verb, status in (("drain", "draining"), ("cordon", "cordoned"), ("uncordon", "online")):
        response = client_of(admin).post(f"/api/v1/nodes/{node.pk}/{verb}/")
        assert response.data["status"] == status
    kinds = ["node_cordoned", "node_drained", "node_cordoned", "node_uncordoned"]
    assert [event.kind for event in Event.objects.filter(node=node).order_by("id")][1:] == kinds
    assert client_of(admin).post(f"/api/v1/nodes/{node.pk + 1}/cordon/").status_code == 404
    assert client_of(admin).get(url).status_code == 405


def test_only_admins_make_enrolment_tokens(ada: User, admin: User, client_of: Clients) -> None:
    url = "/api/v1/enrolment-tokens/"
    assert client_of(ada).post(url).status_code == 403
    assert client_of(admin).post(url).data["token"].startswith("vfe_")
    assert client_of(admin).put(url).status_code == 405


def test_a_request_without_fields_takes_none(admin: User, client_of: Clients) -> None:
    for path in ("enrolment-tokens", f"nodes/{node_make()[0].pk}/new-token", "channels/1/test"):
        response = client_of(admin).post(f"/api/v1/{path}/", {"node": "a"})
        assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert not EnrolmentToken.objects.filter(used_at=None).exists()


def test_the_policy_is_switched_by_admins(ada: User, admin: User, client_of: Clients) -> None:
    url, client = "/api/v1/policy/", client_of(admin)
    first = client_of(ada).get(url).json()
    assert first["policy"] == settings.DEFAULT_POLICY
    assert {"fifo", "priority", "weighted_fair"} <= set(first["policies"])
    assert client_of(ada).put(url, {"policy": "fifo"}).status_code == 403
    given = {"policy": "fifo", "version": first["version"], "reason": "to compare"}
    response = client.put(url, given)
    assert (response.status_code, response.data["policy"]) == (200, "fifo")
    stale = client.put(url, {"policy": "priority", "version": first["version"]})
    assert (stale.status_code, stale.json()["code"]) == (412, "stale_version")
    again = client.put(url, {"policy": "fifo"})
    assert (again.status_code, again.data["version"]) == (200, response.data["version"])
    wrong = client.put(url, {"policy": "astrology"})
    assert (wrong.status_code, set(wrong.json()["errors"])) == (400, {"policy"})
    wrong = client.put(url, {"policy": "fifo", "version": "1"})
    assert (wrong.status_code, set(wrong.json()["errors"])) == (400, {"version"})
    event = Event.objects.get(kind="policy")
    assert event.data == {
        "before": settings.DEFAULT_POLICY,
        "after": "fifo",
        "reason": "to compare",
    }


def test_the_cluster_hides_whose_other_jobs_are(
    ada: User, bob: User, admin: User, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = job_make(ada, max_accelerators=1), job_make(bob, max_accelerators=1)
    world = World(num_nodes=1)
    world.settle(3)
    monkeypatch.setattr(timezone, "now", lambda: world.now + timedelta(seconds=1))
    token = client_of(ada)
    data = token.get("/api/v1/cluster/", {"last_s": 600}).json()
    assert data["num_accelerators"] == 2
    assert sorted((row["job"] or 0, row["name"]) for row in data["allocations"]) == [
        (0, None),
        (mine.pk, "a job"),
    ]
    everything = client_of(admin).get("/api/v1/cluster/", {"last_s": 600}).json()
    assert {row["job"] for row in everything["allocations"]} == {mine.pk, theirs.pk}
    wrong = token.get("/api/v1/cluster/", {"last_s": "1e9"})
    assert (wrong.status_code, set(wrong.json()["errors"])) == (400, {"last_s"})


def test_templates(ada: User, client_of: Clients) -> None:
    rows = client_of(ada).get("/api/v1/templates/").json()
    assert [row["name"] for row in rows] == list(JOB_TEMPLATES)
    name = rows[0]["name"]
    data = client_of(ada).get(f"/api/v1/templates/{name}/").json()
    assert data["code"] == JOB_TEMPLATES[name].code
    assert client_of(ada).get("/api/v1/templates/none/").status_code == 404


def test_expired_tokens_and_people_who_left(ada: User) -> None:
    _, old = api_token_create(ada, "old", timezone.now() - timedelta(days=91))
    new = api_token_make(ada)
    for text, status in ((old, 401), (new, 200)):
        response = APIClient(headers={"Authorization": f"Bearer {text}"}).get("/api/v1/jobs/")
        assert response.status_code == status
    ada.is_active = False
    ada.save()
    response = APIClient(headers={"Authorization": f"Bearer {new}"}).get("/api/v1/jobs/")
    assert response.status_code == 401
    assert ApiToken.objects.filter(user=ada).count() == 2


def test_a_session_writes_with_its_csrf_token_only(ada: User) -> None:
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(ada)
    job = job_make(ada)
    assert client.get(f"/api/v1/jobs/{job.pk}/").status_code == 200
    assert client.post(f"/api/v1/jobs/{job.pk}/cancel/").status_code == 403
    job.refresh_from_db()
    assert job.status == "pending"


@pytest.mark.django_db
def test_throttling_says_when_to_come_back(
    ada: User, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "jobs.api.throttles.api_settings.DEFAULT_THROTTLE_RATES", {"identity": "2/min"}
    )
    client = client_of(ada)
    # A minute may end between two of them, so one more than twice the limit is asked.
    answers = [client.get("/api/v1/policy/") for _ in range(5)]
    last = next(answer for answer in answers if answer.status_code == 429)
    assert 1 <= int(last.headers["Retry-After"]) <= 61
    assert last.json()["code"] == "throttled"


def test_the_openapi_document_names_every_route(ada: User, client_of: Clients) -> None:
    response = client_of(ada).get("/api/v1/schema/", HTTP_ACCEPT="application/json")
    assert response.status_code == 200
    text = response.content.decode()
    for part in ("/api/v1/jobs/{job_id}/reprioritise/", "/api/v1/policy/", "Idempotency-Key"):
        assert part in text
    document = response.json()
    for operations in document["paths"].values():
        for operation in operations.values():
            assert "application/problem+json" in operation["responses"]["default"]["content"]


def test_the_api_pages_work_under_the_content_security_policy(ada: User) -> None:
    client = logged_in(ada)
    response = client.get("/api/v1/docs/")
    assert response.status_code == 200
    page = response.content.decode()
    assert "https://" not in page
    scripts = re.findall(r"<script[^>]*>", page)
    assert scripts
    assert all("src=" in tag for tag in scripts)
    assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    assert 'data-theme="system"' in page
    client.post("/account/theme/", {"theme": "dark"})
    assert 'data-theme="dark"' in client.get("/api/v1/docs/").content.decode()


def test_health(db: None) -> None:
    assert Client().get("/healthz").json() == {"status": "ok"}
    ready = Client().get("/readyz")
    assert (ready.status_code, ready.json()["database"]) == (200, True)
    assert Client().post("/healthz").status_code == 405
    assert Node.objects.count() == 0


def test_unused_enrolment_tokens_are_listed_and_revoked(admin: User, client_of: Clients) -> None:
    url, client = "/api/v1/enrolment-tokens/", client_of(admin)
    node_make()  # its token is used
    enrolment_token_create(None, timezone.now() - timedelta(days=3))  # has expired
    made = client.post(url).json()
    assert client.get(url).json() == [{k: v for k, v in made.items() if k != "token"}]
    for status in (204, 404):
        assert client.delete(f"{url}{made['id']}/").status_code == status
    assert client.get(url).json() == []
    used = EnrolmentToken.objects.exclude(used_at=None).get()
    assert client.delete(f"{url}{used.pk}/").status_code == 404
    with pytest.raises(ForbiddenError):
        node_enrol(enrol_request(made["token"], "late"), timezone.now())


def test_throughput_of_the_cluster(
    ada: User, bob: User, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_make(ada)
    world = World(num_nodes=1)
    world.settle(3)
    world.train(job, 10)
    monkeypatch.setattr(timezone, "now", lambda: world.now + timedelta(seconds=1))
    (row,) = client_of(ada).get("/api/v1/cluster/").json()["throughput"]
    assert (row["job"], row["examples"], row["seconds"]) == (job.pk, 320, 1.0)
    (row,) = client_of(bob).get("/api/v1/cluster/").json()["throughput"]
    assert (row["job"], row["examples"]) == (None, 320)


def test_a_removed_node_is_told_so_and_its_jobs_go_elsewhere(
    ada: User, admin: User, client_of: Clients
) -> None:
    node, token = node_make("old", 1)
    job = job_make(ada, max_accelerators=1)
    cycle_run(timezone.now())
    url = f"/api/v1/nodes/{node.pk}/"
    assert client_of(ada).delete(url).status_code == 403
    assert client_of(admin).delete(url, {"reason": "sold"}).status_code == 204
    assert client_of(admin).delete(url).status_code == 404
    agent = agent_client(token)
    assert agent.get("/api/v1/agent/wanted/").status_code == 410
    job.refresh_from_db()
    assert (job.status, job.restarts) == ("pending", 1)
    node_make("old", 1)  # the name is free again
    cycle_run(timezone.now())
    job.refresh_from_db()
    assert job.status == "starting"
