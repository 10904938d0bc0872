"""Liveness window: timeouts count only after the control plane has listened without a gap.

Nodes and trainers that stop reporting time out. A control plane that was down cannot have received
reports, and its downtime must not affect training that continued meanwhile. So timeouts are
enforced only after it has been listening for one lease without a gap.
"""

from __future__ import annotations

import datetime

from django.conf import settings
from django.db.models import Max

from controlplane.core.values.lifecycle import NodeStatus
from jobs.models import ClusterSetting, Node
from jobs.services.scheduling.policy import cluster_setting

SETTLED_S = 1800.0


def watch_keep(now: datetime.datetime) -> bool:
    """Extend the liveness window; return whether timeouts count now.

    The window starts anew after a gap between calls, when the clock was set back, and while reports
    of all nodes are missing (then a fault of the control plane is more likely), up to
    `ALL_SILENT_LEASES`.
    """
    row = cluster_setting()
    if row.watched_at is not None and row.watched_at - now > _longest_gap():
        # The clock was set back: who was heard of by the former one is heard of now.
        Node.objects.filter(last_seen_at__gt=now).update(last_seen_at=now)
        row.watched_at = None
    last_heartbeat_at = Node.objects.filter(status=NodeStatus.ONLINE, removed_at=None).aggregate(
        last=Max("last_seen_at")
    )["last"]
    silence = _lease() if last_heartbeat_at is None else now - last_heartbeat_at
    is_deaf = _lease() < silence <= settings.ALL_SILENT_LEASES * _lease()
    is_gap = row.watched_at is None or now - row.watched_at > _longest_gap()
    since = row.watch_since
    if since is None or is_gap or is_deaf:
        since = now
    ClusterSetting.objects.filter(id=1).update(watched_at=now, watch_since=since)
    return now - since >= _lease()


def watch_is_kept(now: datetime.datetime) -> bool:
    """Return whether timeouts count now, without extending the liveness window."""
    row = cluster_setting()
    if row.watched_at is None or row.watch_since is None:
        return False
    return now - row.watched_at <= _longest_gap() and now - row.watch_since >= _lease()


def clock_is_settled(now: datetime.datetime) -> bool:
    """Return whether the clock has run for `SETTLED_S` without a jump.

    What is deleted for its age does not come back. A machine that starts with a wrong clock, or
    whose clock is set by mistake, has so long to be put right.
    """
    since = cluster_setting().watch_since
    return since is not None and watch_is_kept(now) and (now - since).total_seconds() >= SETTLED_S


def _lease() -> datetime.timedelta:
    return datetime.timedelta(seconds=settings.LEASE_S)


def _longest_gap() -> datetime.timedelta:
    """Return three cycle periods: on a busy machine, two calls may be missed without a gap."""
    return datetime.timedelta(seconds=3 * settings.CYCLE_PERIOD_S)
