"""Forecasts from a job's fitted models, for the pages and the API."""

from __future__ import annotations

from typing import Any

from controlplane.core.estimates.loss_prediction import LossFit
from jobs.models import Job
from jobs.selectors.cluster import remaining_examples
from jobs.selectors.estimates.batch_sizes import accelerator_sizes
from jobs.selectors.estimates.job import known_read, models_read


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
