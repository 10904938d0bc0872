"""Answers to forms that come after the login has ended: no change, and nothing typed is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any
from urllib.parse import urlencode, urlsplit

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

#: Fields that nobody types, by name or what is before the first hyphen of it.
_HIDDEN = (
    "csrfmiddlewaretoken", "form_key", "next", "do", "seen", "job", "preview", "back", "undo",
    "version", "query",
)  # fmt: skip
#: Parts of names of fields that hold credentials: passwords, values of secrets, addresses of
#: notification channels.
_CREDENTIALS = ("password", "value", "address")
_LOGGED_OUT = "You are logged out, so nothing was changed."
_TOO_OLD = "The form was too old, or it came from another site. Nothing was changed."


def with_typed_kept(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Answer forms of people who are logged out by `logged_out`."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method == "POST" and not request.user.is_authenticated:
            return logged_out(request)
        return view(request, *args, **kwargs)

    return answer


def logged_out(request: HttpRequest) -> HttpResponse:
    """Show what was typed, with the way to the login and back."""
    return _answer(request, _LOGGED_OUT, is_shown=True)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:  # noqa: ARG001
    """Refuse a form without a valid token; what was typed is shown if it came from this site."""
    _, _, host = request.headers.get("Origin", "").partition("://")
    return _answer(request, _TOO_OLD, is_shown=host == request.get_host())


def _answer(request: HttpRequest, text: str, *, is_shown: bool) -> HttpResponse:
    if "application/json" in request.headers.get("Accept", ""):
        advice = "Log in again in another tab, and then press the button once more."
        return JsonResponse({"errors": {"__all__": [f"{text} {advice}"]}}, status=403)
    back = request.headers.get("Referer", "")
    if not url_has_allowed_host_and_scheme(back, {request.get_host()}):
        back = "/"
    parts = urlsplit(back)
    next_ = urlencode({"next": f"{parts.path}?{parts.query}" if parts.query else parts.path})
    login = reverse("login")
    context = {
        "text": text,
        "login": login if parts.path == login else f"{login}?{next_}",
        "typed": _typed(request) if is_shown else [],
        "num_files": len(request.FILES) if is_shown else 0,
    }
    return render(request, "frontend/unsent.html", context, status=403)


def _typed(request: HttpRequest) -> list[tuple[str, str]]:
    return [
        (name.replace("_", " ").capitalize(), value)
        for name, values in request.POST.lists()
        if name.partition("-")[0] not in _HIDDEN and not any(part in name for part in _CREDENTIALS)
        for value in values
        if value.strip() and not _is_as_it_was(request.POST, name, value)
    ]


def _is_as_it_was(form: Mapping[str, str], name: str, value: str) -> bool:
    """Return whether a field of a row of the queue has the value that the page came with."""
    row = name.rpartition("-")[2]
    return row.isdecimal() and value in form.get(f"seen-{row}", "").split()
