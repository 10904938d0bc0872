"""What every template gets from the request."""

from __future__ import annotations

from typing import Any

from django.contrib.messages.context_processors import messages
from django.http import HttpRequest

from frontend.live.refreshes import is_live_refresh


def unread_messages(request: HttpRequest) -> dict[str, Any]:
    """Return the messages to show, each once; a live refresh leaves them to the next page."""
    return {} if is_live_refresh(request) else messages(request)
