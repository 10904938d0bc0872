"""Response headers that Django 5.2 does not set by itself, and compression of pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.contrib.messages.middleware import MessageMiddleware
from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.utils.decorators import sync_and_async_middleware

HEADER = "Content-Security-Policy"

_COMPRESSED_TYPES = (
    "text/html",
    "text/css",
    "text/javascript",
    "image/svg+xml",
    "application/json",
)

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


class PagesMessageMiddleware(MessageMiddleware):
    """Keeps messages for the next page; the API has none."""

    def process_request(self, request: HttpRequest) -> None:
        """Open the store of messages of a page's request."""
        if not request.path_info.startswith("/api/"):
            super().process_request(request)


class PagesGZipMiddleware(GZipMiddleware):
    """Compresses pages, their scripts and their figures.

    Not the API, whose `If-Match` could not be compared with the weak ETag of a compressed answer,
    nor event streams, which compression would hold up, nor files of jobs, which can be large.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> Any:
        """Return the response, compressed if it is of a page and the browser accepts that."""
        content_type = response.get("Content-Type", "").partition(";")[0]
        if content_type not in _COMPRESSED_TYPES or request.path.startswith("/api/"):
            return response
        return super().process_response(request, response)
