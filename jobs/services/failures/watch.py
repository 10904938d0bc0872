"""Whether silence means anything.

Nodes and trainers that are not heard of have a time limit. It may only count while this side was
able to hear them: a control plane that was away must change nothing of the training that went on
meanwhile. So limits are enforced only after the watch has been kept for one lease without a gap.
"""

from __future__ import annotations

import datetime

from django.conf import settings
from django.db.models import Max

from controlplane.core.values.lifecycle import NodeStatus
from jobs.models import ClusterSetting, Node
from jobs.services.scheduling.policy import cluster_setting


def watch_keep(now: datetime.datetime) -> bool:
    """Note that somebody looks for silent nodes; say whether silence counts by now.

    The watch begins anew when nobody looked for a while, and as long as no node at all is heard of
    (then it is more likely that this side hears nothing), up to `ALL_SILENT_LEASES`.
    """
    row = cluster_setting()
    heard_at = Node.objects.filter(status=NodeStatus.ONLINE, removed_at=None).aggregate(
        last=Max("last_seen_at")
    )["last"]
    silence = _lease() if heard_at is None else now - heard_at
    is_deaf = _lease() < silence <= settings.ALL_SILENT_LEASES * _lease()
    is_gap = row.watched_at is None or now - row.watched_at > _longest_gap()
    since = row.watch_since
    if since is None or is_gap or is_deaf:
        since = now
    ClusterSetting.objects.filter(id=1).update(watched_at=now, watch_since=since)
    return now - since >= _lease()


def watch_is_kept(now: datetime.datetime) -> bool:
    """Say whether silence counts now, without being the one who keeps watch."""
    row = cluster_setting()
    if row.watched_at is None or row.watch_since is None:
        return False
    return now - row.watched_at <= _longest_gap() and now - row.watch_since >= _lease()


def _lease() -> datetime.timedelta:
    return datetime.timedelta(seconds=settings.LEASE_S)


def _longest_gap() -> datetime.timedelta:
    """Beats may come late on a busy machine; more than two missing ones are a gap."""
    return datetime.timedelta(seconds=3 * settings.CYCLE_PERIOD_S)
