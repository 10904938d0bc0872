"""GET /api/v1/jobs/compare/."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from jobs.models import EpochReport, Job, StepReport
from jobs.selectors.comparison import (
    COMPARED_LIMIT,
    METRIC_ROWS_LIMIT,
    POINTS_LIMIT,
    SERIES_LIMIT,
    SETTINGS_LIMIT,
    points_limit,
)
from jobs.services.lifecycle.search_rows import metric_values_write
from tests.support.builders import Clients, at, job_make, logged_in, node_make
from tests.support.rows import allocation_make

URL = "/api/v1/jobs/compare/"


def train(job: Job, num_steps: int, per_epoch: int = 10) -> None:
    """Report each step: 32 examples in 2 s on 3 accelerators, loss 1/step."""
    Job.objects.filter(pk=job.pk).update(step=num_steps, epoch=num_steps // per_epoch)
    StepReport.objects.bulk_create(
        StepReport(
            job=job, generation=1, first_step=step, last_step=step, epoch=0, examples=32,
            seconds=2.0, loss=1 / step, num_accelerators=3, at=at(10 * step),
        )
        for step in range(1, num_steps + 1)
    )  # fmt: skip
    EpochReport.objects.bulk_create(
        EpochReport(
            job=job, epoch=epoch, generation=1, step=per_epoch * (epoch + 1), at=at(10 * epoch),
            logs={"loss": 9.0, "val_accuracy": epoch / 100, "odd": None},
        )
        for epoch in range(num_steps // per_epoch)
    )  # fmt: skip
    metric_values_write(job, {0: {"loss": 9.0, "val_accuracy": 0.0, "odd": None}})


def get(client: APIClient, jobs: list[Job], **query: Any) -> dict[str, Any]:
    response = client.get(URL, {"job": [job.pk for job in jobs], **query})
    assert response.status_code == 200, response.json()
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.database
def test_jobs_stand_side_by_side(ada: User, client_of: Clients) -> None:
    settings = {"units": 64, "net": {"depth": 2}, "scale": 1, "bias": 1}
    first = job_make(ada, started_at=at(0), settings=settings, seed=1,
                     attained_accelerator_s=7200.0)  # fmt: skip
    settings = {"units": 64, "net": {"depth": 3}, "scale": 1.0, "bias": True}
    second = job_make(ada, settings=settings, seed=1)
    node, _ = node_make()
    an_hour_ago = timezone.now() - timedelta(hours=1)
    allocation_make(first, node.accelerators.get(index=0), granted_at=an_hour_ago)
    train(first, 20)
    metric_values_write(first, {0: {"val_accuracy": 0.5, "loss": 2.0}})
    metric_values_write(first, {1: {"val_accuracy": 0.25, "loss": 1.0}})
    answer = get(client_of(ada), [second, first])
    assert [job["id"] for job in answer["jobs"]] == [second.pk, first.pk]
    # Two hours held before and one since, not only in steps.
    assert answer["jobs"][1]["accelerator_hours"] == pytest.approx(3.0, abs=0.5)
    differing = {"net.depth": [3, 2], "scale": [1.0, 1], "bias": [True, 1]}
    assert answer["settings"] == {f"settings.{name}": both for name, both in differing.items()}
    assert answer["metrics"]["val_accuracy"] == {
        "higher_is_better": True, "best": [None, 0.5], "best_epoch": [None, 0],
        "last": [None, 0.25],
    }  # fmt: skip
    assert not answer["metrics"]["loss"]["higher_is_better"]
    assert "series" not in answer
    everything = get(client_of(ada), [second, first], all=1, series=1)
    assert everything["settings"]["settings.units"] == [64, 64]
    assert everything["settings"]["seed"] == [1, 1]
    (loss,) = everything["series"]["loss"]
    assert (loss["job_id"], loss["steps"][-1], loss["examples"][-1]) == (first.pk, 20, 640)
    assert (loss["seconds"][0], loss["accelerator_hours"][-1]) == (10.0, pytest.approx(1 / 30))
    (accuracy,) = everything["series"]["val_accuracy"]
    assert (accuracy["steps"], accuracy["examples"]) == ([10, 20], [320, 640])
    assert (accuracy["seconds"], accuracy["values"]) == ([0.0, 10.0], [0.0, 0.01])
    assert "odd" not in everything["series"]


@pytest.mark.database
def test_long_histories_are_summed_up(ada: User, client_of: Clients) -> None:
    job = job_make(ada, started_at=at(0))
    train(job, 4 * POINTS_LIMIT + 1, per_epoch=2)
    series = get(client_of(ada), [job], series=1)["series"]
    for name, last in (("loss", 4 * POINTS_LIMIT + 1), ("val_accuracy", 4 * POINTS_LIMIT)):
        (one,) = series[name]
        assert POINTS_LIMIT / 2 <= len(one["steps"]) <= POINTS_LIMIT + 1
        assert one["steps"][-1] == last
        assert one["steps"] == sorted(one["steps"])
    assert series["loss"][0]["examples"][-1] == 32 * (4 * POINTS_LIMIT + 1)


def test_histories_of_many_jobs_have_fewer_points(ada: User, client_of: Clients) -> None:
    """All together they are as long as those of twelve jobs."""
    jobs = [job_make(ada, started_at=at(0)) for _ in range(COMPARED_LIMIT)]
    train(jobs[-1], 2 * POINTS_LIMIT, per_epoch=2)
    answer = get(client_of(ada), jobs, series=1)
    assert [job["id"] for job in answer["jobs"]] == [job.pk for job in jobs]
    most = points_limit(len(jobs))
    for name in ("loss", "val_accuracy"):
        (one,) = answer["series"][name]
        assert most / 2 <= len(one["steps"]) <= most + 1 < POINTS_LIMIT / 3
        assert one["steps"][-1] == 2 * POINTS_LIMIT
    assert points_limit(1) == points_limit(12) == POINTS_LIMIT
    assert 13 * points_limit(13) <= 12 * POINTS_LIMIT


@pytest.mark.parametrize("differ", [True, False])
def test_of_many_settings_the_first_ones_are_compared(
    differ: bool, ada: User, client_of: Clients
) -> None:
    """Jobs of 9,000 settings each, all of other names, would be a table of millions of cells."""
    num = SETTINGS_LIMIT + 100
    jobs = [
        job_make(ada, settings={f"{'ab'[place * differ]}{number}": 0 for number in range(num)})
        for place in range(2)
    ]
    answer = get(client_of(ada), jobs, all=1)
    shown = [name for name in answer["settings"] if name.startswith("settings.")]
    assert len(answer["settings"]) <= 2 * SETTINGS_LIMIT
    assert shown[:2] == ["settings.a0", "settings.a1"]
    assert SETTINGS_LIMIT - 100 < len(shown) <= SETTINGS_LIMIT
    assert answer["num_settings"] > num * (1 + differ)
    browser = logged_in(ada)
    query = {"job": [job.pk for job in jobs], "settings": "all"}
    page = browser.get("/jobs/compare/", query).content.decode()
    assert page.count("settings.a") == len(shown)
    assert f"{len(answer['settings'])} of {answer['num_settings']} shown" in page


def test_of_many_metrics_the_first_ones_are_compared(ada: User, client_of: Clients) -> None:
    """50 jobs of 50 metrics each, all of other names, would be a table of 125,000 cells."""
    jobs = [job_make(ada, step=10) for _ in range(5)]
    for number, job in enumerate(jobs):
        metric_values_write(job, {0: {f"m{number}_{place:02}": 1.0 for place in range(50)}})
    answer = get(client_of(ada), [*reversed(jobs)], series=1)
    assert [*answer["metrics"]][::199] == ["m0_00", "m3_49"]
    assert (len(answer["metrics"]), answer["num_metrics"]) == (METRIC_ROWS_LIMIT, 250)
    names = ["loss", *(f"m4_{place:02}" for place in range(SERIES_LIMIT - 1))]
    assert [*answer["series"]] == names
    page = logged_in(ada).get("/jobs/compare/", {"job": [job.pk for job in reversed(jobs)]})
    assert f"{METRIC_ROWS_LIMIT} of 250 shown" in page.content.decode()
    assert [name for _, name in page.context["charts"]] == names


def test_only_who_wants_histories_has_reports_read(ada: User, client_of: Clients) -> None:
    """12 jobs of 300 epochs of 200 metrics are 720,000 values."""
    job = job_make(ada, started_at=at(0))
    train(job, 20)
    addresses = ["/jobs/compare/?", f"{URL}?", "/jobs/compare/figures/?", f"{URL}?series=1&"]
    read = []
    for address in addresses:
        client = client_of(ada) if address.startswith("/api/") else logged_in(ada)
        with CaptureQueriesContext(connection) as queries:
            assert client.get(f"{address}job={job.pk}").status_code == 200
        texts = [query["sql"] for query in queries]
        read.append(sum(bool(re.search("_(step|epoch)report", text)) for text in texts))
    assert read == [0, 0, 2, 2]


def test_a_job_named_twice_is_one(ada: User, client_of: Clients) -> None:
    job = job_make(ada)
    assert len(get(client_of(ada), [job, job])["jobs"]) == 1


def test_others_jobs_are_not_there(ada: User, bob: User, admin: User, client_of: Clients) -> None:
    jobs = [job_make(ada), job_make(bob)]
    response = client_of(ada).get(URL, {"job": [job.pk for job in jobs]})
    assert response.status_code == 404
    assert f"no job {jobs[1].pk}" in response.json()["detail"]
    assert len(get(client_of(admin), jobs)["jobs"]) == 2


@pytest.mark.parametrize(
    "query",
    [
        {}, {"job": ""}, {"job": "x"}, {"job": "-1"}, {"job": "1" * 20},
        {"job": [*range(1, COMPARED_LIMIT + 2)]}, {"jobs": 1}, {"job": 1, "all": "perhaps"},
    ],
)  # fmt: skip
def test_wrong_requests_name_the_parameter(
    ada: User, client_of: Clients, query: dict[str, Any]
) -> None:
    response = client_of(ada).get(URL, query)
    assert response.status_code == 400
    assert {*response.json()["errors"]} <= {"job", "jobs", "all"}


def test_the_number_of_queries_does_not_grow_with_reports(
    ada: User, client_of: Clients, django_assert_max_num_queries: Callable[[int], Any]
) -> None:
    jobs = [job_make(ada) for _ in range(3)]
    for job in jobs:
        train(job, 50)
    client = client_of(ada)
    get(client, jobs)  # marks the token as used
    with django_assert_max_num_queries(6 + 2 * len(jobs)):
        get(client, jobs, series=1)
