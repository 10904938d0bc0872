"""Maintenance windows: nodes that they close, and those to come."""

from __future__ import annotations

import datetime

from django.db.models import Q

from jobs.exceptions import NotFoundError
from jobs.models import MaintenanceWindow, maintenance_lead
from jobs.selectors.access import Person, text_for

#: Most windows of a list.
MAX_WINDOWS = 1000
_ID_LIMIT = 2**63 - 1


def in_maintenance(now: datetime.datetime, of: str) -> Q:
    """Select nodes that jobs have to leave for maintenance, or rows `of` such nodes."""
    return _between(now, now, of)


def closed_by_window(now: datetime.datetime, of: str = "") -> Q:
    """Select nodes that take no new work for maintenance, or rows `of` such nodes."""
    return _between(now + maintenance_lead(), now, of)


def window_or_404(window_id: int) -> MaintenanceWindow:
    """Return a window of a present node.

    Raises:
        NotFoundError: there is no such window.
    """
    rows = MaintenanceWindow.objects.filter(node__removed_at=None).select_related("node")
    found = rows.filter(pk=window_id).first() if window_id <= _ID_LIMIT else None
    if found is None:
        raise NotFoundError("There is no such maintenance window.")
    return found


def _between(start: datetime.datetime, end: datetime.datetime, of: str) -> Q:
    return Q(**{f"{of}maintenance_from__lte": start, f"{of}maintenance_until__gt": end})


def windows_open(person: Person) -> list[MaintenanceWindow]:
    """List the windows that have not ended, the next one first, as a person may see them."""
    rows = MaintenanceWindow.objects.filter(ended_at=None, node__removed_at=None)
    found = list(rows.select_related("node").order_by("starts_at", "node__name")[:MAX_WINDOWS])
    for row in found:
        row.reason = text_for(person, row.reason)
    return found
