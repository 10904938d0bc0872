"""Rate limit per token, user or address."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django.core.cache import cache
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from jobs.models import ApiToken

if TYPE_CHECKING:
    # rest_framework.views imports this module through the settings.
    from rest_framework.views import APIView

_WINDOW_S = 60


class IdentityThrottle(BaseThrottle):
    """Counts the requests of each client per minute.

    A counter per minute replaces DRF's list of times: its cost does not grow with the limit.
    """

    def allow_request(self, request: Request, _view: APIView) -> bool:
        limit = int(str(api_settings.DEFAULT_THROTTLE_RATES["identity"]).partition("/")[0])
        key = f"requests:{self._identity(request)}:{int(time.time()) // _WINDOW_S}"
        cache.add(key, 0, timeout=2 * _WINDOW_S)
        try:
            return cache.incr(key) <= limit
        except ValueError:
            return True  # the counter was evicted between the two calls; counting starts again

    def wait(self) -> float:
        return _WINDOW_S - time.time() % _WINDOW_S

    def _identity(self, request: Request) -> str:
        if isinstance(request.auth, ApiToken):
            return f"token{request.auth.pk}"
        if request.user and request.user.is_authenticated:
            return f"user{request.user.pk}"
        return f"address{self.get_ident(request)}"
