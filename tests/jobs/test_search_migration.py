"""Older jobs get the rows by which lists are searched and sorted."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.apps import apps
from django.db import connection

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import EpochReport
from tests.support.builders import at, job_make


@pytest.mark.django_db
def test_rows_of_older_jobs_are_filled() -> None:
    job = job_make(
        status=JobStatus.FINISHED, started_at=at(0), ended_at=at(90),
        settings={"units": 64, "net": {"act": "relu"}, "long": "x" * 400},
    )  # fmt: skip
    for epoch, value in enumerate([0.5, 0.25, 0.75]):
        logs = {"loss": value, "accuracy": value, "odd": None}
        EpochReport.objects.create(
            job=job, epoch=epoch, generation=1, step=epoch, logs=logs, at=at(epoch)
        )
    fill_rows = import_module("jobs.migrations.0015_fill_job_search").fill_rows
    fill_rows(apps, connection.schema_editor())
    job.refresh_from_db()
    assert job.duration_s == 90
    assert {*job.search_terms.values_list("term", flat=True)} == {
        "setting=units=64", "setting=net.act=relu",
    }  # fmt: skip
    rows = {row.name: (row.best, row.best_epoch, row.last) for row in job.metric_values.all()}
    assert rows == {"loss": (0.25, 1, 0.75), "accuracy": (0.75, 2, 0.75)}
