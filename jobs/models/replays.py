"""Questions of the kind "what if": the cluster's own past under another policy or size."""

from __future__ import annotations

from enum import StrEnum

from django.conf import settings
from django.db import models

from jobs.models.choices import choices


class ReplayStatus(StrEnum):
    """Where a replay stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE_REPLAY_STATUSES = (ReplayStatus.WAITING, ReplayStatus.RUNNING)


class Replay(models.Model):
    """One question and, when it is done, its answer.

    `accelerators` is the size to be tried, by kind. `beat_at` is when the worker was last heard of;
    one that has been silent for long is taken for lost. `result` is what `services.replays` makes.
    """

    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    asked_at = models.DateTimeField()
    policy = models.CharField(max_length=40)
    accelerators = models.JSONField(default=dict)
    start_at = models.DateTimeField()
    end_at = models.DateTimeField()
    status = models.CharField(
        max_length=10, choices=choices(ReplayStatus), default=ReplayStatus.WAITING.value
    )
    attempts = models.PositiveSmallIntegerField(default=0)
    progress = models.FloatField(default=0.0)
    beat_at = models.DateTimeField(null=True, blank=True)
    done_at = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True)
    result = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"what if {self.policy} had ruled"

    @property
    def is_live(self) -> bool:
        """True while an answer is still to come."""
        return self.status in LIVE_REPLAY_STATUSES
