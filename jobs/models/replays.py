"""What-if replays: the cluster's own past under another policy or size."""

from __future__ import annotations

from enum import StrEnum

from django.conf import settings
from django.db import models

from jobs.models.choices import choices


class ReplayStatus(StrEnum):
    """State of a replay."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE_REPLAY_STATUSES = (ReplayStatus.WAITING, ReplayStatus.RUNNING)


class Replay(models.Model):
    """One replay request and, when done, its result.

    `accelerators` is the size of the replayed cluster, by kind. `resize_cost_s` is the time for
    which every start and every resize stops a job; None: as measured. `beat_at` is the last
    heartbeat of the worker; a worker silent for long counts as lost. `result` comes from
    `services.cluster.replay_run`.
    """

    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    requested_at = models.DateTimeField()
    policy = models.CharField(max_length=40)
    accelerators = models.JSONField(default=dict)
    resize_cost_s = models.FloatField(null=True, blank=True)
    start_at = models.DateTimeField()
    end_at = models.DateTimeField()
    status = models.CharField(
        max_length=10, choices=choices(ReplayStatus), default=ReplayStatus.WAITING.value
    )
    attempts = models.PositiveSmallIntegerField(default=0)
    progress = models.FloatField(default=0.0)
    beat_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True)
    result = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"what if {self.policy} had ruled"

    @property
    def title(self) -> str:
        """Number, policy and, unless it is the measured one, resize cost."""
        return ", ".join(filter(None, (f"{self.pk}: {self.policy}", self.resize_cost)))

    @property
    def resize_cost(self) -> str:
        """Resize cost in words; empty if it is the measured one."""
        return "" if self.resize_cost_s is None else f"resize cost {self.resize_cost_s:g} s"

    @property
    def is_live(self) -> bool:
        """True until the replay has ended."""
        return self.status in LIVE_REPLAY_STATUSES
