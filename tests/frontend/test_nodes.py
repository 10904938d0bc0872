"""Pages of a node and of the timeline: what they show, and to whom."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

import plotly.graph_objects
import pytest
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from frontend.figures.parts import MAX_POINTS, MAX_TABLE_ROWS
from frontend.figures.readings import ReadingLine, readings_figure
from frontend.figures.timeline import (
    CLUSTER_ROW,
    MAX_TEXTS,
    Bar,
    TimelineMark,
    timeline_figure,
)
from frontend.views.timeline import _rows_of
from jobs.models import Accelerator, Allocation, Event, Job, Node, ReadingBin
from jobs.selectors.cluster_timeline import MarkKind, Stay, TimelineEvent
from jobs.services.reports.readings import readings_take
from tests.frontend.world import SCRIPT_NAME, World


def read(world: World, minutes: int = 15, percent: float = 1.0) -> None:
    """Let all accelerators of the first node be used so little for a while."""
    node, now = world.nodes[0], timezone.now()
    rows = [{"index": i, "utilisation_percent": percent, "memory_bytes": 2**30} for i in range(4)]
    for age in range(minutes):
        readings_take(node, rows, now - datetime.timedelta(minutes=age))
    Allocation.objects.filter(released_at=None).update(granted_at=now - 2 * _HOUR)


_HOUR = datetime.timedelta(hours=1)


def test_a_node_shows_use_jobs_and_events(world: World, admin: Client) -> None:
    read(world, percent=40.0)
    node = world.nodes[0]
    for number in range(60):
        Event.objects.create(
            node=node, kind="node_changed", message=f"change {number}.", at=timezone.now()
        )
    page = admin.get(f"/nodes/{node.pk}/?tables=1").content.decode()
    for text in ("node-a", "40 %", "1.1 GB", "Memory, GB", "digits, patient", "change 59."):
        assert text in page
    assert "Temperature" not in page  # no device here tells it
    assert "change 9." not in page
    before = page.split("before=")[1].split("&")[0]
    assert "change 9." in admin.get(f"/nodes/{node.pk}/?before={before}").content.decode()
    ReadingBin.objects.update(temperature_c=61.0, power_w=70.0)
    page = admin.get(f"/nodes/{node.pk}/").content.decode()
    assert "61 °C" in page
    assert "70 W" in page
    assert "Chart: Temperature" in page


def test_idle_but_held_is_flagged_to_everybody_and_explained_to_the_owner(
    world: World, admin: Client, ada: Client, ben: Client
) -> None:
    job = world.jobs["running"]
    assert "Idle but held" not in ada.get(f"/jobs/{job.pk}/").content.decode()
    read(world)
    for client in (admin, ada, ben):
        assert "idle but held" in client.get("/nodes/").content.decode()
    page = ada.get(f"/jobs/{job.pk}/").content.decode()
    assert "Idle but held" in page
    assert "3 accelerators of this job were used 1.0 %" in page
    assert "pause it" in page
    read(world, percent=90.0)
    ReadingBin.objects.all().delete()
    read(world, percent=90.0)
    assert "Idle but held" not in ada.get(f"/jobs/{job.pk}/").content.decode()


@pytest.mark.parametrize("address", ["/nodes/{}/?tables=1", "/timeline/?tables=1&window=86400"])
def test_other_peoples_jobs_have_no_names(
    address: str, world: World, ben: Client, admin: Client
) -> None:
    address = address.format(world.nodes[0].pk)
    name = world.jobs["running"].name
    assert name in admin.get(address).content.decode()
    assert name not in ben.get(address).content.decode()
    assert SCRIPT_NAME not in admin.get(address).content.decode()


def test_events_of_other_peoples_jobs_are_not_told(
    world: World, ada: Client, ben: Client, admin: Client
) -> None:
    node = world.nodes[0]
    for job, message in ((world.jobs["running"], "A trainer was lost."), (None, "A new shape.")):
        Event.objects.create(node=node, job=job, kind="told", message=message, at=timezone.now())
    for client, is_told in ((admin, True), (ada, True), (ben, False)):
        page = client.get(f"/nodes/{node.pk}/").content.decode()
        assert ("A trainer was lost." in page) == is_told
        assert "A new shape." in page


@pytest.mark.parametrize("address", ["/", "/nodes/"])
@pytest.mark.parametrize(
    ("status", "values"),
    [
        ("free", {}),
        ("cordoned", {"is_cordoned": True}),
        ("draining", {"is_cordoned": True, "is_draining": True}),
        ("quarantined", {"quarantined_until": timezone.now() + _HOUR}),
        ("lost", {"status": "lost"}),
    ],
)
def test_no_accelerator_is_free_on_a_node_that_takes_no_new_work(
    status: str, values: dict[str, Any], address: str, world: World, admin: Client
) -> None:
    Node.objects.filter(pk__in=[node.pk for node in world.nodes[:2]]).update(is_cordoned=True)
    Node.objects.filter(pk=world.nodes[2].pk).update(is_cordoned=False)
    Node.objects.filter(pk=world.nodes[2].pk).update(**values)
    page = admin.get(address).content.decode()
    states = [text for text in re.findall(r">([a-z]+)<", page) if text in ("free", status)]
    assert states.count(status) >= 2
    assert ("free" in states) is (status == "free")
    if address == "/":
        assert f"{int(status == 'free')} <small>of 3 online" in page


def test_a_cordon_and_a_drain_are_previewed(world: World, admin: Client, ada: Client) -> None:
    node, job = world.nodes[0], world.jobs["running"]
    page = admin.get(f"/nodes/{node.pk}/?change=cordon").content.decode()
    assert "Nothing is moved" in page
    assert f"#{job.pk} <bdi>{job.name}</bdi>" in page
    Job.objects.filter(pk=world.jobs["urgent"].pk).update(step=0)
    page = admin.get(f"/nodes/{node.pk}/?change=drain").content.decode()
    assert "Drain node-a?" in page
    assert "with its state" in page
    assert "from its start" in page
    assert "on node-b" in page
    answer = admin.post(f"/nodes/{node.pk}/cordon/", {"change": "drain", "next": "node"})
    assert answer.headers["Location"] == f"/nodes/{node.pk}/"
    page = admin.get(f"/nodes/{node.pk}/").content.decode()
    assert "What the drain did" in page
    assert "still here" in page
    for address in (f"/nodes/{node.pk}/?change=drain", f"/nodes/{node.pk}/?change=nonsense"):
        assert "preview-title" not in ada.get(address).content.decode()


def test_the_timeline_shows_stays_and_marks(world: World, admin: Client) -> None:
    job, node, now = world.jobs["running"], world.nodes[0], timezone.now()
    for kind, more in (
        ("resize", {"job": job}), ("preempted", {"job": job}), ("node_cordoned", {"node": node}),
        ("node_lost", {"node": node}), ("policy", {}), ("submitted", {"job": job}),
    ):  # fmt: skip
        Event.objects.create(kind=kind, message=f"It is {kind}", at=now, **more)
    page = admin.get("/timeline/?tables=1").content.decode()
    for text in ("Resize: It is", "Preemption: It is", "Policy switch: It is", "node-a 0",
                 "Failure: It is node_lost",
                 "Cordon, drain, maintenance, return: It is"):  # fmt: skip
        assert text in page
    assert "It is submitted" not in page
    figure = admin.get("/timeline/figures/").json()["timeline"]
    _check(figure)
    places = {trace["name"]: set(trace["y"]) for trace in figure["data"]}
    assert places["policy switch"] == {CLUSTER_ROW}
    assert places["cordon, drain, maintenance, return"] == {f"node-a {i}" for i in range(4)}
    assert places["resize"] == {"node-a 0", "node-a 1", "node-a 2"}


def test_a_timeline_is_drawn_again_when_something_is_seen_to_change(
    world: World, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, day = "/timeline/figures/?window=86400", 86400
    # Half a pixel of a day takes 21.6 s; the changes of the world are older than all of these.
    first = (timezone.now().timestamp() // day + 1) * day

    def at(seconds: float) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(first + seconds, datetime.UTC)

    def ask(seconds: float, etag: str) -> HttpResponse:
        monkeypatch.setattr("django.utils.timezone.now", lambda: at(seconds))
        admin.force_login(world.admin)
        return admin.get(address, headers={"If-None-Match": etag})

    drawn = ask(1.0, "")
    assert ask(21.0, drawn["ETag"]).status_code == 304
    later = ask(22.0, drawn["ETag"])
    assert later.json()["timeline"]["layout"]["xaxis"]["range"][1] == 1000 * first + 21600
    Event.objects.create(kind="policy", message="Switched", at=at(23.0))
    changed = ask(24.0, later["ETag"])
    assert changed.json()["timeline"]["layout"]["xaxis"]["range"][1] == 1000 * first + 23000
    assert changed.json()["timeline"]["data"][-1]["x"] == [1000 * first + 23000]
    assert ask(43.0, changed["ETag"]).status_code == 304


@pytest.mark.parametrize(
    ("query", "is_empty"),
    [
        ("from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z", True),
        ("from=2020-01-01T00:00:00Z&to=2999-01-02T00:00:00Z", True),
        ("from=nonsense&to=2020-01-02T00:00:00Z", False),
        ("from=2020-01-02T00:00:00Z&to=2020-01-01T00:00:00Z", False),
        ("window=900&from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z", False),
        ("window=77&node=99999999999999999999", False),
        ("node=4711", True),
    ],
)
def test_a_timeline_has_an_address(query: str, is_empty: bool, world: World, admin: Client) -> None:
    page = admin.get(f"/timeline/?tables=1&{query}")
    assert page.status_code == 200
    assert ("digits, patient" not in page.content.decode()) is is_empty


def test_queries_of_a_timeline_do_not_grow_with_its_rows(
    world: World, admin: Client, django_assert_max_num_queries: object
) -> None:
    job, accelerators = world.jobs["finished"], list(Accelerator.objects.all())
    now = timezone.now()
    Allocation.objects.bulk_create(
        Allocation(
            job=job, accelerator=accelerators[i % 10], slot=i, granted_generation=1,
            granted_at=now - datetime.timedelta(seconds=3000 - i),
            released_at=now - datetime.timedelta(seconds=2999 - i),
        )
        for i in range(2000)
    )  # fmt: skip
    with django_assert_max_num_queries(12):  # type: ignore[operator]
        figure = admin.get("/timeline/figures/").json()["timeline"]
    assert (left := figure["table"]["num_left_out"]) > 1700
    shown = admin.get("/timeline/?tables=1").content.decode()
    assert f"The first {left} rows are left out." in shown


def test_the_legend_of_a_timeline_names_the_newest_jobs_and_those_without_names() -> None:
    bars = [Bar("a 0", number, "job", number % 12, 0.0, 1.0, is_open=False) for number in range(31)]
    legend = timeline_figure(["a 0"], bars, [], 0.0, 1.0)["legend"]
    labels = [entry["label"] for entry in legend]
    assert labels == ["other people's jobs", *(f"#{n} job" for n in range(7, 31)), "6 older jobs"]
    assert [entry["label"] for entry in legend if not entry["colour"]] == ["6 older jobs"]


def test_a_week_of_many_short_stays_has_few_texts_and_marks() -> None:
    """Numbers stand in bars with room for them, marks that would cover each other are one."""
    hour = 3600.0
    rows = [f"a {number}" for number in range(20)]
    short = [Bar(row, 7, "short", 1, 60.0 * i, 60.0 * i + 59) for row in rows for i in range(150)]
    long = [Bar(row, 8, "long", 2, hour * 4 * i, hour * 4 * i + hour * 3.9)
            for row in rows for i in range(42)]  # fmt: skip
    marks = [
        TimelineMark(kind, 60.0 * i, f"{kind} {i}", tuple(rows))
        for i in range(1000)
        for kind in ("resize", "policy")
    ]
    figure = timeline_figure(rows, short + long, marks, 0.0, 168 * hour)
    _check(figure)
    bars, *others = figure["data"]
    assert len(bars["x"]) == 150 * 20 + 42 * 20
    numbers = [text.strip() for text in bars["text"] if text]
    assert numbers == ["#8"] * MAX_TEXTS
    assert figure["note"] == f"Only the {MAX_TEXTS} widest bars have numbers."
    assert timeline_figure(rows, short, marks, 0.0, 168 * hour)["note"] == ""
    assert bars["marker"]["line"]["width"] == [0] * len(short) + [1] * len(long)
    # 1,000 minutes are 25.4 of the 256 parts of a week, 39.375 minutes each.
    assert [len(trace["x"]) for trace in others] == [26 * 20, 26 * 20]
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == sorted({*others[1]["x"]})
    assert others[0]["text"][0] == "resize 39<br>and 39 more shortly before"
    assert figure["table"]["num_left_out"] == len(short) + len(long) + len(marks) - MAX_TABLE_ROWS


_AT = st.floats(0.0, 1000.0)
_BARS = st.lists(
    st.builds(
        Bar, row=st.sampled_from(["a 0", "a 1"]), job_id=st.integers(0, 5), job_name=st.text(),
        colour=st.integers(0, 11), start_at=_AT, end_at=_AT, is_open=st.booleans(),
    ),
    max_size=20,
)  # fmt: skip
_MARKS = st.lists(
    st.builds(
        TimelineMark, kind=st.sampled_from(["resize", "preemption", "failure", "node", "policy"]),
        at=_AT, text=st.text(), rows=st.just(("a 0",)) | st.just(()),
    ),
    max_size=20,
)  # fmt: skip


@given(_BARS, _MARKS)
def test_any_timeline_can_be_drawn(bars: list[Bar], marks: list[TimelineMark]) -> None:
    figure = timeline_figure(["a 0", "a 1"], bars, marks, 100.0, 900.0)
    _check(figure)
    for trace in figure["data"]:
        if trace["type"] == "bar":
            assert all(length >= 1 for length in trace["x"])
            assert all(begin >= 100_000 for begin in trace["base"])


def test_a_time_without_readings_is_a_gap() -> None:
    one = ReadingLine("0 t4", 0, [(0.0, 10.0), (60.0, 20.0), (240.0, 30.0)])
    figure = readings_figure("utilisation_percent", [one], 0.0, 300.0, 60)
    (trace,) = figure["data"]
    assert trace["x"] == [0, 60_000, 120_000, 240_000]
    assert trace["y"] == [10.0, 20.0, None, 30.0]
    assert figure["table"]["rows"] == [
        [0, "0 t4", 10.0], [60_000, "0 t4", 20.0], [240_000, "0 t4", 30.0]
    ]  # fmt: skip


def test_long_readings_are_thinned_and_untold_ones_left_out() -> None:
    many = ReadingLine("0 t4", 0, [(60.0 * i, float(i % 2)) for i in range(2000)])
    untold = ReadingLine("1 t4", 1, [(0.0, None)])
    (trace,) = readings_figure("power_w", [many, untold], 0.0, 120_000.0, 60)["data"]
    assert len(trace["x"]) <= MAX_POINTS
    assert set(trace["y"][:-1]) == {0.5}


def _check(figure: Any) -> None:
    """Let Plotly check a figure, with a colour in the place of the names that the page resolves."""
    drawn = json.loads(re.sub(r'"--[a-z0-9-]+"', '"#000000"', json.dumps(figure, allow_nan=False)))
    plotly.graph_objects.Figure(data=drawn["data"], layout=drawn["layout"])


def test_a_mark_is_where_its_job_was_then_or_last() -> None:
    """Each mark is looked up, not compared with the stays of its job: there may be 3,000."""
    now = timezone.now()
    rows, start = {1: "a 0", 2: "a 1"}, now.timestamp()
    stays = {
        1: [Stay(1, 7, "", 0, start + 10 * n, start + 10 * n + 5) for n in range(1000)],
        2: [Stay(2, 7, "", 0, start + 22, start + 25), Stay(2, 7, "", 0, start + 40, None)],
    }
    read = [0]

    class Counted(list[Stay]):
        def __getitem__(self, place: Any) -> Any:
            read[0] += 1
            return super().__getitem__(place)

    def places(after_s: float) -> tuple[str, ...] | None:
        at = now + datetime.timedelta(seconds=after_s)
        mark = TimelineEvent(MarkKind.RESIZE, at, "", 7, None)
        return _rows_of(mark, rows, {}, {7: {key: Counted(one) for key, one in stays.items()}})

    assert [places(at) for at in (-1, 3, 24, 25, 28, 43, 48, 9999)] == [
        None, ("a 0",), ("a 0", "a 1"), ("a 0", "a 1"), ("a 0", "a 1"), ("a 0", "a 1"), ("a 1",),
        ("a 1",),
    ]  # fmt: skip
    assert read[0] < 8 * 15
