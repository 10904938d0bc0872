"""The pages of "what if"."""

from __future__ import annotations

import datetime
import json
import re

import pytest
from django.conf import settings
from django.http import QueryDict
from django.test import Client

from frontend.figures.replay import completion_figure
from jobs.exceptions import NotFoundError
from jobs.models import AcceleratorPrice, Allocation, Event, Replay, ReplayStatus
from jobs.selectors.replays import comparison_of
from jobs.services.cluster.replays import SCENARIOS_LIMIT
from tests.frontend.world import World

DASH, TIMES = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"


@pytest.fixture
def compared(world: World) -> Replay:
    """Return the first of the world's two scenarios over one history."""
    return Replay.objects.filter(status=ReplayStatus.DONE).earliest("id")


def test_the_form_starts_from_what_there_is(world: World, admin: Client) -> None:
    page = admin.get("/what-if/").content.decode()
    assert 'name="kind-1-cpu" type="number" min="0" step="1" inputmode="numeric" value="8"' in page
    assert 'name="kind-4-t4"' in page
    assert page.count(f'<option value="{settings.DEFAULT_POLICY}" selected>') == 1
    assert page.count('<details class="scenario" open>') == 1


def test_the_form_is_filled_from_the_address(world: World, admin: Client) -> None:
    address = "/what-if/?hours=3&policy-2=srtf&kind-2-cpu=32&price-2-cpu=1.25&resize-cost-2=30"
    page = admin.get(address).content.decode()
    assert page.count('<option value="srtf" selected>') == 1
    assert re.search(r'name="kind-2-cpu"[^>]*value="32"', page)
    assert re.search(r'name="price-2-cpu"[^>]*value="1.25"', page)
    assert re.search(r'name="resize-cost-2"[^>]*max="86400"[^>]*value="30"', page)
    assert re.search(r'name="hours"[^>]*value="3"', page)
    assert page.count('<details class="scenario" open>') == 2


def test_scenarios_are_asked_about_together(world: World, admin: Client) -> None:
    values = {
        "policy-1": "priority", "kind-1-cpu": "32", "kind-1-t4": "", "price-1-cpu": "0.05",
        "policy-2": "", "policy-3": "srtf", "price-3-cpu": "1.5", "resize-cost-3": "12.5",
        "hours": "3",
    }  # fmt: skip
    response = admin.post("/what-if/ask/", values)
    second, first = Replay.objects.order_by("-id")[:2]
    address = response.headers["Location"]
    assert address == f"/what-if/{first.pk}/?price-{second.pk}%3Acpu=1.5"
    assert [(row.policy, row.accelerators, row.status) for row in (first, second)] == [
        ("priority", {"cpu": 32, "t4": 2}, "waiting"), ("srtf", {"cpu": 8, "t4": 2}, "waiting"),
    ]  # fmt: skip
    assert (first.resize_cost_s, second.resize_cost_s) == (None, 12.5)
    assert (first.requested_by, first.start_at) == (world.admin, second.start_at)
    page = admin.get(address).content.decode()
    assert page.count("as soon as the worker is free") == 2
    assert re.search(rf'name="price-{second.pk}:cpu"[^>]*value="1.5"', page)


def test_a_wrong_question_comes_back_with_its_fault(world: World, admin: Client) -> None:
    before = Replay.objects.count()
    values = {"policy-1": "fifo", "policy-3": "fifo", "kind-3-cpu": "many", "hours": "1"}
    response = admin.post("/what-if/ask/", values)
    assert response.status_code == 400
    page = response.content.decode()
    error = 'id="what-kinds-3-error">Give a whole number from 0 on for cpu.'
    assert error in page
    assert 'value="many"' in page
    assert (
        'id="what-policy-1-error"' in admin.post("/what-if/ask/", {"hours": "1"}).content.decode()
    )
    for cost in ("-1", "nan", "1e9", "much"):
        values = {"policy-3": "fifo", "resize-cost-3": cost, "policy-1": "fifo", "hours": "1"}
        page = admin.post("/what-if/ask/", values).content.decode()
        assert 'id="what-resize-cost-3-error">Give seconds from 0 to 86400, or nothing' in page
        assert f'value="{cost}" aria-invalid="true"' in page
    response = admin.post("/what-if/ask/", {"policy-1": "fifo", "hours": "9999"})
    assert "Give whole hours from 1 to 720." in response.content.decode()
    assert Replay.objects.count() == before


def _cells(page: str, label: str) -> list[tuple[str, str]]:
    """Read a row of the comparison: column and text of each cell."""
    row = page.split(f">{label}</th>")[1].split("</tr>")[0]
    cells = re.findall(r'data-label="([^"]+)">(.*?)</td>', row, re.DOTALL)
    return [(name, " ".join(re.sub(r"<[^>]+>", " ", text).split())) for name, text in cells]


def test_scenarios_stand_side_by_side(compared: Replay, admin: Client) -> None:
    page = admin.get(f"/what-if/{compared.pk}/").content.decode()
    names = [f"{compared.pk}: priority", f"{compared.pk + 2}: fifo"]
    assert _cells(page, "Mean completion time") == [
        ("as recorded", "520 s"), ("replayed unchanged", "520 s"),
        (names[0], f"best 260 s {TIMES}0.5 better"), (names[1], f"780 s {TIMES}1.5 worse"),
    ]  # fmt: skip
    assert [text for _, text in _cells(page, "Accelerators in use")] == [
        "75 %", "75 %", f"38 % {TIMES}0.5 worse", f"best 90 % {TIMES}1.2 better",
    ]  # fmt: skip
    assert "was left out" in page
    other = admin.get(f"/what-if/{compared.pk + 2}/").content.decode()
    assert _cells(other, "Mean completion time") == _cells(page, "Mean completion time")


def test_resize_costs_stand_in_titles(compared: Replay, admin: Client) -> None:
    Replay.objects.filter(id=compared.pk + 2).update(resize_cost_s=30.0)
    page = admin.get(f"/what-if/{compared.pk}/").content.decode()
    title = f"{compared.pk + 2}: fifo, resize cost 30 s"
    assert [name for name, _ in _cells(page, "Mean completion time")][2:] == [
        f"{compared.pk}: priority", title,
    ]  # fmt: skip
    assert f'class="cell-name">{title}</th>' in page
    assert f"Accelerators, {title}" in page
    figures = admin.get(f"/what-if/{compared.pk}/figures/").json()
    assert figures["completion"]["data"][-1]["name"] == title
    assert f">{title}</a>" in admin.get("/what-if/").content.decode()
    alone = Replay.objects.get(status=ReplayStatus.RUNNING)
    Replay.objects.filter(id=alone.pk).update(resize_cost_s=2.5)
    assert ", resize cost 2.5 s</h1>" in admin.get(f"/what-if/{alone.pk}/").content.decode()


def test_the_scenarios_can_be_changed(compared: Replay, admin: Client) -> None:
    AcceleratorPrice.objects.all().delete()
    start_at = compared.end_at - datetime.timedelta(hours=2)
    Replay.objects.filter(start_at=compared.start_at).update(start_at=start_at)
    Replay.objects.filter(id=compared.pk + 2).update(resize_cost_s=2.5)
    page = admin.get(f"/what-if/{compared.pk}/?price-{compared.pk}:t4=2").content.decode()
    [query] = re.findall(r'href="/what-if/\?([^"]+)">Change the scenarios', page)
    assert QueryDict(query.replace("&amp;", "&")).dict() == {
        "hours": "2", "policy-1": "priority", "kind-1-cpu": "16", "kind-1-t4": "2",
        "price-1-t4": "2.0", "policy-2": "fifo", "kind-2-cpu": "8", "kind-2-t4": "0",
        "resize-cost-2": "2.5",
    }  # fmt: skip


def test_the_list_has_the_figures_of_each(compared: Replay, admin: Client) -> None:
    def row() -> list[str]:
        page = admin.get("/what-if/").content.decode()
        line = page.split(f'data-key="replay-{replay.pk}"')[1].split("</tr>")[0]
        return re.findall(r'"number[^>]*>([^<]*)<', line)

    AcceleratorPrice.objects.all().delete()
    replay = compared
    assert row() == ["2", "260 s", "300 s"]
    AcceleratorPrice.objects.create(kind="cpu", per_hour=3.0)
    assert row() == ["2", "260 s", "300 s", DASH]  # t4 has no price
    AcceleratorPrice.objects.create(kind="t4", per_hour=6.0)
    assert row() == ["2", "260 s", "300 s", "5.00"]  # (16 * 3 + 2 * 6) an hour
    replay = Replay.objects.get(status=ReplayStatus.RUNNING)
    assert row() == [""] * 4


def test_costs_follow_prices_of_the_address(compared: Replay, admin: Client) -> None:
    def cost(query: str = "") -> list[str]:
        page = admin.get(f"/what-if/{compared.pk}/{query}").content.decode()
        label = "Cost of all accelerators until then"
        return [text for _, text in _cells(page, label)] if label in page else []

    AcceleratorPrice.objects.all().delete()
    assert cost() == []
    for kind, price in (("cpu", 3.0), ("t4", 6.0)):
        AcceleratorPrice.objects.create(kind=kind, per_hour=price)
    # (8 * 3 + 2 * 6) an hour for 600 s, (16 * 3 + 2 * 6) for 300 s, and 8 * 3 for 900 s.
    assert cost() == ["6.00", "6.00", f"best 5.00 {TIMES}0.833 better", "6.00 same"]
    query = f"?price-{compared.pk}:cpu=6&price-{compared.pk + 2}:cpu=1.5"
    assert cost(query) == ["6.00", "6.00", f"9.00 {TIMES}1.5 worse", f"best 3.00 {TIMES}0.5 better"]
    assert cost(f"?price-{compared.pk}:cpu=90000")[2] == "120,001.00 worse"
    page = admin.get(f"/what-if/{compared.pk}/?price-{compared.pk}:cpu=much").content.decode()
    assert f"Give a number from 0 to 1,000,000 for {compared.pk}:cpu." in page
    assert cost("?price-999:cpu=2") == cost()


def test_the_comparison_shows_each_tier(compared: Replay, admin: Client) -> None:
    page = admin.get(f"/what-if/{compared.pk}/").content.decode()
    shown = {
        name: [text for _, text in _cells(page, f"1 {name} job: mean completion time")][:3]
        for name in ("urgent", "idle")
    }
    assert shown == {
        "urgent": ["500 s", "520 s", f"best 260 s {TIMES}0.5 better"],
        "idle": [DASH, "520 s", f"best 260 s {TIMES}0.5 better"],
    }
    Replay.objects.filter(pk=compared.pk).delete()
    with pytest.raises(NotFoundError):
        comparison_of(compared, {})  # read just before


def test_the_figures_have_the_same_axes(compared: Replay, admin: Client) -> None:
    figures = admin.get(f"/what-if/{compared.pk}/figures/").json()
    stacks = [figures[name] for name in
              ("recorded", f"replay-{compared.pk}", f"replay-{compared.pk + 2}")]  # fmt: skip
    for axis in ("xaxis", "yaxis"):
        assert len({json.dumps(stack["layout"][axis]) for stack in stacks}) == 1
    assert [stack["legend"][-1]["label"] for stack in stacks] == [
        "capacity 10", "capacity 18", "capacity 8",
    ]  # fmt: skip
    completion = figures["completion"]
    # Only one job has finished: after 500 s as recorded.
    assert [(one["name"], one["x"], one["y"]) for one in completion["data"]] == [
        ("as recorded", [0, 8.33], [0, 100]),
        ("replayed unchanged", [0, 8.67], [0, 100]),
        (f"{compared.pk}: priority", [0, 4.33], [0, 100]),
        (f"{compared.pk + 2}: fifo", [0, 4.33], [0, 100]),
    ]
    assert len({one["line"]["dash"] for one in completion["data"]}) == 4
    assert completion["table"]["rows"][0][1:] == ["500", "520", "260", "260"]
    tables = admin.get(f"/what-if/{compared.pk}/?tables=1").content.decode()
    assert "<td>520</td>" in tables


def test_the_recorded_allocation_ends_with_the_history(compared: Replay, admin: Client) -> None:
    """A job that still ran then held nothing of what the chart shows later."""
    end = compared.start_at + datetime.timedelta(seconds=150)
    Replay.objects.update(end_at=end)
    Allocation.objects.filter(released_at=None).update(
        granted_at=end - datetime.timedelta(seconds=60)
    )
    recorded = admin.get(f"/what-if/{compared.pk}/figures/").json()["recorded"]
    bands = [one for one in recorded["data"] if one["name"] != "capacity"]
    assert len(bands) == 2
    for band in bands:
        held = dict(zip(band["x"], band["y"], strict=True))
        assert max(held.values()) > 0
        # Points are whole milliseconds.
        after = [count for at, count in held.items() if at >= end.timestamp() * 1000 - 1]
        assert set(after) == {0}
        assert band["x"][-1] > end.timestamp() * 1000, "it has the axis of the longest scenario"


def test_a_chart_has_jobs_that_its_rows_leave_out(compared: Replay, admin: Client) -> None:
    compared.result["jobs"] = compared.result["jobs"][1:]
    compared.save()
    figures = admin.get(f"/what-if/{compared.pk}/figures/").json()
    assert len(figures[f"replay-{compared.pk}"]["legend"]) == 3  # two jobs, and the capacity


def test_there_are_no_figures_before_there_is_an_answer(world: World, admin: Client) -> None:
    replay = Replay.objects.get(status=ReplayStatus.RUNNING)
    assert b"40 % of all simulations" in admin.get(f"/what-if/{replay.pk}/").content
    figures = admin.get(f"/what-if/{replay.pk}/figures/").json()
    assert figures["completion"]["data"] == []
    assert json.dumps(figures).count('"capacity"') == 1  # of the cluster that is tried


def test_cancelling_and_forgetting(world: World, admin: Client) -> None:
    replay = Replay.objects.get(status=ReplayStatus.RUNNING)
    assert admin.post(f"/what-if/{replay.pk}/cancel/").headers["Location"] == "/what-if/"
    replay.refresh_from_db()
    assert Replay.objects.count() == 3
    assert replay.status == ReplayStatus.CANCELLED
    admin.post(f"/what-if/{replay.pk}/cancel/")
    assert not Replay.objects.filter(id=replay.pk).exists()
    assert admin.post(f"/what-if/{replay.pk}/cancel/").status_code == 404


def test_nothing_of_it_touches_what_runs(world: World, admin: Client) -> None:
    before = Event.objects.count()
    admin.post("/what-if/ask/", {"policy-1": "fifo", "hours": "1"})
    assert Event.objects.count() == before


def test_every_line_of_a_full_comparison_has_a_dash_of_its_own() -> None:
    columns = {f"column {number}": {1: 60.0 + number} for number in range(2 + SCENARIOS_LIMIT)}
    figure = completion_figure({1: "a"}, columns)
    assert len({one["line"]["dash"] for one in figure["data"]}) == len(columns)
    assert [entry["mark"] for entry in figure["legend"]] == [
        one["line"]["dash"] for one in figure["data"]
    ]
