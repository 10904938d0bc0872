"""GET /api/v1/jobs/N/{events,generations,allocations,metrics,logs,code,files}/."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from jobs.models import Event, Job
from tests.jobs.world import World
from tests.support.builders import CODE, Clients, at, job_make
from tests.support.rows import file_store, log_add

PARTS = (
    "events",
    "generations",
    "allocations",
    "metrics",
    "logs",
    "code",
    "files/model.keras",
)


def url(job: Job | int, part: str) -> str:
    return f"/api/v1/jobs/{job if isinstance(job, int) else job.pk}/{part}/"


def content(response: Any) -> bytes:
    return b"".join(response.streaming_content)


@pytest.fixture
def story(ada: User) -> Job:
    """Make a job that started on one accelerator, trained, and grew to two."""
    world = World(num_nodes=1)
    job = job_make(ada, max_accelerators=1)
    world.settle(3)
    world.train(job, 10)
    Job.objects.filter(id=job.pk).update(max_accelerators=2)
    world.settle(3)
    world.train(job, 20)
    return Job.objects.get(id=job.pk)


def test_other_peoples_jobs_are_not_there(bob: User, story: Job, client_of: Clients) -> None:
    file_store(story, "model.keras", b"model")
    client = client_of(bob)
    for part in PARTS:
        for job_id in (story.pk, story.pk + 1):
            assert client.get(url(job_id, part)).status_code == 404, part


def test_wrong_method(ada: User, client_of: Clients) -> None:
    job, client = job_make(ada), client_of(ada)
    for part in PARTS:
        assert client.post(url(job, part), {}).status_code == 405, part


def test_events(ada: User, story: Job, client_of: Clients) -> None:
    rows = client_of(ada).get(url(story, "events"), {"page_size": 3}).json()["results"]
    assert [row["kind"] for row in rows] == ["resize", "resize_requested", "running"]
    assert rows[0]["data"]["num_after"] == 2
    page = client_of(ada).get(url(story, "events"), {"page_size": 3}).json()
    rest = client_of(ada).get(page["next"]).json()["results"]
    assert [row["kind"] for row in rest] == ["resize", "resize_requested"]
    chosen = client_of(ada).get(url(story, "events"), {"kind": ["resize", "running"]}).json()
    assert [row["kind"] for row in chosen["results"]] == ["resize", "running", "resize"]


def test_generations(ada: User, story: Job, client_of: Clients) -> None:
    new, old = client_of(ada).get(url(story, "generations")).json()["results"]
    assert (new["number"], new["phase"], new["num_members"], new["previous"]) == (2, "active", 2, 1)
    assert (old["phase"], old["step"], new["step"]) == ("closed", 0, 10)
    assert (old["num_switched"], new["num_switched"]) == (1, 2)
    assert [m["virtual_nodes"] for m in new["members"]] == [[0, 1], [2, 3]]


def test_allocations(ada: User, story: Job, client_of: Clients) -> None:
    data = client_of(ada).get(url(story, "allocations")).json()
    assert [row["num_accelerators"] for row in data["sizes"]] == [1, 2]
    assert len(data["allocations"]) == 2
    assert all(row["released_at"] is None for row in data["allocations"])


def test_metrics(ada: User, story: Job, client_of: Clients) -> None:
    data = client_of(ada).get(url(story, "metrics")).json()
    assert data["batch_sizes"] == [{"first_step": 1, "batch_size": story.global_batch_size}]
    assert [row["examples_per_s"] for row in data["steps"]] == [320.0, 640.0]
    assert [row["step"] for row in data["steps"]] == [10, 30]
    assert data["epochs"] == []


def test_logs(ada: User, client_of: Clients) -> None:
    job, client = job_make(ada), client_of(ada)

    log_add(job, "<b>one</b>\n")
    part = client.get(url(job, "logs"), {"slot": 0}).json()
    assert (part["text"], part["truncated"], part["slots"]) == ("<b>one</b>\n", False, [0])
    log_add(job, "two\n")
    log_add(job, "other\n", slot=1)
    more = client.get(url(job, "logs"), {"slot": 0, "cursor": part["next_cursor"]}).json()
    assert more["text"] == "two\n"
    whole = client.get(url(job, "logs"), {"slot": 0, "download": 1})
    assert content(whole) == b"<b>one</b>\ntwo\n"
    assert whole.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert whole.headers["Content-Disposition"].startswith("attachment")
    assert b"other" in content(client.get(url(job, "logs"), {"download": 1}))
    response = client.get(url(job, "logs"), {"slot": "-1"})
    assert (response.status_code, set(response.json()["errors"])) == (400, {"slot"})


def test_a_log_is_searched(ada: User, client_of: Clients) -> None:
    job, client = job_make(ada), client_of(ada)
    text = "one\nWARNING: two\nthree\nERROR: four\n"
    log_add(job, text, slot=2)
    found = client.get(url(job, "logs"), {"search": "TWO", "context": 1}).json()
    line = {"slot": 2, "at": "2026-03-02T09:00:00Z"}
    assert found == {
        "matches": [
            {
                **line, "offset": 4, "level": "warning", "text": "WARNING: two",
                "before": [{**line, "offset": 0, "level": "output", "text": "one"}],
                "after": [{**line, "offset": 17, "level": "output", "text": "three"}],
            }
        ],
        "stopped": "end", "next_cursor": "", "searched_bytes": len(text),
    }  # fmt: skip

    def levels(level: str) -> list[str]:
        answer = client.get(url(job, "logs"), {"level": level}).json()
        return [match["text"] for match in answer["matches"]]

    assert levels("warning") == ["WARNING: two", "ERROR: four"]
    assert levels("error") == ["ERROR: four"]
    assert levels("output") == ["one", "three"]
    assert client.get(url(job, "logs"), {"search": "two", "slot": 1}).json()["matches"] == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"search": "x" * 201}, "search"),
        ({"level": "loud"}, "level"),
        ({"search": "x", "context": 21}, "context"),
        ({"context": 3}, "context"),
        ({"search": "x", "cursor": "12"}, "cursor"),
        ({"cursor": "0.a"}, "cursor"),
        *(({"download": 1, name: "1"}, name) for name in ("search", "level", "context", "cursor")),
    ],
)
def test_a_search_that_is_none(
    ada: User, client_of: Clients, query: dict[str, object], field: str
) -> None:
    response = client_of(ada).get(url(job_make(ada), "logs"), query)
    assert (response.status_code, set(response.json()["errors"])) == (400, {field})


def test_code_and_files(ada: User, client_of: Clients) -> None:
    job, client = job_make(ada), client_of(ada)
    response = client.get(url(job, "code"))
    assert content(response) == CODE
    assert response.headers["Content-Disposition"] == 'attachment; filename="job.py"'
    assert client.get(url(job, "files/model.keras")).status_code == 404
    data = b"a model"
    digest = file_store(job, "model.keras", data).sha256
    response = client.get(url(job, "files/model.keras"))
    assert content(response) == data
    assert response.headers["X-Sha256"] == digest
    assert client.get(url(job, "files/..%2F..%2Fetc%2Fpasswd")).status_code == 404
    (listed,) = client.get(f"/api/v1/jobs/{job.pk}/").json()["files"]
    assert (listed["name"], listed["sha256"], listed["size_bytes"]) == ("model.keras", digest, 7)


def test_events_are_never_more_than_a_page(ada: User, client_of: Clients) -> None:
    job = job_make(ada)
    Event.objects.bulk_create(
        Event(job=job, kind="k", message=str(i), at=at(i)) for i in range(201)
    )
    response = client_of(ada).get(url(job, "events"), {"page_size": 10_000})
    assert len(response.json()["results"]) == 200
