"""Sweeps: jobs that differ in some settings, and of which only some run at once."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q


class Sweep(models.Model):
    """A group of jobs over a space of settings; its jobs are ordinary ones with `Job.sweep` set.

    Attributes:
        space: by setting: a list of values, or an object with `low`, `high` and more; see
            `jobs.sweep_space`.
        num_draws: number of random draws; None: a grid.
        max_running: most of its jobs that hold accelerators at once.
        is_paused: none of its jobs begins.
    """

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="sweeps"
    )
    name = models.CharField(max_length=100)
    template = models.CharField(max_length=60, blank=True)
    space = models.JSONField()
    num_draws = models.PositiveSmallIntegerField(null=True, blank=True)
    seed = models.BigIntegerField(default=0)
    max_running = models.PositiveSmallIntegerField()
    is_paused = models.BooleanField(default=False)
    submitted_at = models.DateTimeField()

    class Meta:
        ordering = ("-id",)
        constraints = (
            models.CheckConstraint(name="sweep_runs_something", condition=Q(max_running__gte=1)),
        )

    def __str__(self) -> str:
        return f"sweep {self.pk} ({self.name})"
