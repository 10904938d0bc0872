"""Readings of accelerators: bins, refusals, REST, metrics, idle holdings, retention."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from jobs.models import Accelerator, Job, ReadingBin
from jobs.selectors.metrics import SiteCollector
from jobs.selectors.readings import idle_held
from jobs.services.reports import readings as service
from jobs.services.reports.batches import batch_take
from jobs.services.reports.readings import readings_expire, readings_take
from tests.jobs.world import PlayedNode, PlayedTrainer, World
from tests.support.builders import Clients, at, job_make
from tests.support.rows import allocation_make

pytestmark = pytest.mark.django_db


def reading(index: int, percent: float | None = 50.0, **more: Any) -> dict[str, Any]:
    return {"index": index, "utilisation_percent": percent, "memory_bytes": 2**20, **more}


def send(played: PlayedNode, readings: Any, seconds: float) -> None:
    batch = dataclasses.replace(played.batch(), readings=readings)
    batch_take(played.node, batch, at(seconds))


def test_readings_are_summed_up_by_minute_and_hour() -> None:
    played = World(num_nodes=1).nodes[0]
    for second, percent in ((1, 10.0), (11, 30.0), (21, None), (61, 90.0)):
        send(played, [reading(0, percent, power_w=100.0 + second)], second)
    minute, later, hour = ReadingBin.objects.order_by("width_s", "at")
    assert [row.width_s for row in (minute, later, hour)] == [60, 60, 3600]
    assert [row.num_readings for row in (minute, later, hour)] == [3, 1, 4]
    assert (minute.utilisation_percent, minute.utilisation_peak) == (20.0, 30.0)
    assert (later.utilisation_percent, hour.utilisation_peak) == (90.0, 90.0)
    assert minute.power_w == pytest.approx(111.0)
    assert minute.temperature_c is None
    assert (minute.memory_bytes, minute.memory_peak) == (2**20, 2**20)


@pytest.mark.parametrize(
    "hostile",
    [reading(7), reading(0, float("nan")), reading(0, -1.0), "text", None, {"index": 2**70}],
)
def test_a_hostile_reading_keeps_out_nothing_else(hostile: Any) -> None:
    played = World(num_nodes=1).nodes[0]
    send(played, [hostile, reading(1)], 1)
    assert {row.accelerator.index for row in ReadingBin.objects.all()} == {1}


@pytest.mark.parametrize("hostile", ["text", 5, {"index": 0}, [[[[]]]], None])
def test_a_batch_with_nonsense_for_readings_is_taken(hostile: Any) -> None:
    played = World(num_nodes=1).nodes[0]
    send(played, hostile, 1)
    assert not ReadingBin.objects.exists()


def test_a_failing_reading_does_not_keep_out_the_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    played = World(num_nodes=1).nodes[0]
    played.trainers[7, 0] = PlayedTrainer(job_id=7, slot=0, accelerator_index=0)
    batch = dataclasses.replace(played.batch(), readings=(reading(0),))

    def fail(*_: object) -> None:
        raise RuntimeError("no bins today")

    monkeypatch.setattr("jobs.services.reports.batches.readings_take", fail)
    outcome = batch_take(played.node, batch, at(1.0))
    assert [state.job_id for state in outcome.reply.stale] == [7]
    assert "no bins today" in caplog.text


def test_a_node_speaks_for_its_own_accelerators_only() -> None:
    one, two = World(num_nodes=2, num_accelerators=1).nodes
    send(one, [reading(0), reading(1)], 1)
    assert {row.accelerator.node for row in ReadingBin.objects.all()} == {one.node}
    Accelerator.objects.filter(node=two.node).update(is_present=False)
    send(two, [reading(0)], 1)
    assert not ReadingBin.objects.filter(accelerator__node=two.node).exists()


def test_readings_that_follow_too_soon_are_left_out() -> None:
    played = World(num_nodes=1).nodes[0]
    for seconds in (1.0, 1.2, 1.4, 2.5):
        send(played, [reading(0)], seconds)
    assert [row.num_readings for row in ReadingBin.objects.all()] == [2, 2]


def test_old_bins_are_deleted_a_part_at_a_time(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.READING_MINUTE_DAYS, settings.READING_HOUR_DAYS = 1, 2
    monkeypatch.setattr(service, "EXPIRED_AT_ONCE", 4)
    monkeypatch.setattr(service, "_DELETED_AT_ONCE", 2)
    node = World(num_nodes=1).nodes[0].node
    for minute in range(6):
        readings_take(node, [reading(0)], at(60.0 * minute))
    now = at(1.5 * 86_400)
    assert [readings_expire(now), readings_expire(now), readings_expire(now)] == [4, 2, 0]
    assert [row.width_s for row in ReadingBin.objects.all()] == [3600]
    assert readings_expire(at(3 * 86_400)) == 1


def held_for(minutes: float, percents: list[float | None], *, owner: User) -> Job:
    """Let a job hold an accelerator for so long, with a reading in each of the last minutes."""
    world = World(num_nodes=1, num_accelerators=1)
    job = job_make(owner)
    now = timezone.now()
    allocation_make(job, Accelerator.objects.get(), granted_at=now - timedelta(minutes=minutes))
    for age, percent in enumerate(percents):
        readings_take(world.nodes[0].node, [reading(0, percent)], now - timedelta(minutes=age))
    return job


@pytest.mark.parametrize(
    ("minutes", "percents", "is_idle"),
    [
        (11, [1.0] * 10, True),
        (11, [0.0] * 9 + [40.0], True),  # 4 % on average
        (11, [0.0] * 9 + [60.0], False),
        (9, [0.0] * 10, False),  # held too shortly
        (11, [0.0] * 4, False),  # too few readings
        (11, [None] * 10, False),  # the device does not tell
        (11, [], False),
    ],
)
def test_idle_but_held(
    minutes: float, percents: list[float | None], is_idle: bool, ada: User, client_of: Clients
) -> None:
    job = held_for(minutes, percents, owner=ada)
    found = idle_held(timezone.now())
    assert [one.job_id for one in found] == [job.pk] * is_idle
    client = client_of(ada)
    (row,) = client.get("/api/v1/nodes/").json()["results"]
    assert row["accelerators"][0]["is_idle_held"] is is_idle
    for asked, number in (("true", int(is_idle)), ("false", 1 - is_idle)):
        assert len(client.get(f"/api/v1/jobs/?idle={asked}").json()["results"]) == number
    families = {family.name: family for family in SiteCollector(timezone.now()).collect()}
    (sample,) = families["virtualflow_accelerators_idle_held"].samples
    assert (sample.labels, sample.value) == ({"kind": "cpu"}, is_idle)


def test_idle_accelerators_that_are_not_read_lately_are_not_told(ada: User) -> None:
    held_for(30, [0.0] * 10, owner=ada)
    assert idle_held(timezone.now())
    assert not idle_held(timezone.now() + timedelta(minutes=4))


def test_present_use_in_answers_and_metrics(ada: User, client_of: Clients) -> None:
    held_for(1, [40.0], owner=ada)
    client = client_of(ada)
    node = client.get("/api/v1/nodes/").json()["results"][0]
    shown = node["accelerators"][0]["reading"]
    assert (shown["utilisation_percent"], shown["memory_bytes"]) == (40.0, 2**20)
    assert (shown["temperature_c"], shown["power_w"]) == (None, None)
    assert client.get(f"/api/v1/nodes/{node['id']}/").json() == node
    families = {family.name: family for family in SiteCollector(timezone.now()).collect()}
    (sample,) = families["virtualflow_accelerator_utilisation_ratio"].samples
    assert (sample.labels, sample.value) == ({"node": "played0", "accelerator": "0"}, 0.4)
    assert families["virtualflow_accelerator_power_watts"].samples == []


def test_utilisation_over_time(ada: User, client_of: Clients) -> None:
    held_for(1, [40.0, 20.0, None], owner=ada)
    client = client_of(ada)
    url = f"/api/v1/nodes/{Accelerator.objects.get().node_id}/utilisation/"
    found = client.get(url).json()
    (accelerator,) = found["accelerators"]
    assert (found["step"], accelerator["index"], accelerator["kind"]) == (60, 0, "cpu")
    assert [row["utilisation_percent"] for row in accelerator["bins"]] == [None, 20.0, 40.0]
    found = client.get(url, {"step": 3600, "fields": "at,memory_peak"}).json()
    assert {*found["accelerators"][0]["bins"][0]} == {"at", "memory_peak"}
    until = (timezone.now() - timedelta(minutes=30)).isoformat()
    assert client.get(url, {"until": until}).json()["accelerators"][0]["bins"] == []
    assert client.get(url.replace("/utilisation/", "9/utilisation/")).status_code == 404


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("since", "yesterday"), ("until", "2026"), ("since", "2999-01-01T00:00:00Z"),
        ("since", "1970-01-01T00:00:00Z"), ("step", "61"), ("step", "-60"), ("fields", "colour"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_named(
    parameter: str, value: str, ada: User, client_of: Clients
) -> None:
    node = World(num_nodes=1).nodes[0].node
    address = f"/api/v1/nodes/{node.pk}/utilisation/"
    answer = client_of(ada).get(address, {parameter: value})
    assert (answer.status_code, [*answer.json()["errors"]]) == (400, [parameter])
