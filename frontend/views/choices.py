"""Choices of a theme and of a time zone."""

from __future__ import annotations

from collections.abc import Collection

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from frontend.choices import COOKIE_S, THEME_COOKIE, THEMES, ZONE_COOKIE, ZONES


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Keep a theme for this browser, and lead back to the page where it was chosen."""
    return _keep(request, "theme", THEMES, THEME_COOKIE)


@require_POST
def zone(request: HttpRequest) -> HttpResponse:
    """Keep a time zone for this browser, and lead back to the page where it was chosen."""
    return _keep(request, "zone", ZONES, ZONE_COOKIE)


def _keep(request: HttpRequest, field: str, names: Collection[str], cookie: str) -> HttpResponse:
    name = request.POST.get(field, "")
    if name not in names:
        return HttpResponseBadRequest(f"{field}: choose one of {', '.join(names)}.")
    back = request.POST.get("next", "")
    is_ours = back.startswith("/") and url_has_allowed_host_and_scheme(back, allowed_hosts=None)
    response = redirect(back if is_ours else "overview")
    response.set_cookie(
        cookie,
        name,
        max_age=COOKIE_S,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )
    return response
