"""Middleware that counts requests and measures their time, by class and status."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from jobs import counters

#: Upper bounds in seconds of the classes of the histogram, besides the one without bound.
BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
UNBOUNDED = "+Inf"
#: Kinds of requests by path; those that wait are apart, as they take as long as they are told to.
_KINDS = (
    (re.compile(r"/api/v1/agent/"), "agent"),
    (re.compile(r"/api/"), "rest"),
    (re.compile(r"/stream/"), "stream"),
    (re.compile(r"/(healthz|readyz|metrics)"), "probe"),
    (re.compile(r"/static/"), "static"),
    (re.compile(r"/"), "page"),
)
_WAIT = re.compile(r"(?:^|&)wait=")

Answer = Callable[[HttpRequest], Any]


@sync_and_async_middleware
def requests_counted(get_response: Answer) -> Answer:
    """Count each request once it is answered; of a stream, once it has begun."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            began_at = time.monotonic()
            response = await get_response(request)
            _count(request, response, began_at)
            if counters.is_flush_due():
                await sync_to_async(counters.flush, thread_sensitive=False)()
            return response

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        began_at = time.monotonic()
        response = get_response(request)
        _count(request, response, began_at)
        if counters.is_flush_due():
            counters.flush()
        return response

    return answer


def request_kind(request: HttpRequest) -> str:
    """Return the kind of a request: one of few, whatever its path."""
    kinds = (kind for path, kind in _KINDS if path.match(request.path_info))
    kind = next(kinds, "page")
    waits = kind in ("agent", "rest") and _WAIT.search(request.META.get("QUERY_STRING", ""))
    return f"{kind}_wait" if waits else kind


def _count(request: HttpRequest, response: HttpResponseBase, began_at: float) -> None:
    kind, taken_s = request_kind(request), time.monotonic() - began_at
    counters.count("requests", kind, f"{response.status_code // 100}xx")
    bucket = next((str(bound) for bound in BUCKETS_S if taken_s <= bound), UNBOUNDED)
    counters.count("request_bucket", kind, bucket)
    counters.count("request_seconds", kind, amount=taken_s)
