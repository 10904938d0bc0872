"""Trials of tuned jobs, as their newest reports have them."""

from __future__ import annotations

from django.db import models

from controlplane.core.tuning.convergence import Verdict
from controlplane.core.tuning.search import SearchEnd, TrialEnd
from jobs.models.choices import choices
from jobs.models.jobs import Job


class Trial(models.Model):
    """One trial: a branch of a job's state under tunables of its own.

    `losses` are means over tenths of the trial time, as far as they are known, and `start_loss` is
    that of the state from which it started. `generation` and `step` are those of the report.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="trials")
    number = models.PositiveIntegerField()
    search = models.PositiveIntegerField()
    values = models.JSONField()
    steps = models.PositiveBigIntegerField()
    start_loss = models.FloatField(null=True, blank=True)
    losses = models.JSONField(default=list, blank=True)
    verdict = models.CharField(max_length=12, blank=True, choices=choices(Verdict))
    speed = models.FloatField()
    end = models.CharField(max_length=12, blank=True, choices=choices(TrialEnd))
    search_end = models.CharField(max_length=16, blank=True, choices=choices(SearchEnd))
    is_running = models.BooleanField(default=False)
    generation = models.PositiveIntegerField()
    step = models.PositiveBigIntegerField()
    at = models.DateTimeField()

    class Meta:
        ordering = ("job_id", "number")
        constraints = (models.UniqueConstraint(name="trial_once", fields=("job", "number")),)

    def __str__(self) -> str:
        return f"trial {self.number} of job {self.job_id}"
