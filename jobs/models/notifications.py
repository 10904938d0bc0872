"""Notifications: where a user wants to hear of events, and each message sent there."""

from __future__ import annotations

from enum import StrEnum

from django.conf import settings
from django.db import models
from django.db.models import Q

from jobs.models.choices import choices
from jobs.models.history import Event

#: Kind of the messages by which an owner tests a channel.
TEST_EVENT = "test"
PAUSED_BY_OWNER = "paused by its owner"
#: Reason for which a new mail channel gets nothing but its code.
NOT_CONFIRMED = "its address is not confirmed"


class ChannelKind(StrEnum):
    """Ways to send a notification."""

    WEBHOOK = "webhook"
    EMAIL = "email"
    CHAT = "chat"


class DeliveryStatus(StrEnum):
    """States of one message."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"


class NotificationChannel(models.Model):
    """An address of a user, and the kinds of events that are sent to it.

    Attributes:
        address: encrypted (jobs.sealing): addresses of chats are credentials.
        shown_address: the part of the address that is no credential.
        signing_key: of webhooks, encrypted.
        events: kinds of `Event`.
        is_cluster_wide: events of all jobs and nodes, while the owner is an admin.
        paused_reason: `PAUSED_BY_OWNER`, `NOT_CONFIRMED`, or the cause for which nothing is sent
            any more; empty: it is sent.
        num_failures: messages given up since the last one that was delivered.
        num_dropped: messages that were not kept because too many waited.
    """

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notification_channels"
    )
    name = models.CharField(max_length=60)
    kind = models.CharField(max_length=10, choices=choices(ChannelKind))
    address = models.TextField()
    shown_address = models.CharField(max_length=200)
    signing_key = models.TextField(blank=True)
    events = models.JSONField(default=list)
    is_cluster_wide = models.BooleanField(default=False)
    paused_reason = models.CharField(max_length=300, blank=True)
    num_failures = models.PositiveIntegerField(default=0)
    num_dropped = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("name",)
        constraints = (models.UniqueConstraint(name="channel_name_once", fields=("owner", "name")),)

    def __str__(self) -> str:
        return self.name

    @property
    def is_confirmed(self) -> bool:
        """False while the address of a mail channel gets nothing but its code."""
        return self.paused_reason != NOT_CONFIRMED


class NotificationDelivery(models.Model):
    """One message to one channel.

    Attributes:
        body: the message as JSON, as it was at the time of the event.
        next_try_at: time of the next attempt; while one is under way, the time of the one after.
        answer: what came of the last attempt, for the owner.
    """

    channel = models.ForeignKey(
        NotificationChannel, on_delete=models.CASCADE, related_name="deliveries"
    )
    event = models.ForeignKey(
        Event, null=True, on_delete=models.SET_NULL, related_name="notifications"
    )
    kind = models.CharField(max_length=40)
    body = models.JSONField()
    status = models.CharField(
        max_length=10, choices=choices(DeliveryStatus), default=DeliveryStatus.WAITING.value
    )
    num_attempts = models.PositiveSmallIntegerField(default=0)
    next_try_at = models.DateTimeField()
    answer = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "notification deliveries"
        indexes = (
            models.Index(
                name="delivery_due", fields=("next_try_at",), condition=Q(status="waiting")
            ),
            models.Index(name="delivery_by_channel", fields=("channel", "-id")),
        )

    def __str__(self) -> str:
        return f"{self.kind} to {self.channel_id}"
