"""Recorded history: steps, epochs, events and logs. Rows are added and never changed.

Except the last report of steps: the selection passes after a job's last step are added to it.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from controlplane.core.protocol.plain_text import UNFINISHED_LIMIT
from jobs.models.jobs import Job
from jobs.models.nodes import Node


class StepReport(models.Model):
    """Some consecutive steps of a job over batches of one size: mean loss and speed."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="step_reports")
    generation = models.PositiveIntegerField()
    first_step = models.PositiveBigIntegerField()
    last_step = models.PositiveBigIntegerField()
    epoch = models.PositiveIntegerField()
    examples = models.PositiveBigIntegerField()
    # Of the selection passes before the steps: candidates, those whose loss was computed, and
    # their time, which is a part of `seconds`.
    candidates = models.PositiveBigIntegerField(default=0)
    analysed = models.PositiveBigIntegerField(default=0)
    pass_s = models.FloatField(default=0.0)
    seconds = models.FloatField()
    loss = models.FloatField(null=True, blank=True)
    num_accelerators = models.PositiveIntegerField()
    # |mean gradient|² and the summed variance of one batch's gradient, unbiased estimates.
    noise_sqr = models.FloatField(null=True, blank=True)
    noise_var = models.FloatField(null=True, blank=True)
    batch_size = models.PositiveIntegerField(null=True, blank=True)
    learning_rate = models.FloatField(null=True, blank=True)
    at = models.DateTimeField()

    class Meta:
        ordering = ("job_id", "last_step")
        constraints = (
            models.UniqueConstraint(
                name="steps_reported_once", fields=("job", "generation", "first_step")
            ),
            models.CheckConstraint(name="steps_take_time", condition=Q(seconds__gt=0)),
        )
        indexes = (
            models.Index(name="steps_by_job", fields=("job", "last_step")),
            models.Index(name="steps_by_time", fields=("at",)),
            models.Index(
                name="analysed_steps_by_job",
                fields=("job", "last_step"),
                condition=Q(analysed__gt=0),
            ),
        )

    def __str__(self) -> str:
        return f"steps {self.first_step}-{self.last_step} of job {self.job_id}"


class EpochReport(models.Model):
    """The logs of one epoch, validation results included."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="epoch_reports")
    epoch = models.PositiveIntegerField()
    generation = models.PositiveIntegerField()
    step = models.PositiveBigIntegerField()
    logs = models.JSONField()
    at = models.DateTimeField()

    class Meta:
        ordering = ("job_id", "epoch")
        constraints = (
            models.UniqueConstraint(name="epoch_reported_once", fields=("job", "epoch")),
        )

    def __str__(self) -> str:
        return f"epoch {self.epoch} of job {self.job_id}"


class Event(models.Model):
    """An occurrence of interest to users, with its actor and figures."""

    job = models.ForeignKey(
        Job, null=True, blank=True, on_delete=models.CASCADE, related_name="events"
    )
    node = models.ForeignKey(
        Node, null=True, blank=True, on_delete=models.CASCADE, related_name="events"
    )
    kind = models.CharField(max_length=40)
    actor = models.CharField(max_length=160, blank=True)
    message = models.TextField()
    data = models.JSONField(default=dict, blank=True)
    at = models.DateTimeField()

    class Meta:
        ordering = ("-id",)
        indexes = (
            models.Index(name="event_by_job", fields=("job", "-id")),
            models.Index(name="event_by_node", fields=("node", "-id")),
            models.Index(name="event_by_kind", fields=("kind", "at")),
        )

    def __str__(self) -> str:
        return self.message


class LogChunk(models.Model):
    """A piece of one trainer's log; `offset` is the position of its first byte in that log.

    `text` is the `size_bytes` as a terminal would show them. A carriage return as its first
    character means: the text replaces the unfinished line before it. `unfinished` is the beginning
    of an escape sequence that the next chunk may complete.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="log_chunks")
    slot = models.PositiveIntegerField()
    offset = models.PositiveBigIntegerField()
    size_bytes = models.PositiveIntegerField()
    text = models.TextField(blank=True)
    unfinished = models.CharField(max_length=UNFINISHED_LIMIT, blank=True, default="")
    at = models.DateTimeField()

    class Meta:
        ordering = ("job_id", "slot", "offset")
        constraints = (
            models.UniqueConstraint(name="log_chunk_once", fields=("job", "slot", "offset")),
        )

    def __str__(self) -> str:
        return f"log of slot {self.slot} of job {self.job_id} at {self.offset}"
