"""Maintenance windows by REST."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from jobs.models import AuditEntry, Event, MaintenanceWindow, Node
from jobs.services.cluster.maintenance import windows_advance
from jobs.tasks import expire_nodes
from tests.support.builders import Clients, node_make

pytestmark = pytest.mark.django_db
URL = "/api/v1/maintenance-windows/"


def body(*nodes: Node, hours: float = 1.0, **other: Any) -> dict[str, Any]:
    start = timezone.now() + timedelta(hours=hours)
    times = {"starts_at": start.isoformat(), "ends_at": (start + timedelta(hours=1)).isoformat()}
    return {"nodes": [node.pk for node in nodes], "reason": "new fan", **times, **other}


def test_a_window_is_planned_listed_and_cancelled(
    ada: User, admin: User, client_of: Clients
) -> None:
    (first, _), (second, _) = node_make(), node_make()
    client = client_of(admin)
    response = client.post(URL, body(first, second), format="json")
    assert response.status_code == 201
    one, other = response.json()
    assert (one["node"], one["node_name"], one["status"]) == (first.pk, first.name, "planned")
    assert other["planned_by"] == "user:admin"
    shown = client_of(ada).get(URL).json()
    assert [row["planned_by"] for row in shown] == ["", ""]
    assert [row["reason"] for row in shown] == ["new fan", "new fan"]
    node = client_of(ada).get(f"/api/v1/nodes/{first.pk}/").json()
    assert (node["status"], node["maintenance_from"]) == ("online", one["starts_at"])
    for _ in range(2):
        ended = client.post(f"{URL}{one['id']}/cancel/", {"reason": "no fan"})
        assert (ended.status_code, ended.json()["status"]) == (200, "cancelled")
    assert [row["id"] for row in client.get(URL).json()] == [other["id"]]
    entries = AuditEntry.objects.filter(action__startswith="maintenance").order_by("pk")
    assert [entry.action.removeprefix("maintenance_") for entry in entries] == [
        *("planned", "planned", "cancelled"),
    ]
    assert entries[2].details["reason"] == "no fan"


def test_the_status_in_a_window(admin: User, client_of: Clients) -> None:
    node, _ = node_make()
    client = client_of(admin)
    client.post(URL, body(node, hours=0.05), format="json")  # within the lead
    url = f"/api/v1/nodes/{node.pk}/"
    assert client.get(url).json()["status"] == "maintenance"
    assert client.get(url).json()["is_cordoned"] is False
    client.post(f"{url}uncordon/")
    assert client.get(url).json()["status"] == "maintenance"
    now = timezone.now()
    MaintenanceWindow.objects.update(starts_at=now - timedelta(hours=1))
    expire_nodes()
    assert Event.objects.filter(kind="maintenance_began", node=node).exists()
    (row,) = client.get(URL).json()
    assert row["status"] == "under way"
    windows_advance(now + timedelta(days=1))
    assert client.get(url).json()["status"] == "online"
    ended = client.post(f"{URL}{row['id']}/cancel/")
    assert (ended.status_code, ended.json()["code"]) == (409, "window_ended")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"nodes": []}, "nodes"),
        ({"nodes": [4711]}, "nodes"),
        ({"nodes": [2**70]}, "nodes"),
        ({"nodes": "all"}, "nodes"),
        ({"starts_at": "soon"}, "starts_at"),
        ({"starts_at": "2020-01-01T00:00:00Z"}, "starts_at"),
        ({"starts_at": "0001-01-01T00:00:00+14:00"}, "starts_at"),
        ({"starts_at": None}, "starts_at"),
        ({"ends_at": "2020-01-01T00:00:00Z"}, "ends_at"),
        ({"ends_at": "9999-12-31T23:59:59-12:00"}, "ends_at"),
        ({"reason": ""}, "reason"),
        ({"reason": " "}, "reason"),
        ({"reason": "\0"}, "reason"),
        ({"reason": "x" * 501}, "reason"),
    ],
)
def test_bad_fields_are_named(
    change: dict[str, Any], field: str, admin: User, client_of: Clients
) -> None:
    node, _ = node_make()
    response = client_of(admin).post(URL, body(node, **change), format="json")
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert field in response.json()["errors"]
    assert not MaintenanceWindow.objects.exists()


def test_a_preview_changes_nothing(ada: User, admin: User, client_of: Clients) -> None:
    node, _ = node_make()
    given = {"nodes": [node.pk]}
    found = client_of(admin).post(f"{URL}?dry_run=1", given, format="json").json()
    assert found == {"dry_run": True, "change": "maintenance", "moves": [], "staying": []}
    for wrong in ({}, {"nodes": [4711]}):
        response = client_of(admin).post(f"{URL}?dry_run=1", wrong, format="json")
        assert (response.status_code, set(response.json()["errors"])) == (400, {"nodes"})
    assert client_of(ada).post(f"{URL}?dry_run=1", given, format="json").status_code == 403
    assert not MaintenanceWindow.objects.exists()


def test_only_admins_plan_and_cancel(ada: User, admin: User, client_of: Clients) -> None:
    node, _ = node_make()
    assert client_of(ada).post(URL, body(node), format="json").status_code == 403
    (row,) = client_of(admin).post(URL, body(node), format="json").json()
    assert client_of(ada).post(f"{URL}{row['id']}/cancel/").status_code == 403
    for number in (4711, 10**30):
        assert client_of(admin).post(f"{URL}{number}/cancel/").status_code == 404
    assert client_of(admin).get(f"{URL}{row['id']}/cancel/").status_code == 405
