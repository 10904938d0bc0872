"""Pages of the nodes: the page of one node with its figures, and the preview of a drain."""

from __future__ import annotations

import datetime
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from frontend.charts import WINDOWS, window_of
from frontend.figures.parts import Figure
from frontend.figures.readings import MEASURES, ReadingLine, readings_figure
from frontend.views.pages import figures_response
from jobs.models import Node
from jobs.query_values import whole_read
from jobs.selectors import access, drains
from jobs.selectors.cluster_map import NodeMap, cluster_map, with_use
from jobs.selectors.nodes import node_events, node_stays, unfiltered_nodes
from jobs.selectors.readings import measures_told, readings_between
from jobs.services.cluster.cordons import Cordon

_DEFAULT_WINDOW_S = 3600
_TITLES = {
    "utilisation_percent": "Utilisation",
    "memory_bytes": "Memory in use",
    "temperature_c": "Temperature",
    "power_w": "Power",
}
#: Values that every device tells; the charts of others are shown if one of the node does.
_ALWAYS = ("utilisation_percent", "memory_bytes")


@require_safe
def node(request: HttpRequest, node_id: int) -> HttpResponse:
    """Show a node: its accelerators and their use over time, its jobs and events."""
    found = node_or_404(request.user, node_id)
    now = timezone.now()
    window_s = window_of(request.GET, _DEFAULT_WINDOW_S)
    maps = with_use(cluster_map(request.user, node_id=found.pk), now)
    row = maps[0] if maps else NodeMap(found, [])
    since = now - datetime.timedelta(seconds=window_s)
    told = measures_told(found, since, now, MEASURES)
    names = [name for name in MEASURES if name in _ALWAYS or name in told]
    events, has_older = node_events(found, request.user, whole_read(request.GET.get("before")))
    context: dict[str, Any] = {
        "lease_s": int(settings.LEASE_S),
        "row": row,
        "node": found,
        "strangers": access.are_users_strangers(),
        "unfiltered": unfiltered_nodes(),
        "windows": WINDOWS.items(),
        "window": window_s,
        "charts": [(name, _TITLES[name]) for name in names],
        "figures": None,
        "tables_query": urlencode({"tables": 1, "window": window_s}),
        "stays": node_stays(found, request.user),
        "events": events,
        "outcome": drains.drain_outcome(found, request.user, now),
    }
    if "tables" in request.GET:
        context["figures"] = _figures(found, window_s, now)
    if has_older:
        context["older_query"] = urlencode({"before": events[-1].pk, "window": window_s})
    change = request.GET.get("change", "")
    if access.is_admin(request.user) and change in (Cordon.CORDON, Cordon.DRAIN):
        context["preview"] = _preview(found, change, now)
    return render(request, "frontend/node.html", context)


@require_safe
def node_figures(request: HttpRequest, node_id: int) -> HttpResponse:
    """Return the figures of a node's readings as JSON."""
    found, now = node_or_404(request.user, node_id), timezone.now()
    window_s = window_of(request.GET, _DEFAULT_WINDOW_S)
    return figures_response(request, _figures(found, window_s, now))


def node_or_404(person: access.Person, node_id: int) -> Node:
    """Find a node that has not been removed, as a person may see it.

    Raises:
        Http404: there is none.
    """
    found = Node.objects.filter(pk=node_id, removed_at=None).first()
    if found is None:
        raise Http404("No such node.")
    return access.node_for(person, found)


def _figures(node: Node, window_s: int, now: datetime.datetime) -> dict[str, Figure]:
    since = now - datetime.timedelta(seconds=window_s)
    readings, step_s = readings_between(node, since, now)
    end = now.timestamp()
    return {
        name: readings_figure(
            name,
            [
                ReadingLine(
                    f"{one.accelerator.index} {one.accelerator.kind}",
                    place,
                    [(row.at.timestamp(), getattr(row, name)) for row in one.bins],
                )
                for place, one in enumerate(readings)
            ],
            end - window_s,
            end,
            step_s,
        )
        for name in MEASURES
    }


def _preview(node: Node, change: str, now: datetime.datetime) -> dict[str, Any]:
    """Return the jobs that would move, and those of the node that would stay."""
    moves = drains.drain_preview([node], now) if change == Cordon.DRAIN else []
    moved = {move.job.pk for move in moves}
    staying = [job for job in drains.jobs_on([node]) if job.pk not in moved]
    return {"change": change, "moves": moves, "staying": staying, "at": now}
