"""The pages of "what if"."""

from __future__ import annotations

import json
import re

from django.conf import settings
from django.test import Client

from jobs.models import AcceleratorPrice, Event, Replay, ReplayStatus
from tests.frontend.world import World

DASH = "\N{EN DASH}"


def test_the_form_starts_from_what_there_is(world: World, admin: Client) -> None:
    page = admin.get("/what-if/").content.decode()
    assert 'name="kind-cpu" type="number" min="0" step="1" inputmode="numeric" value="8"' in page
    assert 'name="kind-t4"' in page
    assert f'<option value="{settings.DEFAULT_POLICY}" selected>' in page


def test_a_question_is_asked(world: World, admin: Client) -> None:
    response = admin.post(
        "/what-if/ask/", {"policy": "priority", "kind-cpu": "32", "kind-t4": "", "hours": "3"}
    )
    replay = Replay.objects.latest("id")
    assert response.headers["Location"] == f"/what-if/{replay.pk}/"
    assert (replay.policy, replay.accelerators, replay.status) == (
        "priority", {"cpu": 32, "t4": 2}, "waiting",
    )  # fmt: skip
    assert replay.requested_by == world.admin
    assert b"as soon as the worker is free" in admin.get(response.headers["Location"]).content


def test_a_wrong_question_comes_back_with_its_fault(world: World, admin: Client) -> None:
    before = Replay.objects.count()
    response = admin.post("/what-if/ask/", {"policy": "fifo", "kind-cpu": "many", "hours": "1"})
    assert response.status_code == 400
    page = response.content.decode()
    assert "Give a whole number from 0 on for cpu." in page
    assert 'value="many"' in page
    response = admin.post("/what-if/ask/", {"policy": "fifo", "hours": "9999"})
    assert "Give whole hours from 1 to 720." in response.content.decode()
    assert Replay.objects.count() == before


def test_an_answer_shows_three_pasts(world: World, admin: Client) -> None:
    replay = Replay.objects.get(status=ReplayStatus.DONE)
    page = admin.get(f"/what-if/{replay.pk}/").content.decode()
    row = page.split("Mean completion time</th>")[1].split("</tr>")[0]
    assert re.findall(r'data-label="([a-z ]+)">(?:<strong>)?([^<]+)<', row) == [
        ("recorded", "520 s"), ("replayed", "520 s"), ("what if", "260 s"), ("change", "-50%"),
    ]  # fmt: skip
    assert "was left out" in page


def test_scenarios_stand_side_by_side(world: World, admin: Client) -> None:
    def row() -> list[str]:
        page = admin.get("/what-if/").content.decode()
        line = page.split(f'data-key="replay-{replay.pk}"')[1].split("</tr>")[0]
        return re.findall(r'"number[^>]*>([^<]*)<', line)

    AcceleratorPrice.objects.all().delete()
    replay = Replay.objects.get(status=ReplayStatus.DONE)
    assert row() == ["2", "260 s", "300 s"]
    AcceleratorPrice.objects.create(kind="cpu", per_hour=3.0)
    assert row() == ["2", "260 s", "300 s", DASH]  # t4 has no price
    AcceleratorPrice.objects.create(kind="t4", per_hour=6.0)
    assert row() == ["2", "260 s", "300 s", "5.00"]  # (16 * 3 + 2 * 6) an hour
    replay = Replay.objects.get(status=ReplayStatus.RUNNING)
    assert row() == [""] * 4


def test_an_answer_has_the_cost_if_prices_are_set(world: World, admin: Client) -> None:
    def cost() -> list[str]:
        page = admin.get(f"/what-if/{replay.pk}/").content.decode()
        _, _, rest = page.partition("Cost of all accelerators until then</th>")
        return re.findall(r'"number"[^>]*>(?:<strong>)?([^<]+)<', rest.split("</tr>")[0])

    AcceleratorPrice.objects.all().delete()
    replay = Replay.objects.get(status=ReplayStatus.DONE)
    assert cost() == []
    for kind, price in (("cpu", 3.0), ("t4", 6.0)):
        AcceleratorPrice.objects.create(kind=kind, per_hour=price)
    # (8 * 3 + 2 * 6) an hour for 600 s, and (16 * 3 + 2 * 6) for 300 s.
    assert cost() == ["6.00", "6.00", "5.00", "-17%"]


def test_an_answer_shows_each_tier(world: World, admin: Client) -> None:
    replay = Replay.objects.get(status=ReplayStatus.DONE)
    page = admin.get(f"/what-if/{replay.pk}/").content.decode()
    shown = {}
    for name in ("urgent", "idle"):
        for text in ("mean completion time", "mean time until the first step"):
            row = page.split(f"1 {name} job: {text}</th>")[1].split("</tr>")[0]
            shown[name, text.split()[1]] = re.findall(r'"number"[^>]*>(?:<strong>)?([^<]+)<', row)
    assert shown == {
        ("urgent", "completion"): ["500 s", "520 s", "260 s", "-50%"],
        ("urgent", "time"): [DASH, "12 s", "3 s", "-75%"],
        ("idle", "completion"): [DASH, "520 s", "260 s", "-50%"],
        ("idle", "time"): [DASH, "12 s", "3 s", "-75%"],
    }


def test_the_figures_have_one_time_axis(world: World, admin: Client) -> None:
    replay = Replay.objects.get(status=ReplayStatus.DONE)
    figures = admin.get(f"/what-if/{replay.pk}/figures/").json()
    recorded, changed = figures["recorded"], figures["changed"]
    assert recorded["layout"]["xaxis"] == changed["layout"]["xaxis"]
    assert [entry["label"] for entry in recorded["legend"]][-1] == "capacity 10"
    assert [entry["label"] for entry in changed["legend"]][-1] == "capacity 18"
    bars = {trace["name"]: trace["y"] for trace in figures["completion"]["data"]}
    assert bars == {"as it was": [8.67, 8.67], "what if": [4.33, 4.33]}
    first = figures["completion"]["table"]["rows"][0]
    assert first[1:] == ["500", "520", "260", "-50%"]


def test_there_are_no_figures_before_there_is_an_answer(world: World, admin: Client) -> None:
    replay = Replay.objects.get(status=ReplayStatus.RUNNING)
    assert b"40 % of both replays" in admin.get(f"/what-if/{replay.pk}/").content
    figures = admin.get(f"/what-if/{replay.pk}/figures/").json()
    assert figures["completion"]["data"] == []
    assert json.dumps(figures).count('"capacity"') == 1  # of the cluster that is tried


def test_cancelling_and_forgetting(world: World, admin: Client) -> None:
    replay = Replay.objects.get(status=ReplayStatus.RUNNING)
    assert admin.post(f"/what-if/{replay.pk}/cancel/").headers["Location"] == "/what-if/"
    replay.refresh_from_db()
    assert replay.status == ReplayStatus.CANCELLED
    admin.post(f"/what-if/{replay.pk}/cancel/")
    assert not Replay.objects.filter(id=replay.pk).exists()
    assert admin.post(f"/what-if/{replay.pk}/cancel/").status_code == 404


def test_nothing_of_it_touches_what_runs(world: World, admin: Client) -> None:
    before = Event.objects.count()
    admin.post("/what-if/ask/", {"policy": "fifo", "hours": "1"})
    assert Event.objects.count() == before
