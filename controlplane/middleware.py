"""The Content-Security-Policy header, which Django 5.2 does not set by itself."""

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
def content_security_policy(get_response: Answer) -> Answer:
    """Set the policy on every response, unless the view has set the header itself."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            response: HttpResponseBase = await get_response(request)
            response.headers.setdefault(HEADER, settings.CONTENT_SECURITY_POLICY)
            return response

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        response: HttpResponseBase = get_response(request)
        response.headers.setdefault(HEADER, settings.CONTENT_SECURITY_POLICY)
        return response

    return answer
