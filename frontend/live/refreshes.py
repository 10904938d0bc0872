"""Requests by which an open page refreshes its regions."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest


def is_live_refresh(request: HttpRequest) -> bool:
    """Tell whether a page's script asked for its regions; nobody sees the rest of the answer."""
    return request.headers.get("X-Requested-With") == "live"


def messages_left(request: HttpRequest) -> dict[str, Any]:
    """Hide the messages from a live refresh, which leaves them to the next page."""
    return {"messages": ()} if is_live_refresh(request) else {}
