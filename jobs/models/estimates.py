"""Samples collected from a job's reports, and the models fitted to them."""

from __future__ import annotations

from django.db import models

from jobs.models.jobs import Job


class JobEstimates(models.Model):
    """One row for each job that has trained, separate from the job because of its size.

    `samples` are measured steps by configuration, the newest last, as [kind, nodes, accelerators,
    batch size, virtual nodes of the busiest, count, seconds of a step, seconds of one slice's
    gradient]; `code_samples` those of other jobs of the same code and settings, as of the last fit
    of this one. `throughput` is kind -> parameters of a
    `core.estimates.throughput.ThroughputModel`.
    `losses` are (useful examples, loss) in rising order, `loss_fit` is a
    `core.estimates.loss_prediction.LossFit` or empty. All fields cover steps up to `step`.
    """

    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, primary_key=True, related_name="estimates"
    )
    step = models.PositiveBigIntegerField(default=0)
    useful_examples = models.FloatField(default=0.0)
    samples = models.JSONField(default=list, blank=True)
    code_samples = models.JSONField(default=list, blank=True)
    throughput = models.JSONField(default=dict, blank=True)
    losses = models.JSONField(default=list, blank=True)
    loss_fit = models.JSONField(default=dict, blank=True)
    updated_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"estimates of job {self.job_id} at step {self.step}"
