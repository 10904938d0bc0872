"""Data of the charts: histories as plain rows, limited in number, oldest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from django.db.models import Avg, F, Max, Min, Q, QuerySet, Sum, Window
from django.db.models.functions import Lag, TruncHour, TruncMinute, TruncSecond
from numpy.typing import NDArray

from jobs.models import Accelerator, Allocation, EpochReport, Generation, Job, Node, StepReport
from jobs.selectors.expressions import EpochSeconds, IsAnyOf, mean_of

#: Most rows read for one chart; the newest are taken.
MAX_SPANS = 20_000
MAX_RATES = 20_000
MAX_STEP_BINS = 600
MAX_EPOCHS = 5_000
#: Of all metrics of these epochs together; job code may have 200 in each.
MAX_EPOCH_VALUES = 100_000
MAX_RESIZES = 1_000
MAX_METRICS = 100
MAX_BATCH_GENERATIONS = 5_000
#: Values of a bin in the order of `StepBin`; no name may be that of a column.
_BIN = {
    "until": Max("at"),
    "step": Max("last_step"),
    "total": Sum("examples"),
    "spent_s": Sum("seconds"),
    "mean_loss": mean_of("loss"),
    "largest_batch": Max("batch_size"),
    "mean_rate": mean_of("learning_rate"),
    "mean_sqr": Avg("noise_sqr"),
    "mean_var": Avg("noise_var"),
}
_STEP_SERIES = frozenset({"loss", "learning_rate"})


class JobLabel(NamedTuple):
    """Name and colour of a job, and who sees it."""

    name: str
    colour: int
    owner_id: int
    project_id: int | None


@dataclass(frozen=True, slots=True)
class AllocationSpan:
    """A job held one accelerator from `granted_at` on, until `released_at` or still."""

    job_id: int
    job_name: str
    colour: int
    owner_id: int
    project_id: int | None
    granted_at: datetime
    released_at: datetime | None


@dataclass(frozen=True, slots=True)
class AllocationColumns:
    """Allocations of accelerators in the order of their grants, as columns.

    Attributes:
        since, until: seconds since the epoch; `until` of an open one is not a number.
        is_cut: whether older ones are left out.
    """

    job_ids: NDArray[np.int64]
    since: NDArray[np.float64]
    until: NDArray[np.float64]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Rate:
    """Examples that a job processed in `seconds` of training that ended about `until`."""

    job_id: int
    until: datetime
    examples: int
    seconds: float


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """Batch size of the steps from `first_step` (counted from 1) to the next span's."""

    first_step: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class StepBin:
    """Consecutive steps of a job up to `step`: mean loss and learning rate, examples and seconds.

    `batch_size` is the largest of these steps; `batch_spans_of` has the exact changes.
    """

    at: datetime
    step: int
    examples: int
    seconds: float
    loss: float | None
    batch_size: int | None
    learning_rate: float | None
    noise_sqr: float | None = None
    noise_var: float | None = None


def allocation_spans_between(start_at: datetime, end_at: datetime) -> list[AllocationSpan]:
    """Read the allocations of accelerators between two times, in the order of their grants."""
    found = [
        row
        for rows in allocations_between(start_at, end_at)
        for row in rows.values_list("granted_at", "released_at", "job_id")[:MAX_SPANS]
    ]
    found.sort(key=itemgetter(0))
    shown = found[-MAX_SPANS:]
    jobs = jobs_named({job_id for _, _, job_id in shown})
    return [
        AllocationSpan(job_id, *jobs[job_id], granted_at, released_at)
        for granted_at, released_at, job_id in shown
        if job_id in jobs
    ]


def allocation_columns_between(start_at: datetime, end_at: datetime) -> AllocationColumns:
    """Read the allocations of accelerators between two times, for charts of many."""
    columns = (EpochSeconds("granted_at"), EpochSeconds("released_at"), "job_id")
    found = [
        row
        for rows in allocations_between(start_at, end_at)
        for row in rows.values_list(*columns)[:MAX_SPANS]
    ]
    table = np.array(found, dtype=np.float64).reshape(-1, 3)
    table = table[np.argsort(table[:, 0], kind="stable")][-MAX_SPANS:]
    since, until, job_ids = table.T
    return AllocationColumns(job_ids.astype(np.int64), since, until, is_cut=len(found) >= MAX_SPANS)


def jobs_named(job_ids: Iterable[int]) -> dict[int, JobLabel]:
    """Read what charts tell of jobs.

    For rows of other tables: a join to jobs, which are wide, may read all of them.
    """
    columns = ("pk", "name", "colour", "owner_id", "project_id")
    rows = Job.objects.filter(IsAnyOf("pk", set(job_ids))).order_by().values_list(*columns)
    return {job_id: JobLabel(*values) for job_id, *values in rows}


def allocations_between(
    start_at: datetime, end_at: datetime
) -> tuple[QuerySet[Allocation], QuerySet[Allocation]]:
    """Return the open allocations and the released ones between two times, the newest first.

    They are two queries as each of them has an index; one query for both would read all
    allocations that there ever were.
    """
    spans = Allocation.objects.filter(granted_at__lte=end_at)
    return (
        spans.filter(released_at=None).order_by("-granted_at"),
        spans.filter(released_at__gte=start_at).order_by("-released_at"),
    )


def cluster_born_at() -> datetime | None:
    """Return when the first node enrolled; None without nodes."""
    return Node.objects.aggregate(first=Min("enrolled_at"))["first"]


def num_accelerators_present() -> int:
    """Count the accelerators of nodes that have not been removed."""
    return Accelerator.objects.filter(is_present=True, node__removed_at=None).count()


def rates_between(start_at: datetime, end_at: datetime, bin_s: float) -> list[Rate]:
    """Sum step reports by job and second, minute or hour, the largest not above `bin_s`."""
    truncate = TruncHour if bin_s >= 3600 else TruncMinute if bin_s >= 60 else TruncSecond
    rows = (
        StepReport.objects.filter(at__gte=start_at, at__lte=end_at)
        .order_by()
        .annotate(bin_at=truncate("at"))
        .values("job_id", "bin_at")
        .annotate(until=Max("at"), total=Sum("examples"), spent_s=Sum("seconds"))
        .order_by("-bin_at", "job_id")
        .values_list("job_id", "until", "total", "spent_s")
    )
    return [Rate(*row) for row in rows[:MAX_RATES]][::-1]


def step_reports_binned(job: Job, num_bins: int) -> QuerySet[Any, Any]:
    """Group a job's step reports into about `num_bins` bins of equal numbers of steps."""
    stride = max(1, -(-job.step // num_bins))
    reports = StepReport.objects.filter(job=job).order_by()
    return reports.annotate(bin_number=F("last_step") / stride).values("bin_number")


def step_bins_of(job: Job) -> list[StepBin]:
    """Sum up a job's step reports in bins, each about a `MAX_STEP_BINS`-th of its steps."""
    bins = step_reports_binned(job, MAX_STEP_BINS).annotate(**_BIN).order_by("bin_number")
    rows = bins.values_list(*_BIN)
    return [StepBin(*row) for row in rows[: 2 * MAX_STEP_BINS]]


def batch_spans_of(job: Job) -> list[BatchSpan]:
    """Read the batch sizes of a job's steps, exact to the step, in order; one query.

    A batch size belongs to a membership, so the spans are exact for jobs of any length; that of a
    job that tunes it is in the reports of its steps. For steps repeated after a restart the last
    batch size counts.
    """
    if job.tunes_batch_size:
        return _tuned_batch_spans(job)
    rows = (
        Generation.objects.filter(job=job, num_members__gt=0)
        .exclude(step=None)
        .order_by("-number")
        .values_list("step", "membership__global_batch_size")
    )
    spans: list[BatchSpan] = []
    for step, size in list(rows[:MAX_BATCH_GENERATIONS])[::-1]:
        assert step is not None
        span = BatchSpan(step + 1, size or job.global_batch_size)
        while spans and spans[-1].first_step >= span.first_step:
            spans.pop()
        if not spans or spans[-1].batch_size != span.batch_size:
            spans.append(span)
    return spans


def _tuned_batch_spans(job: Job) -> list[BatchSpan]:
    before = Window(Lag("batch_size"), order_by=("last_step", "id"))
    reports = StepReport.objects.filter(job=job).exclude(batch_size=None).annotate(before=before)
    changes = reports.filter(Q(before=None) | ~Q(before=F("batch_size")))
    changes = changes.order_by("-last_step", "-id")
    rows = changes.values_list("first_step", "batch_size")[:MAX_BATCH_GENERATIONS]
    return [BatchSpan(step, size) for step, size in rows if size is not None][::-1]


def metric_names_of(job: Job) -> list[str]:
    """List a job's metrics except loss and learning rate, which are series of steps.

    Names come from the validation, before the first epoch; `val_` names belong to the same metrics.
    """
    validated = job.facts.get("metrics")
    expected = validated if isinstance(validated, list) else []
    logged = [name.removeprefix("val_") for name in job.metrics]
    known = [name for name in (*expected, *logged) if isinstance(name, str)]
    names = dict.fromkeys(name for name in known if name not in _STEP_SERIES)
    return list(names)[:MAX_METRICS]


def epoch_reports_of(job: Job) -> list[EpochReport]:
    """Read a job's newest epochs with `MAX_EPOCH_VALUES` values, but one at least; oldest first."""
    rows = EpochReport.objects.filter(job=job).order_by("-epoch")[:MAX_EPOCHS]
    found: list[EpochReport] = []
    num_values = 0
    for row in rows.iterator(chunk_size=100):
        num_values += len(row.logs)
        if found and num_values > MAX_EPOCH_VALUES:
            break
        found.append(row)
    return found[::-1]


def resizes_of(job: Job) -> list[tuple[Generation, int]]:
    """Read a job's switches, oldest first, each with the number of members before it.

    Without the memberships, which take long to decode.
    """
    generations = list(
        Generation.objects.filter(job=job)
        .exclude(switched_at=None)
        .defer("membership")
        .order_by("-number")[:MAX_RESIZES]
    )[::-1]
    members = {generation.number: generation.num_members for generation in generations}
    before = (members.get(g.previous, 0) if g.previous is not None else 0 for g in generations)
    return list(zip(generations, before, strict=True))
