"""Choice of a theme."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from frontend.themes import COOKIE, COOKIE_S, THEMES


@login_required
@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Keep a theme for this browser, and lead back to the page where it was chosen."""
    name = request.POST.get("theme", "")
    if name not in THEMES:
        return HttpResponseBadRequest(f"theme: choose one of {', '.join(THEMES)}.")
    back = request.POST.get("next", "")
    is_ours = url_has_allowed_host_and_scheme(back, allowed_hosts=None)
    response = redirect(back if is_ours else "overview")
    response.set_cookie(
        COOKIE,
        name,
        max_age=COOKIE_S,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )
    return response
