"""Jobs of a sweep with their settings and the best values of a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.models import Job, JobMetric, Sweep
from jobs.selectors.access import SHOWN_COLUMNS, Person, jobs_visible_to
from jobs.selectors.best_metrics import NO_RESULTS, has_higher_better, usual_metric
from jobs.selectors.settings_values import flat_settings, value_text
from jobs.sweep_space import JOBS_LIMIT

#: Columns of the jobs of a table; reading whole rows of hundreds would take most of the time.
_COLUMNS = (
    *SHOWN_COLUMNS, "settings", "epoch", "duration_s", "stop_metric", "stop_higher_is_better",
)  # fmt: skip

#: Metrics to choose from, besides the chosen one: jobs may have 50 each, all of other names.
METRICS_LIMIT = 200


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A job of a sweep.

    Attributes:
        settings: those of the sweep's space, in the order of `SweepTable.names`.
        best: best value of the metric; None before an epoch with it has ended.
    """

    job: Job
    settings: tuple[Any, ...]
    best: float | None


@dataclass(frozen=True, slots=True)
class SweepTable:
    """Jobs of a sweep in an order, and the metric that they are compared by.

    Attributes:
        metric: empty if no job has ended an epoch.
        ranked: the rows with a value of the metric, best first.
    """

    names: tuple[str, ...]
    metrics: tuple[str, ...]
    metric: str
    is_higher_better: bool
    rows: Sequence[SweepRow]
    ranked: Sequence[SweepRow]


def sweep_table(person: Person, sweep: Sweep, *, metric: str = "", order: str = "") -> SweepTable:
    """Read the jobs of a sweep, best first unless told.

    Args:
        metric: by default a usual one of those that there are; others count as not given.
        order: `job`, `status`, `epoch`, `duration`, `metric` or `setting.NAME`; `-` reverses it;
            others count as not given. Jobs without a value come last.
    """
    rows_of = jobs_visible_to(person).filter(sweep=sweep).select_related(None)
    jobs = list(rows_of.defer(None).only(*_COLUMNS).order_by("pk")[:JOBS_LIMIT])
    found = JobMetric.objects.filter(job__in=[job.pk for job in jobs])
    metrics = tuple(name for name in found.order_by("name").values_list("name", flat=True)
                    .distinct() if name not in NO_RESULTS)  # fmt: skip
    metric = metric if metric in metrics else usual_metric(jobs[:1], metrics)
    if len(metrics) > METRICS_LIMIT:
        metrics = tuple(sorted({*metrics[:METRICS_LIMIT], metric}))
    best = dict(found.filter(name=metric).values_list("job", "best"))
    names = tuple(sorted(sweep.space))
    rows = [
        SweepRow(job, tuple(map(settings.get, names)), best.get(job.pk))
        for job in jobs
        for settings in [{**dict(flat_settings(job.settings)), **job.settings}]
    ]
    is_higher = has_higher_better(jobs, metric)
    known = [row for row in rows if row.best is not None]
    ranked = sorted(known, key=lambda row: row.best or 0.0, reverse=is_higher)
    if order in ("", "best"):
        rows = [*ranked, *(row for row in rows if row.best is None)]
    else:
        rows = _ordered(rows, names, order)
    return SweepTable(names, metrics, metric, is_higher, rows, ranked)


def _ordered(rows: Sequence[SweepRow], names: Sequence[str], order: str) -> list[SweepRow]:
    name = order.removeprefix("-")
    setting = name.removeprefix("setting.")
    values: Mapping[int, Any]
    if name.startswith("setting.") and setting in names:
        place = list(names).index(setting)
        values = {row.job.pk: row.settings[place] for row in rows}
    else:
        values = {
            row.job.pk: {
                "job": row.job.pk,
                "status": row.job.status,
                "epoch": row.job.epoch,
                "duration": row.job.duration_s or None,
                "metric": row.best,
            }.get(name, row.job.pk)
            for row in rows
        }
    known = [row for row in rows if values[row.job.pk] is not None]
    known.sort(key=lambda row: _sort_key(values[row.job.pk]), reverse=order.startswith("-"))
    return [*known, *(row for row in rows if values[row.job.pk] is None)]


def _sort_key(value: Any) -> tuple[int, float, str]:
    """Numbers come before texts."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, value, ""
    return 1, 0.0, value_text(value)
