"""Nodes, their accelerators, and the one-time tokens for enrolment."""

from __future__ import annotations

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
    leave). Until `quarantined_until` the node is in quarantine for `quarantine_reason`: trainers
    kept dying there. `quarantined_at` is the start of the last quarantine, `num_quarantines` the
    number of them in a row. `next_agent_token_digest` belongs to a token that was sent to the agent
    and replaces the present one with its first use. `proposed_shape` is that of a newer hello, with
    other accelerators or another address (services.cluster.node_shapes), until an admin accepts it.
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
    quarantined_until = models.DateTimeField(null=True, blank=True)
    quarantined_at = models.DateTimeField(null=True, blank=True)
    num_quarantines = models.PositiveSmallIntegerField(default=0)
    quarantine_reason = models.TextField(blank=True)
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
        """Status shown to users: lost, quarantined, draining, cordoned, or else online."""
        if self.status == NodeStatus.LOST:
            return NodeStatus.LOST
        if self.quarantined_until is not None:
            return NodeStatus.QUARANTINED
        if self.is_draining:
            return NodeStatus.DRAINING
        return NodeStatus.CORDONED if self.is_cordoned else NodeStatus.ONLINE


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
