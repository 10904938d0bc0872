"""The gradient noise scale of a job, as far as its trainers have told.

`Job.noise` holds moving averages: `sqr`, `var` (for batches of the size submitted), `weight` as in
`controlplane.core.estimates.noise_scale.NoiseAverage`, and `num_reports`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from controlplane.core.estimates.noise_scale import GradientNoise, NoiseAverage, noise_scale
from jobs.models import Job


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """What `num_reports` reports tell, the newest most.

    Attributes:
        examples: phi, infinite while the gradient drowns in noise.
        sqr: |G|², squared length of the true gradient.
        var: summed variance of the gradient of a batch of the size submitted.
    """

    examples: float
    sqr: float
    var: float
    num_reports: int


def noise_scale_of(job: Job) -> NoiseScale | None:
    """Give a job's noise scale; None while nothing is known."""
    mean = _average(job).mean()
    if mean is None:
        return None
    examples = noise_scale(mean, job.global_batch_size)
    return NoiseScale(examples, mean.sqr, mean.var, int(job.noise["num_reports"]))


def noise_taken(job: Job, noise: GradientNoise, batch_size: int | None) -> dict[str, Any]:
    """Give `Job.noise` with one more report, of batches of `batch_size` (None: as submitted)."""
    submitted = job.global_batch_size
    average = _average(job).with_value(noise.at_batch_size(batch_size or submitted, submitted))
    num_reports = int(job.noise.get("num_reports", 0)) + 1
    return dataclasses.asdict(average) | {"num_reports": num_reports}


def _average(job: Job) -> NoiseAverage:
    kept = job.noise
    if not kept:
        return NoiseAverage()
    return NoiseAverage(float(kept["sqr"]), float(kept["var"]), float(kept["weight"]))
