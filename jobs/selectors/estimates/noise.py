"""Gradient noise scale of a job, from its trainers' reports.

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
    """Noise scale averaged over `num_reports` reports, the newest weighted most.

    Attributes:
        examples: phi; infinite if no gradient is measurable in the noise.
        sqr: |G|², squared length of the true gradient.
        var: summed variance of the gradient of a batch of the size submitted.
    """

    examples: float
    sqr: float
    var: float
    num_reports: int


def noise_scale_of(job: Job) -> NoiseScale | None:
    """Return a job's noise scale; None before the first report."""
    mean = _average(job).mean()
    if mean is None:
        return None
    examples = noise_scale(mean, job.global_batch_size)
    return NoiseScale(examples, mean.sqr, mean.var, int(job.noise["num_reports"]))


def noise_taken(job: Job, noise: GradientNoise, batch_size: int | None) -> dict[str, Any]:
    """Return `Job.noise` with one more report, of batches of `batch_size` (None: as submitted)."""
    submitted = job.global_batch_size
    average = _average(job).with_value(noise.at_batch_size(batch_size or submitted, submitted))
    num_reports = int(job.noise.get("num_reports", 0)) + 1
    return dataclasses.asdict(average) | {"num_reports": num_reports}


def _average(job: Job) -> NoiseAverage:
    kept = job.noise
    if not kept:
        return NoiseAverage()
    return NoiseAverage(float(kept["sqr"]), float(kept["var"]), float(kept["weight"]))
