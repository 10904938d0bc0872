"""Best metric and expected end of a job: GET /api/v1/jobs/N/."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import EpochReport, Job, JobForecast
from jobs.selectors.best_metrics import usual_metric
from jobs.selectors.forecast import expected_end_of
from jobs.services.lifecycle.search_rows import metric_values_write
from tests.jobs.world import World
from tests.support.builders import Clients, at, job_make, steps_add
from tests.support.present import present


def epoch_add(job: Job, epoch: int, logs: Mapping[str, float | None]) -> None:
    job.epoch = epoch + 1
    metric_values_write(job, {epoch: logs})
    EpochReport.objects.create(
        job=job, epoch=epoch, generation=1, step=10 * (epoch + 1), logs=logs, at=at(epoch)
    )


def answer(client: APIClient, job: Job) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/api/v1/jobs/{job.pk}/").json()
    return found


def test_the_best_value_is_told_and_that_the_last_is_worse(ada: User, client_of: Clients) -> None:
    job, client = job_make(ada), client_of(ada)
    assert answer(client, job)["best_metric"] is None
    for epoch, accuracy in enumerate((0.5, 0.9, 0.7)):
        epoch_add(job, epoch, {"loss": 0.1, "val_accuracy": accuracy, "learning_rate": 0.1})
    best = answer(client, job)["best_metric"]
    assert best == {
        "name": "val_accuracy", "is_higher_better": True, "value": 0.9, "epoch": 1, "step": 20,
        "last": 0.7, "is_last_worse": True,
    }  # fmt: skip
    assert client.get(f"/api/v1/jobs/{job.pk}/?fields=best_metric").json() == {"best_metric": best}


def test_a_whole_job_costs_eight_queries(
    ada: User, client_of: Clients, django_assert_num_queries: Callable[..., Any]
) -> None:
    """Token, job, metrics, held accelerators, estimates, kinds, files and forks."""
    world = World(num_nodes=1)
    job, client = job_make(ada), client_of(ada)
    world.settle(4)
    epoch_add(job, 0, {"val_accuracy": 0.5})
    whole = answer(client, job)
    assert (whole["status"], whole["kinds_used"]) == ("starting", ["cpu"])
    assert whole["best_metric"]["step"] == 10
    with django_assert_num_queries(8):
        assert answer(client, job)["reproducibility"] == "bitwise"


def test_the_metric_of_the_stop_counts_and_its_direction(ada: User, client_of: Clients) -> None:
    job = job_make(
        ada, stop_kind="metric", stop_metric="accuracy", stop_target=0.1, stop_limit=9,
        stop_higher_is_better=False,
    )  # fmt: skip
    for epoch, value in enumerate((0.5, 0.3)):
        epoch_add(job, epoch, {"accuracy": value, "val_accuracy": 0.9})
    best = answer(client_of(ada), job)["best_metric"]
    assert (best["name"], best["value"], best["last"]) == ("accuracy", 0.3, 0.3)
    assert not best["is_higher_better"]
    assert not best["is_last_worse"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("accuracy", "loss", "val_accuracy", "val_loss"), "val_accuracy"),
        (("accuracy", "loss", "val_loss"), "val_loss"),
        (("loss", "mae", "val_loss", "val_mae"), "val_mae"),
        (("auc", "loss", "learning_rate"), "auc"),
        (("learning_rate",), ""),
        (("loss", "selected_loss", "selected_share", "skipped_loss"), "loss"),
    ],
)
def test_validation_comes_before_training_and_the_loss_last(
    names: tuple[str, ...], expected: str
) -> None:
    assert usual_metric([], names) == expected


def running(ada: User, **values: Any) -> Job:
    """Make a job of 100 steps of 32 examples at step 40: 1920 left at 16 a second are 120 s."""
    given = {"status": JobStatus.RUNNING, "step": 40, "throughput_by_count": {"2": 16.0}}
    return job_make(ada, **{**given, **values})


def test_a_running_job_ends_within_a_range(ada: User, client_of: Clients) -> None:
    job = running(ada)
    client = client_of(ada)
    assert answer(client, job)["expected_end"] is None
    told_at = steps_add(job)
    end = present(expected_end_of(job, told_at))
    assert end.earliest_at == told_at + timedelta(seconds=100)
    assert end.latest_at == told_at + timedelta(seconds=144)
    shown = answer(client, job)["expected_end"]
    assert shown["latest_at"] == end.latest_at.isoformat().replace("+00:00", "Z")
    assert answer(client, job)["expected_end"] == shown
    assert expected_end_of(job, told_at + timedelta(seconds=145)) is None


def test_the_range_contains_an_end_with_resizes_to_come(ada: User, client_of: Clients) -> None:
    """Alone from 100 to 144 s; only what lies outside of these widens the range."""
    job = running(ada)
    told_at = steps_add(job)
    for resized, expected in (((60, 120), (60, 144)), ((110, 300), (100, 300))):
        earliest_at, latest_at = (told_at + timedelta(seconds=seconds) for seconds in resized)
        job.forecast = JobForecast.objects.update_or_create(
            job=job,
            defaults={"resized_end_earliest_at": earliest_at, "resized_end_latest_at": latest_at},
        )[0]
        end = present(expected_end_of(job, told_at))
        bounds = (end.earliest_at, end.latest_at)
        assert bounds == tuple(told_at + timedelta(seconds=seconds) for seconds in expected)
        shown = answer(client_of(ada), job)["expected_end"]
        assert shown["latest_at"] == end.latest_at.isoformat().replace("+00:00", "Z")
    assert expected_end_of(job, told_at + timedelta(seconds=301)) is None


def test_a_job_that_stops_by_a_metric_has_a_latest_end_alone(ada: User) -> None:
    job = running(
        ada, stop_kind="metric", stop_metric="loss", stop_target=0.0, stop_limit=4,
        facts={"num_examples": 800},
    )  # fmt: skip
    told_at = steps_add(job)
    JobForecast.objects.create(
        job=job,
        resized_end_earliest_at=told_at,
        resized_end_latest_at=told_at + timedelta(seconds=500),
    )
    end = present(expected_end_of(job, timezone.now()))
    assert (end.earliest_at, end.latest_at) == (None, told_at + timedelta(seconds=144))


@pytest.mark.parametrize(
    "values",
    [
        {"status": JobStatus.PENDING},
        {"throughput_by_count": {"4": 16.0}},
        {"throughput_by_count": {"2": 1e-9}},
        {"stop_kind": "epochs"},
    ],
)
def test_an_end_may_be_unknown(ada: User, values: dict[str, Any]) -> None:
    job = running(ada, **values)
    steps_add(job)
    assert expected_end_of(job, timezone.now()) is None
