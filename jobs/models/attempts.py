"""Counts of a job's attempts since it last made progress."""

from __future__ import annotations

from django.db import models

from jobs.models.jobs import Job


class JobAttempts(models.Model):
    """Attempts since the job last exceeded `furthest_step`; see services/lifecycle/attempts.py.

    A job without a row has failed in no attempt. `crash_generation` is the one of the last crash.
    """

    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, primary_key=True, related_name="attempts"
    )
    furthest_step = models.PositiveBigIntegerField(default=0)
    restarts = models.PositiveSmallIntegerField(default=0)
    recoveries = models.PositiveSmallIntegerField(default=0)
    crashes = models.PositiveSmallIntegerField(default=0)
    crash_generation = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"attempts of job {self.job_id}"
