"""Fill the rows by which lists of jobs are searched and sorted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from controlplane.core.values.metrics import is_higher_better


def fill_rows(apps: Apps, _schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Store durations, settings and metrics of older jobs."""
    jobs, terms, metrics, epochs = (
        apps.get_model("jobs", name) for name in ("Job", "SearchTerm", "JobMetric", "EpochReport")
    )
    columns = jobs.objects.only("settings", "started_at", "ended_at")
    for job in columns.iterator(chunk_size=200):
        if job.started_at and job.ended_at:
            duration_s = (job.ended_at - job.started_at).total_seconds()
            jobs.objects.filter(pk=job.pk).update(duration_s=duration_s)
        texts = [f"setting={name}={value}" for name, value in _flat(job.settings)]
        rows = [terms(job=job, term=text) for text in texts if len(text) <= 300]
        terms.objects.bulk_create(rows[:100], ignore_conflicts=True)
        found: dict[str, Any] = {}
        for report in epochs.objects.filter(job=job).order_by("epoch").iterator():
            for name, value in report.logs.items():
                if isinstance(value, int | float) and len(name) <= 100:
                    row = found.setdefault(
                        name, metrics(job=job, name=name, best=value, best_epoch=report.epoch)
                    )
                    row.last = value
                    is_better = value > row.best if is_higher_better(name) else value < row.best
                    if is_better:
                        row.best, row.best_epoch = value, report.epoch
        metrics.objects.bulk_create(list(found.values())[:50])


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0014_job_search")]

    operations = [migrations.RunPython(fill_rows, migrations.RunPython.noop)]
