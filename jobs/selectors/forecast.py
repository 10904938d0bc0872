"""Forecasts of one job: its end, and its speed and loss by its fitted models."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from controlplane.core.estimates.loss_prediction import LossFit
from controlplane.core.expected_ends import LATEST_S
from controlplane.core.play import UNCERTAINTY
from controlplane.core.protocol.wire import StopKind
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job, JobForecast, StepReport
from jobs.selectors.cluster import remaining_examples, remaining_work
from jobs.selectors.estimates.batch_sizes import accelerator_sizes
from jobs.selectors.estimates.job import known_read, models_read

_EXACT = datetime.timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class ExpectedEnd:
    """Times between which a running job ends.

    Attributes:
        earliest_at: None if its stop condition, the value of a metric, may be met at any time.
    """

    earliest_at: datetime.datetime | None
    latest_at: datetime.datetime

    @property
    def is_exact(self) -> bool:
        """True if minutes would not tell the two times apart."""
        return self.earliest_at is not None and self.latest_at - self.earliest_at < _EXACT


def expected_end_of(job: Job, now: datetime.datetime) -> ExpectedEnd | None:
    """Return when a running job ends; None while unknown, or if the range has passed.

    The work left, which may take `UNCERTAINTY` times shorter or longer as in forecasts of starts,
    is divided by the mean speed on as many accelerators as the newest steps were done on. Times
    count from these steps. Where the policy is forecast to give the job other accelerators, the
    range contains its end with these as well, unless it stops by a metric.
    """
    if job.status != JobStatus.RUNNING:
        return None
    steps = StepReport.objects.filter(job=job).order_by("-last_step", "-id")
    newest = steps.values_list("at", "num_accelerators").first()
    left = remaining_work(job, is_metric_missed=True)
    if newest is None or left is None:
        return None
    at, num_accelerators = newest
    speed = job.throughput_by_count.get(str(num_accelerators))
    if not speed or left / speed > LATEST_S:
        return None
    left_s = left / speed
    earliest_at = at + datetime.timedelta(seconds=left_s / UNCERTAINTY)
    latest_at = at + datetime.timedelta(seconds=left_s * UNCERTAINTY)
    forecast = JobForecast.of(job)
    resized = (forecast.resized_end_earliest_at, forecast.resized_end_latest_at)
    is_metric = job.stop_kind == StopKind.METRIC
    if resized[0] is not None and resized[1] is not None and not is_metric:
        earliest_at, latest_at = min(earliest_at, resized[0]), max(latest_at, resized[1])
    if latest_at < now:
        return None
    return ExpectedEnd(None if is_metric else earliest_at, latest_at)


def forecast_of(job: Job) -> dict[str, Any] | None:
    """Forecast a job's speed and loss; None before the first report.

    Returns:
        `useful_examples_per_s`: kind with a fitted model -> number of accelerators (1, 2, 4 ... the
        job's maximum, all on one node) -> rate. `loss`: None while there are too few reports, else
        the fitted `curve`, its number of points `num_points`, its value `now`, and its value
        `at_end` of the job (None if the end is unknown).
    """
    row = getattr(job, "estimates", None)
    if row is None:
        return None
    known = known_read([job], {}, accelerator_sizes())[job.pk]
    performance = known.performance
    models = () if performance is None else models_read(row, job.num_virtual_nodes)
    kinds = [kind for kind, _ in models]
    return {
        "useful_examples_per_s": {
            kind: {
                str(count): round(performance.goodput(kind, count, 1), 3)
                for count in _counts(job.max_accelerators)
            }
            for kind in kinds
            if performance is not None
        },
        "loss": _loss(job, known.loss, known.worth),
    }


def _counts(most: int) -> list[int]:
    """List the powers of two below `most`, and `most`."""
    counts, count = [], 1
    while count < most:
        counts.append(count)
        count *= 2
    return [*counts, most]


def _loss(job: Job, fit: Any, worth: float) -> dict[str, Any] | None:
    if not isinstance(fit, LossFit):
        return None
    left = remaining_examples(job)
    return {
        "curve": fit.curve_class.value,
        "num_points": fit.num_points,
        "now": fit.loss(0.0),
        "at_end": None if left is None else fit.loss(left * worth),
    }
