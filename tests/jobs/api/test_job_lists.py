"""GET /api/v1/jobs/ with its filters and orders, and the rows behind them."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job, JobMetric
from jobs.selectors.job_order import ORDERS
from jobs.services.lifecycle.search_rows import metric_values_write, search_terms_write
from tests.support.builders import Clients, at, job_make, submission_values
from tests.support.cases import pairs

URL = "/api/v1/jobs/"


def ids(response: Any) -> list[int]:
    assert response.status_code == 200, response.json()
    return [row["id"] for row in response.json()["results"]]


def make(owner: User, accuracy: float | None = None, **other: Any) -> Job:
    job = job_make(owner, **other)
    search_terms_write(job)
    if accuracy is not None:
        metric_values_write(job, {0: {"val_accuracy": accuracy, "loss": 1 - accuracy}})
    return job


@pytest.mark.database
def test_tags_settings_and_metrics_filter(ada: User, client_of: Clients) -> None:
    client = client_of(ada)
    small = make(ada, 0.8, tags=["old", "a:b"], settings={"units": 64, "net": {"act": "relu"}})
    large = make(ada, 0.95, tags=["old"], settings={
        "units": 128, "name": "a=b", "on": True, "rate": 1e-5, "off": 0.0, "sizes": [1, 2],
    })  # fmt: skip
    make(ada)
    for query, jobs in (
        ({"tag": "old"}, [large, small]),
        ({"tag": ["old", "a:b"]}, [small]),
        ({"tag": "ol"}, []),
        ({"setting": "units=128"}, [large]),
        ({"setting": "net.act=relu"}, [small]),
        ({"setting": ["name=a=b", "on=true"]}, [large]),
        ({"setting": ["rate=0.00001", "off=0", "sizes=[1,2]"]}, [large]),
        ({"setting": ["rate=1e-5", "units=128.0", "on=True"]}, [large]),
        ({"setting": 'sizes=["\\ud800"]'}, []),
        ({"metric": "val_accuracy"}, [large, small]),
        ({"metric": "val_accuracy>0.8"}, [large]),
        ({"metric": "val_accuracy >= 0.8"}, [large, small]),
        ({"metric": ["val_accuracy<0.9", "loss<=0.3"]}, [small]),
        ({"metric": "val_accuracy", "order": "metric"}, [small, large]),
        ({"metric": "loss", "order": "metric", "tag": "old"}, [large, small]),
    ):
        assert ids(client.get(URL, query)) == [job.pk for job in jobs], query


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metric", "val_accuracy>"), ("metric", "loss>many"), ("metric", ">1"), ("metric", "a<b<c"),
        ("setting", "units"), ("setting", "=3"), ("setting", "a=\0"), ("tag", "x" * 301),
        ("tag", ["a"] * 6), ("order", "colour"), ("order", "--name"), ("metric", "loss>1e"),
    ],
)  # fmt: skip
def test_what_is_no_filter_is_refused_by_name(
    ada: User, client_of: Clients, name: str, value: Any
) -> None:
    response = client_of(ada).get(URL, {name: value})
    assert (response.status_code, set(response.json()["errors"])) == (400, {name})


def test_the_order_of_metrics_needs_one(ada: User, client_of: Clients) -> None:
    response = client_of(ada).get(URL, {"order": "-metric"})
    assert (response.status_code, set(response.json()["errors"])) == (400, {"metric"})


def order_key(job: Job, order: str) -> Any:
    values = {
        "submitted": job.pk, "name": job.name, "status": job.status, "priority": job.priority,
        "duration": job.duration_s, "tier": job.tier,
    }  # fmt: skip
    if order == "metric":
        return JobMetric.objects.get(job=job, name="val_accuracy").best, job.pk
    return values[order], job.pk


@pytest.mark.database
@pytest.mark.parametrize(("order", "sign"), pairs(ORDERS, ["", "-"]))
def test_every_order_pages_there_and_back(
    ada: User, client_of: Clients, order: str, sign: str
) -> None:
    statuses = itertools.cycle([JobStatus.PENDING, JobStatus.FINISHED, JobStatus.FAILED])
    jobs = [
        make(
            ada, [0.5, 0.25, 0.5][number % 3], status=next(statuses),
            name=99 * "\U0001f680" + "cab"[number % 3],  # the longest cursor
            priority=100 + number % 2, duration_s=float(number % 2),
        )
        for number in range(7)
    ]  # fmt: skip
    expected = sorted(jobs, key=lambda job: order_key(job, order), reverse=bool(sign))
    client = client_of(ada)
    query = {"order": sign + order, "metric": "val_accuracy", "page_size": 3}
    page = client.get(URL, query)
    assert page.json()["previous"] is None
    found = ids(page)
    last = expected[1]  # a job that leaves its place meanwhile moves nothing
    Job.objects.filter(pk=last.pk).update(priority=1000, name="z", duration_s=9.0)
    while page.json()["next"]:
        page = client.get(page.json()["next"])
        found += ids(page)
    assert [job_id for job_id in found[3:] if job_id != last.pk] == [job.pk for job in expected[3:]]
    back = ids(client.get(page.json()["previous"]))
    assert back == found[3:6]


@pytest.mark.database
@pytest.mark.parametrize("order", ORDERS)
def test_any_cursor_is_answered(ada: User, client_of: Clients, order: str) -> None:
    client = client_of(ada)
    for rest in (
        [], [True], [True, None, 1], [False, "\0", 1], [False, "\ud800", 1], [False, 10**400, 1],
        [False, float("nan"), 1], [False, 1, -1], [False, 1.5, 2**63], [False, True, 1], 7,
    ):  # fmt: skip
        text = json.dumps([order, *rest] if isinstance(rest, list) else rest)
        cursor = base64.urlsafe_b64encode(text.encode()).decode()
        query = {"order": order, "metric": "loss", "cursor": cursor}
        assert client.get(URL, query).status_code == 404, rest


def test_a_cursor_is_of_one_order(ada: User, client_of: Clients) -> None:
    for _ in range(3):
        make(ada)
    client = client_of(ada)
    following = client.get(URL, {"order": "name", "page_size": 1}).json()["next"]
    answer = client.get(following.replace("order=name", "order=status"))
    assert (answer.status_code, "begin without one" in answer.json()["detail"]) == (404, True)


@pytest.mark.database
def test_submitted_settings_and_tags_can_be_searched(ada: User, client_of: Clients) -> None:
    client = client_of(ada)
    values = submission_values(tags=["a", "b", "a"], note="why", settings={"units": 3})
    response = client.post(URL, values, format="json")
    job = response.json()
    assert (job["tags"], job["note"]) == (["a", "b"], "why")
    assert ids(client.get(URL, {"tag": "b", "setting": "units=3"})) == [job["id"]]
    assert client.get(URL).json()["results"][0]["tags"] == ["a", "b"]


@pytest.mark.parametrize(
    "values", [{"tags": ["-a"]}, {"tags": ["a b"]}, {"tags": ["x"] * 21}, {"note": "n" * 1001}]
)
def test_tags_and_notes_are_bounded(ada: User, client_of: Clients, values: dict[str, Any]) -> None:
    client = client_of(ada)
    for response in (
        client.post(URL, submission_values(**values), format="json"),
        client.patch(f"{URL}{job_make(ada).pk}/", values, format="json"),
    ):
        assert (response.status_code, set(response.json()["errors"])) == (400, {*values})


def test_a_description_is_changed(ada: User, admin: User, client_of: Clients) -> None:
    job = make(ada, tags=["old"])
    client, address = client_of(ada), f"{URL}{job.pk}/"
    first = client.patch(address, {"tags": "new, other"}, format="json")
    assert (first.json()["tags"], first.json()["note"]) == (["new", "other"], "")
    second = client_of(admin).patch(address, {"note": "seen"}, format="json")
    assert (second.json()["tags"], second.json()["note"]) == (["new", "other"], "seen")
    assert ids(client.get(URL, {"tag": "new"})) == [job.pk]
    assert ids(client.get(URL, {"tag": "old"})) == []
    messages = list(job.events.order_by("id").values_list("message", "actor"))
    assert messages == [("Tags: new, other", "user:ada"), ("Note changed", f"user:{admin}")]
    stale = client.patch(
        address, {"note": "mine"}, format="json", HTTP_IF_MATCH=first.headers["ETag"]
    )
    assert (stale.status_code, stale.json()["code"]) == (412, "stale_version")
    wrong = client.patch(address, {"priority": 5}, format="json")
    assert (wrong.status_code, set(wrong.json()["errors"])) == (400, {"priority"})


def test_others_descriptions_are_not_there(ada: User, bob: User, client_of: Clients) -> None:
    response = client_of(bob).patch(f"{URL}{job_make(ada).pk}/", {"note": "x"}, format="json")
    assert response.status_code == 404


def test_the_best_values_of_metrics_are_kept(ada: User) -> None:
    job = job_make(ada, stop_metric="gain_loss", epoch=0)
    for epoch, value in enumerate([0.5, 0.9, 0.7]):
        metric_values_write(job, {epoch: {"accuracy": value, "loss": value, "gain_loss": value}})
    job.epoch = 3
    metric_values_write(job, {0: {"accuracy": 0.4, "odd": None}})  # a late report
    rows = {row.name: (row.best, row.best_epoch, row.last) for row in job.metric_values.all()}
    assert rows == {
        "accuracy": (0.9, 1, 0.7), "loss": (0.5, 0, 0.7), "gain_loss": (0.9, 1, 0.7),
    }  # fmt: skip


def test_a_duration_is_kept(ada: User, client_of: Clients) -> None:
    job = job_make(ada, started_at=at(0))
    client_of(ada).post(f"{URL}{job.pk}/cancel/")
    job.refresh_from_db()
    assert job.duration_s == (job.ended_at - at(0)).total_seconds()
