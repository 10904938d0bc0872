"""Rows by which jobs are searched and sorted, and their use is summed up by day.

They repeat what jobs, epochs and memberships hold, so that no answer reads all of these.
"""

from __future__ import annotations

import datetime

from django.conf import settings
from django.db import models

from jobs.models.jobs import Job
from jobs.models.projects import Project

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


class UsageDay(models.Model):
    """A day in UTC, and whether its `UsageSum` rows hold.

    `revision` counts the changes of the day's past, such as of a tag; the sums hold while it equals
    `summed_revision`. `idle_percent`: the setting by which its readings were called idle;
    `has_idle`: whether they were few enough to be looked at. `held_over`: numbers of allocations
    that were held at its beginning.
    """

    day = models.DateField(unique=True)
    revision = models.PositiveIntegerField(default=0)
    summed_revision = models.PositiveIntegerField(null=True)
    idle_percent = models.FloatField(null=True)
    has_idle = models.BooleanField(default=True)
    held_over = models.JSONField(default=list)

    class Meta:
        ordering = ("day",)

    def __str__(self) -> str:
        return f"usage of {self.day}"


class UsageSum(models.Model):
    """Use of a day by the jobs of a project, an owner and a search term such as `tag=baseline`.

    With an empty term each job counts once. `held` is the time on accelerators of `kind`; one row
    with an empty kind has the other sums.
    """

    day = models.DateField()
    project = models.ForeignKey(Project, null=True, on_delete=models.CASCADE, related_name="+")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    term = models.CharField(max_length=TERM_LIMIT, blank=True)
    kind = models.CharField(max_length=40, blank=True)
    held = models.DurationField(default=datetime.timedelta)
    idle_s = models.FloatField(default=0.0)
    paused_s = models.FloatField(default=0.0)

    class Meta:
        ordering = ("day",)
        indexes = (models.Index(name="usage_sum_by_day", fields=("day", "term")),)

    def __str__(self) -> str:
        return f"usage of {self.owner_id} on {self.day}"
