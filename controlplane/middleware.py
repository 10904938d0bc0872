"""Response headers that Django 5.2 does not set by itself: content policy and caching."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

HEADER = "Content-Security-Policy"

Answer = Callable[[HttpRequest], Any]


@sync_and_async_middleware
def response_headers(get_response: Answer) -> Answer:
    """Set the policy on every response, and keep it out of caches, unless the view has done so.

    Static files come from WhiteNoise, which sets its own caching header.
    """
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            return _completed(await get_response(request))

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        return _completed(get_response(request))

    return answer


def _completed(response: HttpResponseBase) -> HttpResponseBase:
    response.headers.setdefault(HEADER, settings.CONTENT_SECURITY_POLICY)
    response.headers.setdefault("Cache-Control", "private, no-store")
    return response
