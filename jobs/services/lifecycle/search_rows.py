"""Rows by which lists of jobs are searched and sorted: terms of a job, best values of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.models import Job, JobMetric, SearchTerm
from jobs.models.search import TERM_LIMIT
from jobs.selectors.best_metrics import has_higher_better
from jobs.selectors.settings_values import flat_settings, value_text

#: Settings of a job that can be searched for; the others are only shown.
SETTINGS_LIMIT = 100
METRICS_LIMIT = 50
_NAME_LIMIT = 100
_TAG = "tag="


def search_terms_write(job: Job) -> None:
    """Store the terms of a job in place of earlier ones."""
    SearchTerm.objects.filter(job=job).exclude(term__in=_terms(job)).delete()
    search_terms_add([job])


def search_tags_write(jobs: Sequence[Job]) -> None:
    """Store the tags of jobs in place of earlier ones, in two queries."""
    SearchTerm.objects.filter(job__in=jobs, term__startswith=_TAG).delete()
    SearchTerm.objects.bulk_create(
        SearchTerm(job=job, term=term) for job in jobs for term in sorted(_tags_terms(job))
    )


def search_terms_add(jobs: Sequence[Job]) -> None:
    """Store the terms of jobs beside earlier ones."""
    rows = [SearchTerm(job=job, term=term) for job in jobs for term in sorted(_terms(job))]
    SearchTerm.objects.bulk_create(rows, ignore_conflicts=True)


def _terms(job: Job) -> set[str]:
    return {*_tags_terms(job), *settings_terms(job.settings)}


def _tags_terms(job: Job) -> set[str]:
    return {f"{_TAG}{tag}" for tag in job.tags}


def settings_terms(settings: Mapping[str, Any]) -> list[str]:
    """Return `setting=NAME=VALUE` per setting; text is as it stands, anything else is JSON."""
    terms = (f"setting={name}={value_text(value)}" for name, value in flat_settings(settings))
    return [term for term in terms if len(term) <= TERM_LIMIT][:SETTINGS_LIMIT]


def metric_values_write(job: Job, epochs: Mapping[int, Mapping[str, float | None]]) -> None:
    """Take the logs of some epochs into the best and newest values of the job's metrics.

    The newest is that of the highest epoch; epochs may be reported late and again.
    """
    known = {row.name: row for row in JobMetric.objects.filter(job=job)}
    changed: dict[str, JobMetric] = {}
    values = ((epoch, *item) for epoch in sorted(epochs) for item in epochs[epoch].items())
    for epoch, name, value in values:
        if value is None or len(name) > _NAME_LIMIT:
            continue
        row = known.get(name)
        if row is None:
            if len(known) >= METRICS_LIMIT:
                continue
            row = JobMetric(job=job, name=name, best=value, best_epoch=epoch, last=value)
            known[name] = row
        elif (value > row.best) if has_higher_better([job], name) else (value < row.best):
            row.best, row.best_epoch = value, epoch
        if epoch + 1 >= job.epoch:
            row.last = value
        changed[name] = row
    JobMetric.objects.bulk_create(
        changed.values(),
        update_conflicts=True,
        unique_fields=["job", "name"],
        update_fields=["best", "best_epoch", "last"],
    )
