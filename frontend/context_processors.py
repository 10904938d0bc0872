"""Context processors of all templates."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from frontend.live.refreshes import is_live_refresh


def messages_left(request: HttpRequest) -> dict[str, Any]:
    """Hide the messages from a live refresh, which leaves them to the next page."""
    return {"messages": ()} if is_live_refresh(request) else {}
