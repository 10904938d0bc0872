"""Jobs side by side: settings, best and last values, and the histories of their metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.db.models import F, Max, Q, Sum
from django.utils import timezone

from jobs.exceptions import InvalidInputError, NotFoundError
from jobs.models import EpochReport, Job, JobMetric
from jobs.selectors.access import Person, jobs_visible_to
from jobs.selectors.best_metrics import NO_RESULTS, has_higher_better
from jobs.selectors.expressions import mean_of
from jobs.selectors.readings import HOUR_S
from jobs.selectors.series import step_reports_binned
from jobs.selectors.settings_values import flat_settings
from jobs.selectors.usage import accelerator_seconds
from jobs.submission import SUBMISSION_COLUMNS

COMPARED_LIMIT = 50
#: Most points of a job's history, of up to so many jobs, and fewer of more; longer ones are means
#: of steps, or every n-th epoch.
POINTS_LIMIT, WHOLE_HISTORIES = 300, 12
#: Most metrics with histories, and with best and last values: jobs may all have other ones.
SERIES_LIMIT, METRIC_ROWS_LIMIT = 24, 200
#: Most settings that differ, and that are equal: jobs may have thousands each, all of other names.
SETTINGS_LIMIT = 500
LOSS = "loss"
_APART = ("name", "tags", "note", "code_name", "entry_file", "settings", "selection", "tuning")
_FIELDS = (
    *(name for name in SUBMISSION_COLUMNS if name not in _APART),
    *("stop_kind", "stop_limit", "stop_metric", "stop_target", "source_job_id", "code_sha256"),
    "forked_from_id",
)


@dataclass(frozen=True, slots=True)
class Series:
    """The history of one metric of a job; all lists have one entry per point.

    Attributes:
        examples, seconds, accelerator_hours: since the start, over all attempts; the last of steps
            alone, so without starts and pauses.
    """

    job_id: int
    steps: list[int]
    examples: list[float]
    seconds: list[float]
    accelerator_hours: list[float]
    values: list[float]


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Best and newest values of a metric, one per job; None where a job lacks it."""

    name: str
    is_higher_better: bool
    best: Sequence[float | None]
    best_epoch: Sequence[int | None]
    last: Sequence[float | None]

    @property
    def winners(self) -> list[bool]:
        """Which jobs have the best value of all."""
        known = [value for value in self.best if value is not None]
        top = (max if self.is_higher_better else min)(known, default=None)
        return [value is not None and value == top for value in self.best]


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting, one value per job."""

    name: str
    values: Sequence[Any]

    @property
    def is_equal(self) -> bool:
        # To a job's code 1, 1.0 and True are not the same.
        first = repr(self.values[0])
        return all(repr(value) == first for value in self.values)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Jobs in the order asked for, and what they have in common or not.

    Attributes:
        accelerator_hours: time for which each job has held accelerators, starts and pauses too.
        settings: at most `SETTINGS_LIMIT` that differ, and as many that are equal, of all
            `num_settings`.
        metrics: at most `METRIC_ROWS_LIMIT`, of all `num_metrics`.
    """

    jobs: Sequence[Job]
    accelerator_hours: Sequence[float]
    settings: Sequence[SettingRow]
    num_settings: int
    metrics: Sequence[MetricRow]
    num_metrics: int


def compared_jobs(person: Person, job_ids: Sequence[int]) -> list[Job]:
    """Find the jobs to compare, in the order asked for.

    Raises:
        InvalidInputError: there are too many.
        NotFoundError: one of them does not exist, or the person may not see it.
    """
    job_ids = list(dict.fromkeys(job_ids))
    if len(job_ids) > COMPARED_LIMIT:
        raise InvalidInputError.of(job=f"Compare at most {COMPARED_LIMIT} jobs.")
    found = jobs_visible_to(person).defer(None).select_related("owner").in_bulk(job_ids)
    if missing := [job_id for job_id in job_ids if job_id not in found]:
        raise NotFoundError(f"There is no job {missing[0]}, or it is not yours.")
    return [found[job_id] for job_id in job_ids]


def jobs_compared(jobs: Sequence[Job]) -> Comparison:
    held_s = accelerator_seconds(jobs, timezone.now()).values()
    hours = [seconds / HOUR_S for seconds in held_s]
    return Comparison(jobs, hours, *_setting_rows(jobs), *_metric_rows(jobs))


def series_names(jobs: Sequence[Job]) -> list[str]:
    """Return the metrics that have histories: the loss first, then as the jobs logged them."""
    places = {job.pk: place for place, job in enumerate(jobs)}
    rows = JobMetric.objects.filter(job__in=jobs).order_by("pk").values_list("job_id", "name")
    logged = [name for _, name in sorted(rows, key=lambda row: places[row[0]])]
    has_steps = any(job.step for job in jobs)
    return list(dict.fromkeys([LOSS] * has_steps + logged))[:SERIES_LIMIT]


def series_compared(jobs: Sequence[Job]) -> dict[str, list[Series]]:
    """Return the histories of metrics, each of the jobs that have values of it."""
    names = series_names(jobs)
    num_points = points_limit(len(jobs))
    found: dict[str, list[Series]] = {name: [] for name in names}
    for job in jobs:
        for name, one in _histories(job, names, num_points).items():
            found[name].append(one)
    return found


def points_limit(num_jobs: int) -> int:
    """Return the most points of each history, so that all together do not grow with the jobs."""
    return POINTS_LIMIT * WHOLE_HISTORIES // max(num_jobs, WHOLE_HISTORIES)


class _StepBins:
    """Step reports of a job in at most about `num_points` bins, with sums since the start."""

    def __init__(self, job: Job, num_points: int) -> None:
        rows = (
            step_reports_binned(job, num_points)
            .annotate(
                step=Max("last_step"),
                until=Max("at"),
                total=Sum("examples"),
                held_s=Sum(F("seconds") * F("num_accelerators")),
                mean_loss=mean_of("loss"),
            )
            .order_by("bin_number")
            .values_list("step", "until", "total", "held_s", "mean_loss")
        )
        found = list(rows[: 2 * num_points])
        self.losses = [loss for *_, loss in found]
        self.steps = np.array([0, *(row[0] for row in found)], dtype=float)
        seconds = [_seconds_since_start(job, row[1]) for row in found]
        self.seconds = np.array([0.0, *seconds])
        self.examples = np.cumsum([0, *(row[2] for row in found)], dtype=float)
        self.accelerator_hours = np.cumsum([0.0, *(row[3] for row in found)]) / 3600


def _histories(job: Job, names: Sequence[str], num_points: int) -> dict[str, Series]:
    """Return the loss over steps, and the values of epochs by name."""
    bins = _StepBins(job, num_points)
    stride = max(1, -(-job.epoch // num_points))
    reports = (
        EpochReport.objects.filter(job=job)
        .annotate(rest=F("epoch") % stride)
        .filter(Q(rest=stride - 1) | Q(epoch=job.epoch - 1))
        .order_by("epoch")
        .values_list("step", "at", "logs")
    )
    epochs = [
        (_place(bins, step, _seconds_since_start(job, at)), logs)
        for step, at, logs in reports[: 2 * num_points]
    ]
    found = {
        name: [
            (*place, float(value))
            for place, logs in epochs
            if isinstance(value := logs.get(name), int | float)
        ]
        for name in names
    }
    if LOSS in found:
        found[LOSS] = [
            (*_place(bins, bins.steps[place], float(bins.seconds[place])), loss)
            for place, loss in enumerate(bins.losses, start=1)
            if loss is not None
        ]
    return {
        name: Series(job.pk, *map(list, zip(*points, strict=True)))
        for name, points in found.items()
        if points
    }


def _place(bins: _StepBins, step: float, seconds: float) -> tuple[int, int, float, float]:
    """Return where a step is: steps, examples, seconds, accelerator-hours."""
    examples = round(float(np.interp(step, bins.steps, bins.examples)))
    held = float(np.interp(step, bins.steps, bins.accelerator_hours))
    return int(step), examples, round(seconds, 3), held


def _seconds_since_start(job: Job, at: Any) -> float:
    return max(0.0, (at - (job.started_at or job.submitted_at)).total_seconds())


def _setting_rows(jobs: Sequence[Job]) -> tuple[list[SettingRow], int]:
    """Return settings up to the limits, and how many there are."""
    columns = [
        {name: getattr(job, name) for name in _FIELDS}
        | dict(flat_settings(job.selection, "selection."))
        | dict(flat_settings(job.tuning, "tuning."))
        | dict(flat_settings(job.settings, "settings."))
        for job in jobs
    ]
    names = dict.fromkeys(name for column in columns for name in column)
    rows: list[SettingRow] = []
    left = {True: SETTINGS_LIMIT, False: SETTINGS_LIMIT}
    for name in names:
        row = SettingRow(name, [column.get(name) for column in columns])
        is_equal = row.is_equal
        if left[is_equal]:
            left[is_equal] -= 1
            rows.append(row)
        if not left[False]:
            break
    return rows, len(names)


def _metric_rows(jobs: Sequence[Job]) -> tuple[list[MetricRow], int]:
    """Return metrics up to the limit, by name, and how many there are."""
    values = JobMetric.objects.filter(job__in=jobs).exclude(name__in=NO_RESULTS)
    found = {(row.name, row.job_id): row for row in values.order_by("name", "job_id")}
    names = list(dict.fromkeys(name for name, _ in found))
    rows = []
    for name in names[:METRIC_ROWS_LIMIT]:
        of_jobs = [found.get((name, job.pk)) for job in jobs]
        rows.append(
            MetricRow(
                name,
                has_higher_better(jobs, name),
                [None if row is None else row.best for row in of_jobs],
                [None if row is None else row.best_epoch for row in of_jobs],
                [None if row is None else row.last for row in of_jobs],
            )
        )
    return rows, len(names)
