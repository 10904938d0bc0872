"""Content security policy of the pages: no inline code, no external sources."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse

from controlplane.middleware import HEADER

View = Callable[..., HttpResponseBase]

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def stream_address(request: HttpRequest) -> str:
    """Return the address of the event stream; empty if none is served.

    For a stream server on loopback the address has the host name of the page's request, since
    "localhost" and "127.0.0.1" do not share cookies.
    """
    if not settings.REDIS_URL:
        return ""
    parts = urlsplit(settings.STREAM_URL)
    host = request.get_host().rsplit(":", 1)[0]
    if parts.hostname in _LOOPBACK and host.strip("[]") in _LOOPBACK and parts.port:
        parts = parts._replace(netloc=f"{host}:{parts.port}")
    return parts.geturl().rstrip("/") + reverse("stream")


def content_security_policy(request: HttpRequest) -> str:
    """Return a page's policy: its own files, and the event stream if served elsewhere."""
    stream = urlsplit(stream_address(request))
    elsewhere = f" {stream.scheme}://{stream.netloc}" if stream.netloc else ""
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        f"connect-src 'self'{elsewhere}; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )


def with_policy(view: View) -> View:
    """Add the pages' policy to every response of a view."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        response.headers[HEADER] = content_security_policy(request)
        return response

    return answer
