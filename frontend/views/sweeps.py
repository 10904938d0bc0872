"""Sweeps: the list, the page of one with its jobs, its figure, and actions on all of it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from frontend.figures.sweep import sweep_figure
from frontend.views.changes import person, reason_given, words
from frontend.views.job_list import Heading, heading
from frontend.views.pages import figures_response
from jobs import nudges
from jobs.api.sweeps.serializers import statuses_counted
from jobs.exceptions import ControlPlaneError
from jobs.models import Sweep
from jobs.models.jobs import LIVE_JOB_STATUSES, NUM_COLOURS
from jobs.query_values import whole_read
from jobs.selectors.access import sweep_visible_to, sweeps_visible_to
from jobs.selectors.sweeps import SweepTable, sweep_table
from jobs.services.lifecycle.audit import reads_audit
from jobs.services.submission.sweeps import (
    sweep_cancel,
    sweep_limit,
    sweep_pause,
    sweep_resume,
)
from jobs.sweep_space import JOBS_LIMIT

_SHOWN_SWEEPS = 50
_PAGE_SIZE = 100


@require_safe
def sweeps(request: HttpRequest) -> HttpResponse:
    """List the newest sweeps."""
    found = list(sweeps_visible_to(request.user)[:_SHOWN_SWEEPS])
    counted = statuses_counted(found)
    rows = [(sweep, _counts(counted.get(sweep.pk, {}))) for sweep in found]
    return render(request, "frontend/sweeps.html", {"rows": rows, "shown_limit": _SHOWN_SWEEPS})


@require_safe
def sweep(request: HttpRequest, sweep_id: int) -> HttpResponse:
    """Show a sweep; the address holds metric, order and page of its jobs."""
    found = sweep_visible_to(request.user, sweep_id)
    reads_audit(request.user, [found], "page")
    table = _table(request, found)
    page = _page(request.GET.get("page", ""), len(table.rows))
    query = {name: request.GET[name] for name in ("metric", "order") if request.GET.get(name)}
    best = [row.job.pk for row in table.ranked[:NUM_COLOURS]]
    compared = best or [row.job.pk for row in table.rows[:NUM_COLOURS]]
    counts = _counts(statuses_counted([found]).get(found.pk, {}))
    context = {
        "sweep": found,
        "table": table,
        "rows": table.rows[page * _PAGE_SIZE : (page + 1) * _PAGE_SIZE],
        "counts": counts,
        "best": table.ranked[0] if table.ranked else None,
        "first_job": min((row.job.pk for row in table.rows), default=None),
        "headings": _headings(table, query),
        "setting_headings": [
            (name, heading(f"setting.{name}", "", query, query.get("order", "")))
            for name in table.names
        ],
        "figures_query": urlencode({"metric": table.metric}),
        "figures": {"sweep": sweep_figure(table)} if "tables" in request.GET else None,
        "tables_query": urlencode({"tables": 1, **query}),
        "compare_query": urlencode({"job": compared}, doseq=True),
        "num_compared": len(compared),
        "previous_query": urlencode({**query, "page": page}) if page else "",
        "next_query": urlencode({**query, "page": page + 2})
        if (page + 1) * _PAGE_SIZE < len(table.rows)
        else "",
        "jobs_limit": JOBS_LIMIT,
    }
    return render(request, "frontend/sweep.html", context)


@require_safe
def sweep_figures(request: HttpRequest, sweep_id: int) -> HttpResponse:
    """Return the figure of a sweep as JSON."""
    table = _table(request, sweep_visible_to(request.user, sweep_id))
    return figures_response(request, {"sweep": sweep_figure(table)})


@require_POST
def sweep_act(request: HttpRequest, sweep_id: int) -> HttpResponse:
    """Pause, resume or cancel a sweep, or change how many of its jobs run at once."""
    found, now = sweep_visible_to(request.user, sweep_id), timezone.now()
    user, reason = person(request), reason_given(request)[:500]
    changed: list[int] = []
    try:
        match request.POST.get("do"):
            case "pause":
                changed, text = sweep_pause(found, user, now, reason), "is paused"
            case "resume":
                changed, text = sweep_resume(found, user, now, reason), "goes on"
            case "cancel":
                changed, text = sweep_cancel(found, user, now, reason), "is cancelled"
            case "limit":
                number = request.POST.get("max_running", "").strip()
                seen, limit = whole_read(request.POST.get("seen", "")), whole_read(number) or 0
                limited = sweep_limit(found.pk, limit, user, reason, seen_limit=seen)
                text = f"runs at most {limited.max_running} at once"
            case _:
                raise Http404("There is no such action.")
    except ControlPlaneError as error:
        messages.error(request, words(error))
    else:
        nudges.jobs_changed(changed, orders=True)
        messages.success(request, f"Sweep {found.pk} {text}.")
    return redirect("sweep", sweep_id)


def _table(request: HttpRequest, found: Sweep) -> SweepTable:
    metric, order = (request.GET.get(name, "")[:120] for name in ("metric", "order"))
    return sweep_table(request.user, found, metric=metric, order=order)


def _counts(statuses: dict[str, int]) -> dict[str, Any]:
    num_jobs = sum(statuses.values())
    num_live = sum(statuses.get(status, 0) for status in LIVE_JOB_STATUSES)
    return {
        "jobs": num_jobs,
        "live": num_live,
        "ended": num_jobs - num_live,
        "running": sum(statuses.get(one, 0) for one in ("starting", "running", "preempting")),
        "statuses": sorted(statuses.items()),
        "percent": round(100 * (num_jobs - num_live) / num_jobs) if num_jobs else 0,
    }


def _page(text: str, num_rows: int) -> int:
    """Read a page, counted from 1, into one counted from 0; others are the first."""
    page = whole_read(text) or 1
    return min(max(page - 1, 0), max(num_rows - 1, 0) // _PAGE_SIZE)


def _headings(table: SweepTable, query: dict[str, str]) -> dict[str, Heading]:
    best = "-" if table.is_higher_better else ""
    first = {"job": "", "status": "", "epoch": "-", "duration": "-", "metric": best}
    order = query.get("order", "")
    return {name: heading(name, sign, query, order) for name, sign in first.items()}
