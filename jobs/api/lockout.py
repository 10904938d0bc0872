"""Answer to a login, or a confirmation of a password, that is locked for a time."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from jobs.exceptions import TooManyFailuresError, problem_response


def lockout_response(
    request: HttpRequest, _response: HttpResponse, _credentials: Mapping[str, Any]
) -> HttpResponse:
    """Return status 429 with the time to wait: a page, or a problem for the REST API."""
    wait_s = int(settings.AXES_COOLOFF_TIME.total_seconds())
    if request.path.startswith("/api/"):
        text = f"Too many wrong passwords; try again in {wait_s} s."
        response = problem_response(TooManyFailuresError(text))
    else:
        status = HTTPStatus.TOO_MANY_REQUESTS
        response = render(request, "frontend/locked.html", {"wait_s": wait_s}, status=status)
    response.headers["Retry-After"] = str(wait_s)
    return response
