"""Pages of the list of jobs, and rows that belong to one job; read-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db.models import F, Q, QuerySet

from controlplane.core.values.lifecycle import OPEN_PHASES
from jobs.models import (
    Event,
    Generation,
    Job,
    JobMetric,
)
from jobs.selectors.job_order import jobs_slice

#: Rows of a page of jobs.
PAGE_SIZE = 50
MAX_EVENTS = 200
#: More than a page shows, for the number of members before the oldest resize shown.
MAX_GENERATIONS = 150


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of jobs, and the cursors of its neighbours; empty if there are none.

    Attributes:
        steps_per_epoch: by job, None where unknown: the only fact that lists use.
        best_values: of the metric asked for, by job.
    """

    jobs: Sequence[Job]
    previous_cursor: str
    next_cursor: str
    steps_per_epoch: Mapping[int, int | None]
    best_values: Mapping[int, float]


def job_page(
    jobs: QuerySet[Job],
    *,
    order: str,
    cursor: str,
    metric: str,
    parts: Sequence[Q],
) -> JobPage:
    """Read one page of `jobs`, the first one if the cursor is none of them.

    Args:
        order, cursor, parts: as of `jobs_slice`.
        metric: name of a metric whose best values are shown.
    """
    try:
        part = jobs_slice(jobs, order, cursor, PAGE_SIZE, parts)
    except ValueError:
        part = jobs_slice(jobs, order, "", PAGE_SIZE, parts)
    rows = jobs.filter(pk__in=part.job_ids).annotate(steps_per_epoch=F("facts__steps_per_epoch"))
    found = rows.order_by().in_bulk()
    shown = [found[job_id] for job_id in part.job_ids if job_id in found]
    best = JobMetric.objects.filter(name=metric, job_id__in=part.job_ids) if metric else ()
    return JobPage(
        shown,
        part.previous_cursor,
        part.next_cursor,
        {job.pk: job.steps_per_epoch for job in shown},
        {row.job_id: row.best for row in best},
    )


def generations_of(job: Job) -> list[Generation]:
    """List the newest generations of a job, newest first, without their memberships."""
    return list(job.generations.defer("membership").order_by("-number")[:MAX_GENERATIONS])


def events_of(job: Job) -> list[Event]:
    """List events of a job, newest first."""
    return list(job.events.order_by("-id")[:MAX_EVENTS])


def members_by_phase(job: Job) -> dict[str, int]:
    """Return the number of members of a job's open generations by phase, of the newest each."""
    rows = job.generations.filter(phase__in=OPEN_PHASES).order_by("number")
    return dict(rows.values_list("phase", "num_members"))
