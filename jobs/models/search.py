"""Rows by which lists of jobs are searched and sorted; they repeat what jobs and epochs hold."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from jobs.models.jobs import Job

TERM_LIMIT = 300


class SearchTerm(models.Model):
    """A property of a job that a list can ask for: `tag=baseline`, `setting=filters=32`."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="search_terms")
    term = models.CharField(max_length=TERM_LIMIT)

    class Meta:
        constraints = (models.UniqueConstraint(name="search_term_once", fields=("term", "job")),)

    def __str__(self) -> str:
        return f"{self.term} of job {self.job_id}"


class JobMetric(models.Model):
    """A metric of a job's epochs: its best value, in which epoch, and the newest one."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="metric_values")
    name = models.CharField(max_length=100)
    best = models.FloatField()
    best_epoch = models.PositiveIntegerField()
    last = models.FloatField()

    class Meta:
        constraints = (models.UniqueConstraint(name="job_metric_once", fields=("job", "name")),)
        indexes = (models.Index(name="job_metric_by_best", fields=("name", "best", "job")),)

    def __str__(self) -> str:
        return f"{self.name} of job {self.job_id}"


class SavedFilter(models.Model):
    """A filter of a user's list of jobs, by a name: the query of the list's address."""

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_filters"
    )
    name = models.CharField(max_length=60)
    query = models.CharField(max_length=2000)
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ("name",)
        constraints = (models.UniqueConstraint(name="saved_filter_once", fields=("owner", "name")),)

    def __str__(self) -> str:
        return f"{self.name} of {self.owner_id}"
