"""Maintenance windows of nodes: plan, cancel, and note their beginnings and ends.

Whether a node is closed follows from its columns `maintenance_from` and `maintenance_until` and the
clock, and never from `is_cordoned` and `is_draining`, which are an admin's alone. So a site that
was down when a window began or ended decides rightly with its first cycle; `windows_advance` then
adds the events.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from typing import Any

from django.db import transaction

from jobs.exceptions import InvalidInputError
from jobs.models import AuditAction, MaintenanceWindow, Node, maintenance_lead
from jobs.selectors.drains import DrainMove, drain_record, jobs_on
from jobs.services.cluster.cordons import moves_expected
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import SYSTEM, event_add

LENGTH_LIMIT = datetime.timedelta(days=30)
#: A window may start so far ahead, and so long ago: its form has whole minutes.
AHEAD_LIMIT = datetime.timedelta(days=366)
PAST_LIMIT = datetime.timedelta(minutes=1)
#: Most windows of a node that have not ended, and nodes of one request.
OPEN_LIMIT, NODES_LIMIT = 20, 100


def windows_plan(
    node_ids: Collection[int],
    starts_at: datetime.datetime,
    ends_at: datetime.datetime,
    now: datetime.datetime,
    *,
    actor: str,
    reason: str,
) -> list[MaintenanceWindow]:
    """Plan a window for each of some nodes; either all are planned or none.

    Raises:
        InvalidInputError: a time, the reason or the nodes break a rule; the error names the field.
    """
    window_check(node_ids, starts_at, ends_at, now, reason=reason)
    with transaction.atomic():
        # The lock serialises plans of the same node.
        nodes = list(
            Node.objects.select_for_update(no_key=True)
            .filter(pk__in=node_ids, removed_at=None)
            .order_by("pk")
        )
        _nodes_check(node_ids, nodes, starts_at, ends_at)
        return [_window_add(node, starts_at, ends_at, now, actor, reason) for node in nodes]


def window_check(
    node_ids: Collection[int],
    starts_at: datetime.datetime,
    ends_at: datetime.datetime,
    now: datetime.datetime,
    *,
    reason: str,
) -> None:
    """Check what is known without the nodes.

    Raises:
        InvalidInputError: with a message for each field that breaks a rule.
    """
    fields: dict[str, str] = {}
    if not 1 <= len(set(node_ids)) <= NODES_LIMIT:
        fields["nodes"] = f"Choose 1 to {NODES_LIMIT} nodes."
    if starts_at < now - PAST_LIMIT:
        fields["starts_at"] = f"This has passed: it is {_text(now)} now. Give a later time."
    elif starts_at > now + AHEAD_LIMIT:
        fields["starts_at"] = f"Give a time within the next {AHEAD_LIMIT.days} days."
    if ends_at <= starts_at:
        fields["ends_at"] = "Give a time after the start."
    elif ends_at <= now:
        fields["ends_at"] = f"This has passed: it is {_text(now)} now. Give a later time."
    elif ends_at - starts_at > LENGTH_LIMIT:
        fields["ends_at"] = f"Give a time at most {LENGTH_LIMIT.days} days after the start."
    if not reason.strip():
        fields["reason"] = "Give a reason; users see it with the node."
    if fields:
        raise InvalidInputError.of(**fields)


def _nodes_check(
    node_ids: Collection[int],
    nodes: Sequence[Node],
    starts_at: datetime.datetime,
    ends_at: datetime.datetime,
) -> None:
    missing = sorted(set(node_ids).difference(node.pk for node in nodes))
    if missing:
        raise InvalidInputError.of(nodes=f"There is no node {missing[0]}.")
    for node in nodes:
        windows = node.windows.filter(ended_at=None)
        other = windows.filter(starts_at__lt=ends_at, ends_at__gt=starts_at).first()
        if other is not None:
            raise InvalidInputError.of(
                nodes=f"{node.name} has maintenance from {_text(other.starts_at)} to "
                f"{_text(other.ends_at)} already; choose another time, or cancel that."
            )
        if windows.count() >= OPEN_LIMIT:
            raise InvalidInputError.of(
                nodes=f"{node.name} has {OPEN_LIMIT} windows ahead already; cancel one first."
            )


def _window_add(
    node: Node,
    starts_at: datetime.datetime,
    ends_at: datetime.datetime,
    now: datetime.datetime,
    actor: str,
    reason: str,
) -> MaintenanceWindow:
    window = MaintenanceWindow.objects.create(
        node=node,
        starts_at=starts_at,
        ends_at=ends_at,
        reason=reason,
        planned_by=actor,
        created_at=now,
    )
    _node_update(node)
    period = f"from {_text(starts_at)} to {_text(ends_at)}"
    text = f"Maintenance of {node.name} is planned {period}: {reason}"
    kind = AuditAction.MAINTENANCE_PLANNED
    event_add(kind, text, now=now, node=node, actor=actor, data=_data(window))
    audit_add(kind, f"node:{node.name}", actor=actor, **_data(window))
    return window


def window_cancel(
    window: MaintenanceWindow, now: datetime.datetime, *, actor: str, reason: str = ""
) -> bool:
    """Cancel a window before or during it; return False if it has ended."""
    kind, node = AuditAction.MAINTENANCE_CANCELLED, window.node
    with transaction.atomic():
        Node.objects.select_for_update(no_key=True).get(pk=node.pk)
        if not _window_end(window, now, is_cancelled=True):
            return False
        text = f"Maintenance of {node.name} from {_text(window.starts_at)} is cancelled"
        text += f": {reason}" if reason else ""
        data = {**_data(window), "reason": reason}
        event_add(kind, text, now=now, node=node, actor=actor, data=data)
        audit_add(kind, f"node:{node.name}", actor=actor, **data)
    return True


def windows_advance(now: datetime.datetime) -> bool:
    """Note the windows that have begun or ended; return whether there were any.

    Several processes may do this at once: a conditional update lets one of them add the events.
    """
    rows = MaintenanceWindow.objects.filter(
        ended_at=None, starts_at__lte=now, node__removed_at=None
    ).select_related("node")
    over = [row for row in rows if row.ends_at <= now]
    begun = [row for row in rows if row.began_at is None and row.ends_at > now]
    # Ends first: the next window of a node may begin at the end of the one before.
    is_changed = [_window_finish(window, now) for window in over]
    if begun:
        moves = moves_expected([window.node for window in begun], now)
        is_changed += [_window_begin(window, moves, now) for window in begun]
    return any(is_changed)


def _window_begin(
    window: MaintenanceWindow, moves: Sequence[DrainMove], now: datetime.datetime
) -> bool:
    node, until = window.node, _text(window.ends_at)
    jobs = jobs_on([node])
    here = {job.pk for job in jobs}
    record = drain_record([move for move in moves if move.job.pk in here])
    with transaction.atomic():
        unbegun = MaintenanceWindow.objects.filter(pk=window.pk, began_at=None, ended_at=None)
        if not unbegun.update(began_at=now):
            return False
        text = f"Maintenance of {node.name} has begun, until {until}: {window.reason}"
        event_add("maintenance_began", text, now=now, node=node, data={"jobs": record})
        for job in jobs:
            text = f"Leaves {node.name}, which is in maintenance until {until}"
            event_add("maintenance", text, now=now, job=job)
    return True


def _window_finish(window: MaintenanceWindow, now: datetime.datetime) -> bool:
    with transaction.atomic():
        Node.objects.select_for_update(no_key=True).get(pk=window.node_id)
        if not _window_end(window, now, is_cancelled=False):
            return False
        node = Node.objects.get(pk=window.node_id)
        then = "it takes work again"
        if node.is_cordoned:
            then = f"it stays {'drained' if node.is_draining else 'cordoned'}"
        elif node.is_closed_by_window(now):
            then = "the next follows"
        text = f"Maintenance of {node.name} has ended; {then}"
        event_add("maintenance_ended", text, now=now, node=node, actor=SYSTEM)
    return True


def _window_end(window: MaintenanceWindow, now: datetime.datetime, *, is_cancelled: bool) -> bool:
    rows = MaintenanceWindow.objects.filter(pk=window.pk, ended_at=None)
    is_changed = bool(rows.update(ended_at=now, is_cancelled=is_cancelled))
    _node_update(window.node)
    return is_changed


def _node_update(node: Node) -> None:
    """Write the times of a node's first windows, between which it takes no work; it is locked."""
    starts_at = ends_at = None
    for window in node.windows.filter(ended_at=None).order_by("starts_at"):
        if ends_at is not None and window.starts_at - maintenance_lead() > ends_at:
            break
        starts_at, ends_at = starts_at or window.starts_at, window.ends_at
    Node.objects.filter(pk=node.pk).update(maintenance_from=starts_at, maintenance_until=ends_at)


def _data(window: MaintenanceWindow) -> dict[str, Any]:
    return {
        "window": window.pk,
        "starts_at": window.starts_at.isoformat(),
        "ends_at": window.ends_at.isoformat(),
        "reason": window.reason,
    }


def _text(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
