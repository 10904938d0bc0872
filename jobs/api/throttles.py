"""Rate limit per token, user or address."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.auth.models import User
from django.core.cache import cache
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from jobs.api.requests import plain
from jobs.exceptions import ThrottledError
from jobs.models import ApiToken
from jobs.origins import client_network

if TYPE_CHECKING:
    # rest_framework.views imports this module through the settings.
    from rest_framework.views import APIView

_WINDOW_S = 60


def times_this_minute(name: str, new: int) -> int:
    """Add to the counter of a name and return it, counted since the minute began."""
    key = f"{name}:{int(time.time()) // _WINDOW_S}"
    cache.add(key, 0, timeout=2 * _WINDOW_S)
    try:
        return cache.incr(key, new)
    except ValueError:
        return 0  # the counter was evicted between the two calls; counting starts again


def seconds_to_next_minute() -> float:
    """Return when the counters begin again."""
    return _WINDOW_S - time.time() % _WINDOW_S


def preview_count(user: User) -> None:
    """Count a dry run or a preview, which decides for the whole cluster in the web process.

    Raises:
        ThrottledError: the user has had this minute's.
    """
    limit = settings.PREVIEWS_PER_MINUTE
    if times_this_minute(f"previews:{user.pk}", 1) > limit:
        text = f"At most {limit} dry runs and previews a minute; wait a little."
        raise ThrottledError(text, seconds_to_next_minute())


class IdentityThrottle(BaseThrottle):
    """Counts the requests of each client per minute.

    A counter per minute replaces DRF's list of times: its cost does not grow with the limit.
    """

    def allow_request(self, request: Request, _view: APIView) -> bool:
        limit = int(str(api_settings.DEFAULT_THROTTLE_RATES["identity"]).partition("/")[0])
        return times_this_minute(f"requests:{self._identity(request)}", 1) <= limit

    def wait(self) -> float:
        return seconds_to_next_minute()

    def _identity(self, request: Request) -> str:
        if isinstance(request.auth, ApiToken):
            return f"token{request.auth.pk}"
        if request.user and request.user.is_authenticated:
            return f"user{request.user.pk}"
        return f"address{client_network(plain(request))}"
