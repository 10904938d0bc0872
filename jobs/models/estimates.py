"""Samples collected from reports, the models fitted to them, and forecasts of jobs."""

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


class JobForecast(models.Model):
    """Forecast of the newest scheduling cycle; a job without a row has none, see `of`.

    `expected_start_*_at` are the range of the start of a waiting job, `resized_end_*_at` that of
    the end of a running job that will be resized before: both times or neither.
    `expected_start_changes` counts changes of the first range since the job began to wait.
    """

    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, primary_key=True, related_name="forecast"
    )
    expected_start_earliest_at = models.DateTimeField(null=True, blank=True)
    expected_start_latest_at = models.DateTimeField(null=True, blank=True)
    expected_start_changes = models.PositiveIntegerField(default=0)
    expected_start_changed_at = models.DateTimeField(null=True, blank=True)
    resized_end_earliest_at = models.DateTimeField(null=True, blank=True)
    resized_end_latest_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"forecast of job {self.job_id}"

    @classmethod
    def of(cls, job: Job) -> JobForecast:
        """Return the forecast of a job, an empty one if it has no row."""
        return getattr(job, "forecast", None) or cls(job_id=job.pk)


class StepTimeProfile(models.Model):
    """Measured seconds of one code with one set of settings and one size of slice.

    With `measures` `compute` the row is about one kind of accelerator, and `samples` is by number
    of virtual nodes; with `sync` it is about the kinds that trained together ("fast+slow") and the
    rows that each trainer sent, and `samples` is by number of trainers. A sample is a
    `core.estimates.step_time.Sample` as [count, mean_s, recent_s].
    """

    COMPUTE = "compute"
    SYNC = "sync"

    code_sha256 = models.CharField(max_length=64)
    settings_sha256 = models.CharField(max_length=64)
    measures = models.CharField(max_length=10, choices=((COMPUTE, COMPUTE), (SYNC, SYNC)))
    kind = models.CharField(max_length=200)
    num_rows = models.PositiveSmallIntegerField(default=1)
    samples = models.JSONField(default=dict)
    updated_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                name="step_time_profile_once",
                fields=("code_sha256", "settings_sha256", "measures", "kind", "num_rows"),
            ),
        )

    def __str__(self) -> str:
        return f"{self.measures} times on {self.kind} of code {self.code_sha256[:8]}"
