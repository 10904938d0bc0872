"""The log of a job: windows of lines, a search, and all of it as a file."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from frontend.views.job import job_or_404, sends_file
from jobs.api.downloads import text_response
from jobs.models import Job
from jobs.query_values import whole_read
from jobs.selectors import log_lines, logs
from jobs.selectors.log_search import Wanted, cursor_read, log_search
from jobs.services.lifecycle.audit import read_audit

_SEARCH_LIMIT = 200
#: Lines before and after each match.
_CONTEXT = 3


@require_safe
def job_log(request: HttpRequest, job_id: int) -> HttpResponseBase:
    """Return lines as JSON.

    The newest ones; those `before` or `after` a window; those about the byte `offset` of a
    trainer's log; or those that match `q` and `level`, from `cursor` on.
    """
    found = job_or_404(request, job_id)
    read_audit(request.user, found, "log")
    slot, level = _number(request, "slot"), request.GET.get("level", "")
    level = level if level in dict(log_lines.LEVEL_FILTERS) else ""
    if (text := request.GET.get("q", "")[:_SEARCH_LIMIT]) or level:
        cursor = request.GET.get("cursor", "")
        try:
            cursor_read(cursor)
        except ValueError:
            cursor = ""
        return JsonResponse(
            log_search(found, slot, Wanted(text, level, _CONTEXT), cursor).as_data()
        )
    return JsonResponse(_window_data(_window(request, found, slot)))


@require_safe
@sends_file
def job_log_file(request: HttpRequest, job_id: int) -> HttpResponseBase:
    """Send the whole log as a text file."""
    found = job_or_404(request, job_id)
    read_audit(request.user, found, "log")
    pieces = logs.log_text(found, _number(request, "slot"))
    return text_response(request, pieces, f"job-{found.pk}.log")


def _window(request: HttpRequest, job: Job, slot: int | None) -> log_lines.LogWindow:
    offset, after = _number(request, "offset"), _number(request, "after")
    if offset is not None and slot is not None:
        return log_lines.window_at(job, slot, offset)
    if after is not None:
        return log_lines.window_after(job, slot, after)
    return log_lines.window_before(job, slot, _number(request, "before"))


def _window_data(window: log_lines.LogWindow) -> dict[str, Any]:
    return {
        "lines": [
            log_lines.line_data(line) | {"continues": line.continues, "replaces": line.replaces}
            for line in window.lines
        ],
        "first_cursor": window.first_cursor,
        "next_cursor": window.next_cursor,
        "has_earlier": window.has_earlier,
        "has_later": window.has_later,
    }


def _number(request: HttpRequest, name: str) -> int | None:
    return whole_read(request.GET.get(name, ""))
