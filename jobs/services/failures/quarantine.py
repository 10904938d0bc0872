"""Quarantine of nodes on which trainers keep dying; each quarantine lasts longer than the last.

A death caused by the job's own code is no evidence against a node. So a death counts against a node
only if no trainer of the same job died elsewhere recently and the job did not fail by its own
fault; and quarantine takes deaths of two jobs: of two owners, while jobs of others train there. A
trainer that could not be started counts no more: its job's code had run by then, and may have said
so. A trainer that did not get ready in time counts as well, for the node may be half dead: its
agent reports, but nothing starts there. Where all were late, trainers of others that came up there
clear the node: the code of these jobs may be slow.
"""

from __future__ import annotations

import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet

from controlplane.core.protocol.nonfinite import NONFINITE_CODES
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Allocation, AuditAction, Node
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import SYSTEM, event_add

_LATE = "timeout"
_DEATHS = ("crash", "unreachable", "internal", "port_in_use", _LATE)
_OWN_FAULTS = ("crash_loop", "user_code", "out_of_memory", *sorted(NONFINITE_CODES))
#: Doublings after which the quarantine has reached its maximum.
_DOUBLINGS_LIMIT = 16


def node_judge(node_id: int, now: datetime.datetime) -> bool:
    """Quarantine a node if too many trainers died there recently; return whether that was done."""
    node = Node.objects.filter(id=node_id, quarantined_until=None, removed_at=None).first()
    if node is None or not settings.QUARANTINE_DEATHS:
        return False
    rows = list(
        _deaths(now, node.quarantined_at).filter(accelerator__node=node).select_related("job")
    )
    elsewhere = set(
        _deaths(now, None).exclude(accelerator__node=node).values_list("job_id", flat=True)
    )
    rows = [row for row in rows if row.job_id not in elsewhere]
    jobs = {row.job_id for row in rows}
    if len(rows) < settings.QUARANTINE_DEATHS or len(jobs) < 2:
        return False
    owners = {row.job.owner_id for row in rows}
    ready = Allocation.objects.filter(accelerator__node=node, released_at=None, lost_code="")
    others = ready.exclude(ready_at=None).exclude(job__owner_id__in=owners)
    are_late = all(row.lost_code == _LATE for row in rows)
    if (len(owners) == 1 or are_late) and others.exists():
        return False  # trainers of other owners came up there and are still there
    window = f"within {settings.QUARANTINE_WINDOW_S / 60:.0f} min"
    what = "did not get ready" if are_late else "died"
    return _quarantine(node, f"{len(rows)} trainers of {len(jobs)} jobs {what} there {window}", now)


def nodes_judge(now: datetime.datetime) -> bool:
    """Judge every node with recent deaths, and end quarantines whose time is over."""
    suspects = _deaths(now, None).values_list("accelerator__node", flat=True)
    # Lists, not any(): every node must be judged.
    judged = [node_judge(node_id, now) for node_id in sorted(set(suspects))]
    over = Node.objects.filter(quarantined_until__lte=now, removed_at=None)
    ended = [node_unquarantine(node, now, actor=SYSTEM, reason="its time is over") for node in over]
    return any(judged) or any(ended)


@transaction.atomic
def node_unquarantine(node: Node, now: datetime.datetime, *, actor: str, reason: str = "") -> bool:
    """End a node's quarantine; return False if it was not in quarantine.

    A user who ends it has dealt with the cause: the next quarantine has the shortest length again.
    """
    fields = {} if actor == SYSTEM else {"num_quarantines": 0}
    changed = Node.objects.filter(id=node.pk, quarantined_until__isnull=False).update(
        quarantined_until=None, quarantine_reason="", **fields
    )
    if changed:
        text = f"{node.name} takes work again" + (f": {reason}" if reason else "")
        event_add("node_taken_back", text, now=now, node=node, actor=actor, data={"reason": reason})
        if actor != SYSTEM:
            audit_add(
                AuditAction.NODE_UNQUARANTINED, f"node:{node.name}", actor=actor, reason=reason
            )
    return bool(changed)


def _deaths(now: datetime.datetime, after: datetime.datetime | None) -> QuerySet[Allocation]:
    since = now - datetime.timedelta(seconds=settings.QUARANTINE_WINDOW_S)
    since = since if after is None else max(since, after)
    own_fault = Q(job__status=JobStatus.FAILED, job__status_code__in=_OWN_FAULTS)
    return (
        Allocation.objects.filter(lost_code__in=_DEATHS)
        .filter(Q(released_at__gt=since) | Q(released_at=None, stop_requested_at__gt=since))
        .exclude(own_fault)
    )


def _quarantine(node: Node, reason: str, now: datetime.datetime) -> bool:
    before = node.quarantined_at
    is_old = before is None or (now - before).total_seconds() > 2 * settings.QUARANTINE_LIMIT_S
    count = 1 if is_old else min(node.num_quarantines + 1, _DOUBLINGS_LIMIT)
    quarantine_s = min(settings.QUARANTINE_S * 2 ** (count - 1), settings.QUARANTINE_LIMIT_S)
    changed = Node.objects.filter(id=node.pk, quarantined_until=None).update(
        quarantined_until=now + datetime.timedelta(seconds=quarantine_s),
        quarantined_at=now,
        num_quarantines=count,
        quarantine_reason=reason,
    )
    if changed:
        event_add(
            "node_quarantined",
            f"{node.name} is quarantined for {quarantine_s / 60:.0f} min: {reason}",
            now=now,
            node=node,
            data={"reason": reason, "seconds": quarantine_s, "times": count},
        )
    return bool(changed)
