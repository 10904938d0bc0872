"""Forecasts of the start and the end of a job, made by the scheduling cycle."""

from __future__ import annotations

from django.db import models

from jobs.models.jobs import Job


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
