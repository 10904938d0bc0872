"""Best values of a job's metrics: which metric counts, and which values of it are better."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django.db.models import OuterRef, Subquery

from controlplane.core.values.metrics import is_higher_better
from jobs.models import EpochReport, Job, JobMetric

#: In the logs of an epoch, but no result: no value of them is better than another.
NO_RESULTS = frozenset({"learning_rate", "selected_share", "selected_loss", "skipped_loss"})
_VALIDATION = "val_"


@dataclass(frozen=True, slots=True)
class BestMetric:
    """Best and newest value of the metric that a job is judged by.

    Attributes:
        epoch, step: of the best value, epochs from 0; the step is that of the epoch's end.
    """

    name: str
    is_higher_better: bool
    value: float
    epoch: int
    step: int | None
    last: float

    @property
    def is_last_worse(self) -> bool:
        """True if the newest value is worse than the best one."""
        return self.last < self.value if self.is_higher_better else self.last > self.value


def best_metric_of(job: Job) -> BestMetric | None:
    """Return the best value of a job's usual metric; None before the end of an epoch."""
    best_reports = EpochReport.objects.filter(job=job, epoch=OuterRef("best_epoch"))
    metrics = JobMetric.objects.filter(job=job).annotate(
        step=Subquery(best_reports.values("step")[:1])
    )
    rows = {row.name: row for row in metrics.order_by("name")}
    row = rows.get(usual_metric([job], rows))
    if row is None:
        return None
    is_higher = has_higher_better([job], row.name)
    return BestMetric(row.name, is_higher, row.best, row.best_epoch, row.step, row.last)


def usual_metric(jobs: Iterable[Job], names: Collection[str]) -> str:
    """Choose the metric that jobs are judged by.

    That of their stop condition, or else one of validation before one of training, the accuracy
    before others, and the loss last.

    Returns:
        One of `names`; empty if there is none.
    """
    results = [name for name in names if name not in NO_RESULTS]
    goals = [job.stop_metric for job in jobs if job.stop_metric in results]
    return next(iter([*goals, *sorted(results, key=_rank)]), "")


def _rank(name: str) -> tuple[bool, bool, bool, str]:
    plain = name.removeprefix(_VALIDATION)
    return plain == name, plain != "accuracy", plain == "loss", name


def has_higher_better(jobs: Iterable[Job], name: str) -> bool:
    """Return whether higher values of a metric are better: as a stop says, or by its name."""
    goals = {job.stop_metric: job.stop_higher_is_better for job in jobs if job.stop_metric}
    return goals.get(name, is_higher_better(name))
