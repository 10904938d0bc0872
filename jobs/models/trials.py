"""Trials of tuned jobs, as their newest reports have them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from controlplane.core.tuning.convergence import Verdict
from controlplane.core.tuning.search import SearchEnd, TrialEnd
from jobs.models.choices import choices
from jobs.models.jobs import Job


class Trial(models.Model):
    """One trial: a branch of a job's state under tunables of its own.

    `losses` are means over tenths of the trial time, as far as they are known, and `start_loss` is
    that of the state from which it started. `generation` is that of the newest report, `step` that
    of the first one with the present values.

    A parallel trial is `child`, a job of its own, or if that is null the job itself with the values
    that it has. Its search is the number of its round, `step` that of the state where it started.
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
    child = models.ForeignKey(
        Job, null=True, blank=True, on_delete=models.PROTECT, related_name="tried_as"
    )
    is_running = models.BooleanField(default=False)
    generation = models.PositiveIntegerField()
    step = models.PositiveBigIntegerField()
    at = models.DateTimeField()

    class Meta:
        ordering = ("job_id", "number")
        constraints = (models.UniqueConstraint(name="trial_once", fields=("job", "number")),)

    def __str__(self) -> str:
        return f"trial {self.number} of job {self.job_id}"


class TuningRound(models.Model):
    """A round of parallel trials of a job, which start from one of its states.

    Attributes:
        num_steps: of each trial.
        num_trials: trials besides the job itself.
        start_step, start_loss: of the state; null until the job has saved it.
        outcome: why it ended; "" while it is open.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="tuning_rounds")
    number = models.PositiveIntegerField()
    num_steps = models.PositiveIntegerField()
    num_trials = models.PositiveSmallIntegerField()
    begun_at = models.DateTimeField()
    start_step = models.PositiveBigIntegerField(null=True, blank=True)
    start_loss = models.FloatField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=20, blank=True)

    class Meta:
        ordering = ("job_id", "number")
        constraints = (
            models.UniqueConstraint(name="tuning_round_once", fields=("job", "number")),
            models.UniqueConstraint(
                name="tuning_round_one_open", fields=("job",), condition=Q(ended_at__isnull=True)
            ),
        )

    def __str__(self) -> str:
        return f"round {self.number} of job {self.job_id}"
