"""Nodes, their accelerators, and the one-time tokens for enrolment."""

from __future__ import annotations

import datetime
from enum import StrEnum

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from controlplane.core.values.lifecycle import NodeStatus
from jobs.models.choices import choices


class Node(models.Model):
    """A machine with an agent.

    `status` follows from heartbeats (online or lost). An admin cordons a node (`is_cordoned`: it
    gets no new work, and jobs there keep what they have) or drains it (`is_draining` as well: they
    leave); `cordoned_by` is the actor, and `cordon_reason` what the actor gave. A cordon by
    `system` ends with its cause (services.cluster.cordons). Until `quarantined_until` the node is
    in quarantine for `quarantine_reason`: trainers kept dying there. `quarantined_at` is the start
    of the last quarantine, `num_quarantines` the number of them in a row. `maintenance_from` and
    `maintenance_until` are the times of the first of its maintenance windows that has not ended,
    and of those that follow it so soon that it takes no work between, whatever an admin makes of
    the node by hand: it takes no new work from `maintenance_closes_at` on, and jobs leave at the
    start. `next_agent_token_digest` belongs to a token that was sent to the agent and replaces the
    present one with its first use. `proposed_shape` is that of a newer hello, with other
    accelerators or another address (services.cluster.node_shapes), until an admin accepts it.
    `isolation` is how its newest hello says that jobs run there: "uid", each as a user of its own,
    or "none".
    """

    name = models.CharField(max_length=63, unique=True)
    host = models.CharField(max_length=253)
    first_port = models.PositiveIntegerField()
    last_port = models.PositiveIntegerField()
    status = models.CharField(
        max_length=10,
        choices=choices((NodeStatus.ONLINE, NodeStatus.LOST)),
        default=NodeStatus.ONLINE.value,
    )
    is_cordoned = models.BooleanField(default=False)
    is_draining = models.BooleanField(default=False)
    cordoned_by = models.CharField(max_length=160, blank=True)
    cordon_reason = models.TextField(blank=True)
    quarantined_until = models.DateTimeField(null=True, blank=True)
    quarantined_at = models.DateTimeField(null=True, blank=True)
    num_quarantines = models.PositiveSmallIntegerField(default=0)
    quarantine_reason = models.TextField(blank=True)
    maintenance_from = models.DateTimeField(null=True, blank=True)
    maintenance_until = models.DateTimeField(null=True, blank=True)
    proposed_shape = models.JSONField(null=True, blank=True)
    isolation = models.CharField(max_length=10, default="none")
    boot_id = models.CharField(max_length=64)
    agent_token_digest = models.CharField(max_length=64, unique=True)
    agent_token_issued_at = models.DateTimeField(default=timezone.now)
    next_agent_token_digest = models.CharField(max_length=64, blank=True, db_index=True)
    last_seen_at = models.DateTimeField()
    enrolled_at = models.DateTimeField(auto_now_add=True)
    removed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                name="node_ports_ascend",
                condition=Q(
                    first_port__gte=1, last_port__lte=65535, first_port__lte=F("last_port")
                ),
            ),
            models.CheckConstraint(
                name="node_draining_is_cordoned",
                condition=Q(is_draining=False) | Q(is_cordoned=True),
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def shown_status(self) -> NodeStatus:
        """Status shown to users: lost, quarantined, maintenance, draining, cordoned, or online."""
        if self.status == NodeStatus.LOST:
            return NodeStatus.LOST
        if self.quarantined_until is not None:
            return NodeStatus.QUARANTINED
        if self.is_closed_by_window(timezone.now()):
            return NodeStatus.MAINTENANCE
        if self.is_draining:
            return NodeStatus.DRAINING
        return NodeStatus.CORDONED if self.is_cordoned else NodeStatus.ONLINE

    @property
    def maintenance_closes_at(self) -> datetime.datetime | None:
        """Time from which on the node takes no new work because of its maintenance."""
        if self.maintenance_from is None:
            return None
        return self.maintenance_from - maintenance_lead()

    def is_closed_by_window(self, now: datetime.datetime) -> bool:
        """Return whether the node takes no new work because of its maintenance."""
        closes_at, until = self.maintenance_closes_at, self.maintenance_until
        return closes_at is not None and until is not None and closes_at <= now < until


def maintenance_lead() -> datetime.timedelta:
    """Return the time before maintenance in which a node takes no new work."""
    return datetime.timedelta(seconds=settings.MAINTENANCE_LEAD_S)


class WindowStatus(StrEnum):
    """Status of a maintenance window."""

    PLANNED = "planned"
    UNDER_WAY = "under way"
    ENDED = "ended"
    CANCELLED = "cancelled"


class MaintenanceWindow(models.Model):
    """A time in which a node is empty and takes no work.

    The times alone say when the node is closed; `began_at` and `ended_at` are when the control
    plane has noted it, or when somebody cancelled the window. Windows of a node do not overlap
    (services.cluster.maintenance).
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="windows")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    reason = models.CharField(max_length=500)
    planned_by = models.CharField(max_length=160)
    created_at = models.DateTimeField()
    began_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    is_cancelled = models.BooleanField(default=False)

    class Meta:
        ordering = ("starts_at", "id")
        constraints = (
            models.CheckConstraint(
                name="maintenance_starts_first", condition=Q(starts_at__lt=F("ends_at"))
            ),
        )
        indexes = (
            models.Index(
                name="maintenance_open", fields=("starts_at",), condition=Q(ended_at=None)
            ),
        )

    def __str__(self) -> str:
        return f"maintenance {self.pk} of {self.node_id}"

    @property
    def status(self) -> WindowStatus:
        """Status as the control plane has noted it."""
        if self.is_cancelled:
            return WindowStatus.CANCELLED
        if self.ended_at is not None:
            return WindowStatus.ENDED
        return WindowStatus.PLANNED if self.began_at is None else WindowStatus.UNDER_WAY


class EnrolmentToken(models.Model):
    """Permission for one node to enrol, once. Only the digest is stored.

    `node` is the node that has enrolled with it; while unused, the node that may enrol again.
    """

    digest = models.CharField(max_length=64, unique=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    node = models.ForeignKey(Node, null=True, blank=True, on_delete=models.SET_NULL)

    def __str__(self) -> str:
        return f"enrolment token {self.pk}"


class Accelerator(models.Model):
    """One device of a node. A removed device keeps its row, for the history."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="accelerators")
    index = models.PositiveSmallIntegerField()
    kind = models.CharField(max_length=40)
    name = models.CharField(max_length=120)
    memory_bytes = models.BigIntegerField(default=0)
    threads = models.PositiveSmallIntegerField(default=0)
    uuid = models.CharField(max_length=80, blank=True)
    is_present = models.BooleanField(default=True)

    class Meta:
        ordering = ("node_id", "index")
        constraints = (
            models.UniqueConstraint(name="accelerator_index_once", fields=("node", "index")),
            models.CheckConstraint(
                name="accelerator_memory_not_negative", condition=Q(memory_bytes__gte=0)
            ),
        )

    def __str__(self) -> str:
        return f"{self.node_id}:{self.index}"


class ReadingBin(models.Model):
    """Use of one accelerator over a minute or an hour: means and peaks of its agent's readings.

    `at` is the beginning, `read_at` the time of the last of `num_readings`. A value that no reading
    has told is null. Rows are written by services/reports/readings.py and kept for a time.
    """

    accelerator = models.ForeignKey(Accelerator, on_delete=models.CASCADE, related_name="+")
    width_s = models.PositiveIntegerField()
    at = models.DateTimeField()
    read_at = models.DateTimeField()
    num_readings = models.PositiveIntegerField()
    utilisation_percent = models.FloatField(null=True)
    utilisation_peak = models.FloatField(null=True)
    memory_bytes = models.FloatField(null=True)
    memory_peak = models.FloatField(null=True)
    temperature_c = models.FloatField(null=True)
    power_w = models.FloatField(null=True)

    class Meta:
        ordering = ("accelerator_id", "width_s", "at")
        constraints = (
            models.UniqueConstraint(
                name="reading_bin_once", fields=("accelerator", "width_s", "at")
            ),
        )
        indexes = (models.Index(name="reading_bin_by_time", fields=("width_s", "at")),)

    def __str__(self) -> str:
        return f"{self.accelerator_id} at {self.at}, {self.width_s} s"
