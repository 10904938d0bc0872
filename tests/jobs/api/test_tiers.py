"""Tiers of jobs by REST: who may give them, lists, many at once, undo, preview."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import Count
from rest_framework.test import APIClient

from controlplane.core.values.tiers import TIERS
from jobs.models import Allocation, AuditEntry, Event, Job, UserLimits
from tests.jobs.world import World
from tests.support.builders import Clients, job_make, submission_values

pytestmark = pytest.mark.django_db

Way = Callable[[APIClient, Job, str], Any]
JOBS = "/api/v1/jobs/"
PREVIEW = f"{JOBS}actions/preview/"


def submit(client: APIClient, _job: Job, tier: str) -> Any:
    return client.post(JOBS, submission_values(tier=tier))


def dry_run(client: APIClient, _job: Job, tier: str) -> Any:
    return client.post(f"{JOBS}?dry_run=1", submission_values(tier=tier))


def clone(client: APIClient, job: Job, tier: str) -> Any:
    return client.post(f"{JOBS}{job.pk}/clone/", {"tier": tier})


def reprioritise(client: APIClient, job: Job, tier: str) -> Any:
    return client.post(f"{JOBS}{job.pk}/reprioritise/", {"tier": tier, "reason": "deadline"})


def preview(client: APIClient, job: Job, tier: str) -> Any:
    body = {"action": "reprioritise", "jobs": [job.pk], "tier": tier}
    return client.post(PREVIEW, body, format="json")


@pytest.mark.parametrize("way", [submit, dry_run, clone, reprioritise, preview])
def test_no_way_leads_above_the_ceiling(
    way: Way, ada: User, bob: User, admin: User, client_of: Clients
) -> None:
    job, client = job_make(ada), client_of(ada)
    refused = way(client, job, "urgent")
    assert (refused.status_code, set(refused.json()["errors"])) == (400, {"tier"})
    assert "normal" in refused.json()["errors"]["tier"][0]
    for tier in ("normal", "idle"):
        assert way(client, job, tier).status_code in (200, 201)
    UserLimits.objects.create(user=ada, tier_ceiling="urgent")
    UserLimits.objects.create(user=bob, tier_ceiling="idle")
    assert way(client, job, "urgent").status_code in (200, 201)
    assert way(client_of(bob), job_make(bob), "normal").status_code == 400
    assert way(client_of(bob), job_make(bob), "idle").status_code in (200, 201)
    assert way(client_of(admin), job, "urgent").status_code in (200, 201)
    member = client_of(admin, ("jobs:read", "jobs:write"))
    assert way(member, job_make(admin), "urgent").status_code == 400
    for nonsense in ("URGENT", "", 7, ["idle"]):
        assert way(client, job, nonsense).status_code in (400, *(() if nonsense else (200, 201)))


def test_the_ceiling_is_set_and_told(ada: User, admin: User, client_of: Clients) -> None:
    address = "/api/v1/users/ada/"
    root = client_of(admin)
    assert root.get(address).json()["tier_ceiling"] == "normal"
    assert root.patch(address, {"tier_ceiling": "urgent"}).json()["tier_ceiling"] == "urgent"
    assert client_of(ada).get("/api/v1/").json()["tier_ceiling"] == "urgent"
    assert client_of(ada).get("/api/v1/account/").json()["tier_ceiling"] == "urgent"
    assert root.patch(address, {"tier_ceiling": "royal"}).status_code == 400
    chosen = root.patch(address, {"tier_ceiling": None}, format="json").json()
    assert (chosen["tier_ceiling"], chosen["chosen"]) == ("normal", [])


def test_lists_are_filtered_and_sorted_by_tier(ada: User, client_of: Clients) -> None:
    jobs = {tier: job_make(ada, tier=tier.value).pk for tier in (TIERS[1], TIERS[2], TIERS[0])}
    client = client_of(ada)

    def listed(query: str) -> list[int]:
        return [row["id"] for row in client.get(f"{JOBS}?{query}").json()["results"]]

    assert listed("order=-tier") == [jobs[tier] for tier in TIERS]
    assert listed("order=tier&page_size=2") == [jobs[TIERS[2]], jobs[TIERS[1]]]
    assert listed("tier=idle") == [jobs[TIERS[2]]]
    assert listed("tier=idle&tier=urgent&order=tier") == [jobs[TIERS[2]], jobs[TIERS[0]]]
    assert client.get(f"{JOBS}?tier=royal").status_code == 400
    assert client.get(f"{JOBS}?fields=id,tier").json()["results"][0]["tier"] == "urgent"


def test_a_change_leaves_events_and_an_entry(ada: User, admin: User, client_of: Clients) -> None:
    job = job_make(ada)
    body = {"tier": "urgent", "priority": 300}
    address = f"{JOBS}{job.pk}/reprioritise/"
    assert client_of(admin).post(address, body).json()["errors"] == {
        "reason": ["Say why: the owner will read it."]
    }
    answer = client_of(admin).post(address, {**body, "reason": "the paper is due"}).json()
    assert (answer["tier"], answer["priority"]) == ("urgent", 300)
    messages = [*Event.objects.order_by("id").values_list("message", flat=True)]
    assert messages == [
        "Tier normal → urgent: the paper is due",
        "Priority 100 → 300: the paper is due",
    ]
    entries = AuditEntry.objects.filter(action="priority_changed", object=f"job:{job.pk}")
    assert {entry.details["after"] for entry in entries} == {"urgent", 300}
    assert client_of(ada).post(address, {}).json()["errors"] == {
        "priority": ["Give a priority, a tier, or both."]
    }


def test_many_are_changed_and_taken_back(ada: User, client_of: Clients) -> None:
    jobs = [
        job_make(ada, tier=tier, priority=priority)
        for tier, priority in (("normal", 5), ("normal", 9), ("idle", 9), ("normal", 5))
    ]
    numbers = [job.pk for job in jobs]
    client = client_of(ada)
    body = {"action": "reprioritise", "jobs": numbers, "tier": "idle", "priority": 9}
    answer = client.post(f"{JOBS}actions/", body, format="json").json()
    assert [row["changed"] for row in answer["results"]] == [True, True, False, True]
    assert {*Job.objects.values_list("tier", "priority")} == {("idle", 9)}
    assert [sorted(one.keys() & {"tier", "priority"}) for one in answer["undo"][0]["changes"]] == [
        ["priority", "tier"],
        ["tier"],
        ["priority", "tier"],
    ]
    for undo in answer["undo"]:
        client.post(f"{JOBS}actions/", undo, format="json")
    assert [*Job.objects.order_by("pk").values_list("tier", "priority")] == [
        (job.tier, job.priority) for job in jobs
    ]


def test_the_preview_tells_what_then_happens(ada: User, admin: User, client_of: Clients) -> None:
    world = World(1, 4)
    own = job_make(ada, max_accelerators=4, num_virtual_nodes=4)
    world.settle()
    other = job_make(admin, max_accelerators=1, num_virtual_nodes=4, tier="idle")
    world.settle()
    before = (Event.objects.count(), Job.objects.get(pk=own.pk).revision)
    body = {"action": "reprioritise", "jobs": [other.pk], "tier": "urgent"}
    found = client_of(admin).post(PREVIEW, body, format="json").json()
    assert found["moves"] == [
        {"job": own.pk, "name": own.name, "held": 4, "wanted": 3},
        {"job": other.pk, "name": other.name, "held": 0, "wanted": 1},
    ]
    assert (found["policy"], found["num_others"]) == ("weighted_fair", 0)
    both = {own.pk: {"tier": "idle"}, other.pk: {"tier": "normal", "priority": 1}}
    changes = [{"job": number, **change} for number, change in both.items()]
    body = {"action": "reprioritise", "changes": changes}
    found = client_of(admin).post(PREVIEW, body, format="json").json()
    assert [(move["job"], move["wanted"]) for move in found["moves"]] == [
        (own.pk, 3),
        (other.pk, 1),
    ]
    body = {"action": "reprioritise", "jobs": [own.pk], "tier": "idle"}
    mine = client_of(ada).post(PREVIEW, body, format="json").json()
    assert ([move["job"] for move in mine["moves"]], mine["num_others"]) == ([own.pk], 1)
    assert before == (Event.objects.count(), Job.objects.get(pk=own.pk).revision)
    body["jobs"] = [other.pk]
    assert client_of(ada).post(PREVIEW, body, format="json").status_code == 404
    body = {"action": "cancel", "jobs": [own.pk]}
    assert client_of(ada).post(PREVIEW, body, format="json").status_code == 400
    reprioritise(client_of(admin), other, "urgent")
    world.settle()
    held = Allocation.objects.filter(released_at=None).values_list("job").annotate(Count("id"))
    assert dict(held) == {own.pk: 3, other.pk: 1}
    own.refresh_from_db()
    named = f"another user's job {other.pk}"
    assert f"Higher tiers come first: {named} (urgent) got 1 of 4 cpu" in own.policy_reason
