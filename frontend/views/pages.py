"""The overview, and the figures of charts."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_safe

from controlplane.core.values.lifecycle import JobStatus, NodeStatus
from frontend.charts import WINDOWS, overview_charts, window_of
from jobs.models import ClusterSetting
from jobs.selectors.cluster_map import cluster_map
from jobs.selectors.nodes import nodes_present
from jobs.selectors.queue import live_jobs

_ACTIVE = frozenset({JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PREEMPTING})
_WAITING = frozenset({JobStatus.VALIDATING, JobStatus.PENDING})
#: Most jobs with an explanation on the overview, waiting ones first.
_MOST_EXPLAINED = 20


@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    """Show the holders of accelerators, the waiting jobs with reasons, and charts of both."""
    maps = cluster_map(request.user)
    nodes = nodes_present(request.user)
    jobs = live_jobs(request.user)
    waiting = [job for job in jobs if job.status in _WAITING]
    active = [job for job in jobs if job.status in _ACTIVE]
    window_s = window_of(request.GET)
    figures = None
    if "tables" in request.GET:
        figures = overview_charts(request.user, window_s, timezone.now())
    return render(
        request,
        "frontend/overview.html",
        {
            "maps": maps,
            "failing": ClusterSetting.objects.exclude(cycle_failed_at=None).first(),
            "num_held": sum(node_map.num_held for node_map in maps),
            "num_accelerators": sum(len(node_map.cells) for node_map in maps),
            "num_nodes": len(nodes),
            "num_nodes_online": sum(n.shown_status is NodeStatus.ONLINE for n in nodes),
            "waiting": waiting,
            "active": active,
            "explained": [*waiting, *active][:_MOST_EXPLAINED],
            "num_left_out": len(waiting) + len(active) - _MOST_EXPLAINED,
            "examples_per_s": sum(
                job.examples_per_s or 0.0 for job in jobs if job.status == JobStatus.RUNNING
            ),
            "windows": WINDOWS.items(),
            "window": window_s,
            "figures": figures,
            "tables_query": urlencode({"tables": 1, "window": window_s}),
        },
    )


@require_safe
def overview_figures(request: HttpRequest) -> HttpResponse:
    """Return the overview's figures as JSON."""
    return figures_response(
        request, overview_charts(request.user, window_of(request.GET), timezone.now())
    )


def figures_response(request: HttpRequest, figures: dict[str, Any]) -> HttpResponse:
    """Return figures as JSON, or 304 if the page has drawn the same ones."""
    body = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    etag = f'"{hashlib.sha256(body.encode()).hexdigest()[:32]}"'
    response = HttpResponse(body, content_type="application/json")
    response.headers["ETag"] = etag
    response.headers["Cache-Control"] = "private, no-cache"
    # A browser sends it back weak, because it has had a compressed answer.
    return get_conditional_response(request, etag=etag, response=response) or response
