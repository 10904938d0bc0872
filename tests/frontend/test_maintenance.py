"""Page of maintenance windows, and what pages of nodes show of them."""

from __future__ import annotations

from datetime import timedelta

from django.test import Client
from django.utils import timezone

from jobs.models import MaintenanceWindow, Node
from tests.frontend.world import World

URL = "/nodes/maintenance/"


def fields(*nodes: int, minutes: float = 60.0, **other: str) -> dict[str, str | list[int]]:
    start = timezone.now() + timedelta(minutes=minutes)
    form = "%Y-%m-%dT%H:%M"
    times = {
        "starts_at": start.strftime(form),
        "ends_at": (start + timedelta(hours=2)).strftime(form),
    }
    return {"nodes": [*nodes], "reason": "a louder fan", **times, **other}


def test_windows_are_planned_shown_and_cancelled(world: World, admin: Client, ada: Client) -> None:
    first, second = (node.pk for node in world.nodes[:2])
    page = admin.post(URL, fields(first, second), follow=True).content.decode()
    assert "Maintenance of node-a, node-b is planned." in page
    shown = ada.get(URL).content.decode()
    assert shown.count("a louder fan") == 2
    assert "user:admin" not in shown
    assert "Plan maintenance" not in shown
    assert "user:admin" in page
    assert "maintenance from <time" in ada.get("/nodes/").content.decode()
    assert "maintenance from <time" in ada.get(f"/nodes/{first}/").content.decode()
    window = MaintenanceWindow.objects.get(node=first)
    page = admin.post(f"{URL}{window.pk}/cancel/", follow=True).content.decode()
    assert "Maintenance of node-a is cancelled." in page
    assert page.count("a louder fan") == 1
    assert "maintenance from <time" not in ada.get(f"/nodes/{first}/").content.decode()
    assert admin.post(f"{URL}4711/cancel/").status_code == 404


def test_a_node_in_maintenance_says_until_when(world: World, admin: Client, ada: Client) -> None:
    node = world.nodes[0].pk
    admin.post(URL, fields(node, minutes=4.0))
    page = ada.get(f"/nodes/{node}/").content.decode()
    assert '>maintenance</span> <span class="note note-near">from <time' in page
    Node.objects.filter(pk=node).update(maintenance_from=timezone.now() - timedelta(hours=1))
    page = ada.get(f"/nodes/{node}/").content.decode()
    assert '>maintenance</span> <span class="note note-near">until <time' in page


def test_errors_stand_with_their_fields(world: World, admin: Client, ada: Client) -> None:
    node = world.nodes[0].pk
    response = admin.post(URL, fields(node, minutes=-90.0, reason=""))
    assert set(response.context["form"].errors) == {"reason"}
    response = admin.post(URL, fields(node, minutes=-90.0))
    assert set(response.context["form"].errors) == {"starts_at"}
    assert "This has passed" in response.content.decode()
    response = admin.post(URL, fields(4711))
    assert set(response.context["form"].errors) == {"nodes"}
    assert admin.post(URL, {}).status_code == 200
    assert ada.post(URL, fields(node)).status_code == 404
    assert not MaintenanceWindow.objects.exists()


def test_the_preview_keeps_what_was_filled_in(world: World, admin: Client, ada: Client) -> None:
    node = world.nodes[0].pk
    page = admin.get(f"{URL}?nodes={node}").content.decode()
    assert "Which jobs would move if maintenance of node-a began now?" in page
    page = admin.post(URL, {"nodes": [node], "reason": "a louder fan", "preview": "1"})
    assert "a louder fan" in page.content.decode()
    assert "This field is required" not in page.content.decode()
    assert len(page.context["preview"]["moves"]) > 0
    assert "preview" not in ada.get(f"{URL}?nodes={node}").context
    for nonsense in ("x", "-1", "9" * 40):
        assert admin.get(f"{URL}?nodes={nonsense}").status_code == 200
    assert not MaintenanceWindow.objects.exists()
