"""Users cannot give themselves any share: priorities have a ceiling that admins set (M9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from rest_framework.test import APIClient

from jobs.models import AuditEntry, Job, UserLimits
from tests.support.builders import Clients, api_token_make, job_make, logged_in, submission_values

pytestmark = pytest.mark.django_db

Way = Callable[[APIClient, Job, int], Any]


def submit(client: APIClient, _job: Job, priority: int) -> Any:
    return client.post("/api/v1/jobs/", submission_values(priority=priority))


def dry_run(client: APIClient, _job: Job, priority: int) -> Any:
    return client.post("/api/v1/jobs/?dry_run=1", submission_values(priority=priority))


def clone(client: APIClient, job: Job, priority: int) -> Any:
    return client.post(f"/api/v1/jobs/{job.pk}/clone/", {"priority": priority})


def reprioritise(client: APIClient, job: Job, priority: int) -> Any:
    body = {"priority": priority, "reason": "deadline"}
    return client.post(f"/api/v1/jobs/{job.pk}/reprioritise/", body)


@pytest.mark.parametrize("way", [submit, dry_run, clone, reprioritise])
def test_no_way_leads_above_the_ceiling(
    way: Way, ada: User, bob: User, admin: User, client_of: Clients
) -> None:
    job = job_make(ada)
    client = client_of(ada)
    refused = way(client, job, 101)
    assert (refused.status_code, set(refused.json()["errors"])) == (400, {"priority"})
    assert "100" in refused.json()["errors"]["priority"][0]
    assert way(client, job, 100).status_code in (200, 201)
    UserLimits.objects.create(user=ada, priority_ceiling=300)
    UserLimits.objects.create(user=bob, priority_ceiling=50)
    assert way(client, job, 300).status_code in (200, 201)
    assert "300" in way(client, job, 301).json()["errors"]["priority"][0]
    assert "50" in way(client_of(bob), job_make(bob), 51).json()["errors"]["priority"][0]
    assert way(client_of(admin), job, 1000).status_code in (200, 201)
    member = client_of(admin, ("jobs:read", "jobs:write"))
    assert way(member, job_make(admin), 101).status_code == 400


def test_pages_refuse_and_show_it(ada: User) -> None:
    client, job = logged_in(ada), job_make(ada)
    fields = {"code_from": "template:tabular", "name": "x", "task": "train", "priority": "101"}
    fields |= {"global_batch_size": "32", "num_virtual_nodes": "4", "stop_kind": "epochs"}
    fields |= {"stop_limit": "1", "settings": "{}", "seed": "0", "reduction": "exact"}
    for do in ("submit", "check"):
        page = client.post("/jobs/new/", {**fields, "do": do})
        assert list(page.context["form"].errors) == ["priority"]
    assert "1 to 100; inside a tier, a weight" in client.get("/jobs/new/").content.decode()
    client.post(f"/jobs/{job.pk}/priority/", {"priority": "101"})
    job.refresh_from_db()
    assert job.priority == 100
    assert 'max="100"' in client.get(f"/jobs/{job.pk}/").content.decode()


def test_a_superuser_sets_a_ceiling_in_the_admin_site(ada: User) -> None:
    client = logged_in(User.objects.create_superuser("root"))
    address = reverse("admin:auth_user_change", args=[ada.pk])
    fields = {"username": "ada", "is_active": "on", "date_joined_0": "2026-11-24"}
    fields |= {"date_joined_1": "00:00:00", "limits-0-priority_ceiling": "400"}
    fields |= {"limits-TOTAL_FORMS": "1", "limits-INITIAL_FORMS": "0"}
    fields |= {"limits-0-user": str(ada.pk), "limits-0-share_factor": "1.5"}
    fields |= {"external_identities-TOTAL_FORMS": "0", "external_identities-INITIAL_FORMS": "0"}
    assert client.post(address, fields).status_code == 302
    found = UserLimits.objects.get()
    assert (found.priority_ceiling, found.share_factor) == (400, 1.5)
    entry = AuditEntry.objects.get(action="user_changed")
    assert (entry.actor, entry.object) == ("user:root", "user:ada")
    assert "ceiling" in str(entry.details["changes"])


def test_a_priority_changed_by_an_admin_is_audited(ada: User, admin: User) -> None:
    job = job_make(ada)
    for user in (ada, admin):
        client = APIClient(headers={"Authorization": f"Bearer {api_token_make(user)}"})
        assert reprioritise(client, job, 90 if user == ada else 500).status_code == 200
    entry = AuditEntry.objects.get(action="priority_changed")
    assert (entry.actor, entry.object) == ("user:admin", f"job:{job.pk}")
    assert entry.details["after"] == 500
