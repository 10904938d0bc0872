"""Messages about events, queued in the transaction of the event for the channels that want them."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.db.models import Count, F, Q

from jobs import nudges
from jobs.models import DeliveryStatus, Event, Job, Node, NotificationChannel, NotificationDelivery
from jobs.selectors.access import text_for

#: Kinds of events that channels can ask for, in words.
JOB_EVENTS = {
    "running": "started training",
    "finished": "finished",
    "failed": "failed",
    "invalid": "refused by its validation",
    "cancelled": "cancelled",
    "preempted": "preempted",
    "paused": "paused",
    "resumed": "resumed",
    "restart": "restarted from a checkpoint",
    "trainer_failed": "lost a trainer",
    "selection_ended": "ended its selection of examples",
    "tuned": "kept a trial of its tuning",
    "maintenance": "leaves a node for its maintenance",
    "digest_mismatch": "differs from its earlier result",
}
#: The same, of the cluster: for admins.
CLUSTER_EVENTS = {
    "node_enrolled": "a node was enrolled",
    "node_lost": "a node was lost",
    "node_back": "a node came back",
    "node_quarantined": "a node was quarantined",
    "node_doubted": "a node may be broken",
    "maintenance_began": "maintenance of a node began",
    "maintenance_ended": "maintenance of a node ended",
    "node_changed": "a node has other hardware than enrolled",
    "policy": "the policy was changed",
    "cycle_failed": "scheduling fails",
    "cycle_succeeded": "scheduling succeeds again",
}
#: Messages of one channel that may wait; more are dropped and counted. So many about the cluster
#: may wait besides: of those about jobs anybody can cause any number.
WAITING_LIMIT, CLUSTER_WAITING_LIMIT = 500, 100
_DATA_KEYS_LIMIT = 40
_TEXT_LIMIT = 2000


def deliveries_add(events: Sequence[Event]) -> None:
    """Queue a message about each event for each channel that wants it; none about trials."""
    channels: dict[int | None, list[NotificationChannel]] = {}
    wanted: list[NotificationDelivery] = []
    for event in events:
        job = event.job
        is_of_job = event.kind in JOB_EVENTS and job is not None
        if not is_of_job and event.kind not in CLUSTER_EVENTS:
            continue
        if job is not None and job.trial_of_id is not None:
            continue
        owner_id = job.owner_id if is_of_job and job is not None else None
        if owner_id not in channels:
            channels[owner_id] = _channels(owner_id)
        for channel in channels[owner_id]:
            if event.kind in channel.events:
                body = text_for(channel.owner, message_body(event, job, event.node))
                wanted.append(delivery_make(channel, event.kind, body, event.at, event))
    deliveries_queue(wanted)


def _channels(owner_id: int | None) -> list[NotificationChannel]:
    """List channels of the cluster and, unless that is None, of the owner of a job."""
    wanted = Q(is_cluster_wide=True, owner__is_staff=True)
    if owner_id is not None:
        wanted |= Q(is_cluster_wide=False, owner=owner_id)
    channels = NotificationChannel.objects.filter(
        wanted, paused_reason="", owner__is_active=True
    ).annotate(
        num_waiting=Count("deliveries", filter=Q(deliveries__status=DeliveryStatus.WAITING.value))
    )
    return list(channels.select_related("owner"))


def delivery_make(
    channel: NotificationChannel,
    kind: str,
    body: dict[str, Any],
    now: datetime.datetime,
    event: Event | None = None,
) -> NotificationDelivery:
    """Return a message to be queued by `deliveries_queue`."""
    return NotificationDelivery(
        channel=channel, event=event, kind=kind, body=body, next_try_at=now, created_at=now
    )


def deliveries_queue(deliveries: Sequence[NotificationDelivery]) -> None:
    """Queue messages; drop and count those of a channel of which too many wait.

    Args:
        deliveries: their channels have the annotation `num_waiting`.
    """
    taken, dropped = [], Counter[int]()
    waiting = {one.channel_id: one.channel.num_waiting for one in deliveries}  # type: ignore[attr-defined]
    for one in deliveries:
        more = CLUSTER_WAITING_LIMIT if one.kind in CLUSTER_EVENTS else 0
        if waiting[one.channel_id] < WAITING_LIMIT + more:
            waiting[one.channel_id] += 1
            taken.append(one)
        else:
            dropped[one.channel_id] += 1
    NotificationDelivery.objects.bulk_create(taken)
    for channel_id, count in dropped.items():
        rows = NotificationChannel.objects.filter(id=channel_id)
        rows.update(num_dropped=F("num_dropped") + count)
    nudges.deliveries_enqueue(len(taken))


def message_body(event: Event, job: Job | None, node: Node | None) -> dict[str, Any]:
    """Return an event as JSON, in the form of docs/notifications.md."""
    about = "job" if event.kind in JOB_EVENTS else "cluster"
    figures = dict(list(event.data.items())[:_DATA_KEYS_LIMIT])
    data: dict[str, Any] = {
        "event": event.pk,
        "message": event.message[:_TEXT_LIMIT],
        "actor": event.actor,
        "figures": {
            name: value for name, value in figures.items() if isinstance(value, int | float)
        },
    }
    if job is not None:
        data["job"] = {
            "id": job.pk,
            "name": job.name,
            "owner": job.owner.get_username(),
            "status": job.status,
            "priority": job.priority,
            "step": job.step,
            "path": f"/jobs/{job.pk}/",
        }
    if node is not None:
        data["node"] = {"id": node.pk, "name": node.name, "path": "/nodes/"}
    return {"type": f"{about}.{event.kind}", "timestamp": event.at.isoformat(), "data": data}
