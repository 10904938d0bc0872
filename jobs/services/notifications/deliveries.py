"""Attempts to deliver messages: claimed once, tried again later, given up in the end."""

from __future__ import annotations

import datetime
import random
from collections import Counter

from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db import transaction
from django.db.models import F, Min, Q, QuerySet

from jobs.models import DeliveryStatus, NotificationChannel, NotificationDelivery
from jobs.models.notifications import NOT_CONFIRMED, TEST_EVENT
from jobs.selectors.access import deliveries_visible_to
from jobs.services.notifications.senders import Sent, send

#: Seconds until the next attempt, after each failed one; the message is given up after the last.
RETRY_S = (10, 60, 300, 1800, 7200, 21600)
#: A message whose attempt did not end (a killed worker) is tried again after this time.
CLAIM_S = 120
#: A channel is paused after so many messages in a row that were given up.
FAILURES_LIMIT = 10
#: Attempts that one sweep asks for.
SWEEP_LIMIT = 100
#: Answer of a message while an attempt is under way.
UNDER_WAY = "being sent"
_DELETED_AT_ONCE = 5000
_CODES = Q(channel__paused_reason=NOT_CONFIRMED, kind=TEST_EVENT)
_SENT_NOW = (Q(channel__paused_reason="") | _CODES) & Q(channel__owner__is_active=True)


def deliveries_due(now: datetime.datetime) -> list[int]:
    """List the oldest message due of each channel, in the order in which they are to be sent.

    Whose messages are under way in the smallest number comes first, so that receivers that are slow
    or away delay the messages of their owner alone.
    """
    under_way = _waiting().filter(answer=UNDER_WAY, next_try_at__gt=now)
    pairs = [*under_way.values_list("channel__owner_id", "channel_id")]
    of_owner, of_channel = Counter(o for o, _ in pairs), Counter(c for _, c in pairs)
    due = _due(now).values_list("channel__owner_id", "channel_id").annotate(first=Min("id"))
    ordered = sorted(due, key=lambda row: (of_owner[row[0]], of_channel[row[1]], row[2]))
    return [first for _, _, first in ordered]


def deliveries_to_ask(now: datetime.datetime) -> int:
    """Return how many attempts a sweep is to ask for."""
    return min(_due(now).count(), SWEEP_LIMIT)


def next_attempt(now: datetime.datetime) -> bool:
    """Try to deliver the message whose turn it is; return whether an attempt was made."""
    return any(delivery_attempt(due, now) for due in deliveries_due(now))


def delivery_attempt(delivery_id: int, now: datetime.datetime) -> bool:
    """Try to deliver a message if it is due; return whether an attempt was made.

    Two workers that are given the same message make one attempt: the first claims it.
    """
    if not _due(now).filter(id=delivery_id).exists():
        return False
    # Conditions on this table alone: after a wait for the row PostgreSQL checks no others again.
    still_due = NotificationDelivery.objects.filter(
        id=delivery_id, status=DeliveryStatus.WAITING.value, next_try_at__lte=now
    )
    claimed = still_due.update(
        next_try_at=now + datetime.timedelta(seconds=CLAIM_S),
        num_attempts=F("num_attempts") + 1,
        answer=UNDER_WAY,
    )
    rows = NotificationDelivery.objects.select_related("channel__owner")
    delivery = rows.filter(id=delivery_id).first() if claimed else None
    if delivery is None:
        return False
    channel = delivery.channel
    visible = deliveries_visible_to(channel.owner, channel.deliveries.filter(id=delivery_id))
    if not visible.exists():
        sent = Sent(is_delivered=False, answer="Its owner is no admin any more.", is_final=True)
    elif delivery.num_attempts > len(RETRY_S) + 1:  # workers died in the last attempts
        sent = Sent(is_delivered=False, answer="The attempts did not end.")
    else:
        try:
            sent = send(delivery, now)
        except SoftTimeLimitExceeded:  # a receiver may send its answer byte by byte
            sent = Sent(is_delivered=False, answer="No answer in time.")
    _attempt_record(delivery, sent, now)
    return True


def _waiting() -> QuerySet[NotificationDelivery]:
    return NotificationDelivery.objects.filter(_SENT_NOW, status=DeliveryStatus.WAITING.value)


def _due(now: datetime.datetime) -> QuerySet[NotificationDelivery]:
    return _waiting().filter(next_try_at__lte=now)


def _attempt_record(delivery: NotificationDelivery, sent: Sent, now: datetime.datetime) -> None:
    channels = NotificationChannel.objects.filter(id=delivery.channel_id)
    delivery.answer = sent.answer
    if sent.is_delivered:
        delivery.status, delivery.ended_at = DeliveryStatus.DELIVERED.value, now
    elif sent.is_final or delivery.num_attempts > len(RETRY_S):
        delivery.status, delivery.ended_at = DeliveryStatus.FAILED.value, now
    else:
        # Messages that failed together must not come back together.
        wait_s = RETRY_S[delivery.num_attempts - 1] * random.uniform(1.0, 1.2)  # noqa: S311
        delivery.next_try_at = now + datetime.timedelta(seconds=wait_s)
    with transaction.atomic():
        if sent.is_delivered:
            channels.exclude(num_failures=0).update(num_failures=0)
        elif delivery.status == DeliveryStatus.FAILED.value:
            channels.update(num_failures=F("num_failures") + 1)
            reason = f"{FAILURES_LIMIT} messages in a row were given up: {sent.answer}"
            if sent.is_final:
                reason = f"the receiver will take no more: {sent.answer}"
            failing = (
                channels if sent.is_final else channels.filter(num_failures__gte=FAILURES_LIMIT)
            )
            failing.filter(paused_reason="").update(paused_reason=reason[:300])
        names = ("answer", "status", "ended_at", "next_try_at")
        # Not `save`: the owner may have deleted the channel meanwhile, which locks it first, too.
        rows = NotificationDelivery.objects.filter(id=delivery.pk)
        rows.update(**{name: getattr(delivery, name) for name in names})


def deliveries_expire(now: datetime.datetime) -> int:
    """Delete messages that ended long ago; return their number."""
    before = now - datetime.timedelta(days=settings.NOTIFICATION_DAYS)
    old = NotificationDelivery.objects.filter(created_at__lt=before)
    ids = list(old.order_by("id").values_list("id", flat=True)[:_DELETED_AT_ONCE])
    return NotificationDelivery.objects.filter(id__in=ids).delete()[0]
