"""Nodes whose trainers filter no peers, as the newest event about that says."""

from __future__ import annotations

from django.db.models import Max

from jobs.models import Event

#: Kinds of the events that a node adds at enrolment or hello, when its agent's setting changes.
FILTERED, UNFILTERED = "node_filtered", "node_unfiltered"


def unfiltered_nodes() -> set[int]:
    """Return the nodes whose agents run with `--no-peer-filter`."""
    told = Event.objects.filter(kind__in=(FILTERED, UNFILTERED)).order_by()
    newest = told.values("node").annotate(newest=Max("pk")).values("newest")
    rows = Event.objects.filter(pk__in=newest, kind=UNFILTERED)
    return set(rows.order_by().values_list("node_id", flat=True))
