"""Origin of the request being answered: its client's address, and the request itself for audits."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware

#: The request that this thread or task answers; None in commands and Celery tasks.
_current: ContextVar[HttpRequest | None] = ContextVar("current_request", default=None)

Answer = Callable[[HttpRequest], Any]


def client_address(request: HttpRequest) -> str:
    """Return the IP address of the client; empty if unknown, as over a Unix socket.

    Behind `settings.NUM_PROXIES` proxies it is that entry of `X-Forwarded-For`, counted from the
    right: entries before it are the client's own word. A socket or proxy for both families writes
    an IPv4 address as IPv6 (::ffff:192.0.2.1).
    """
    text = request.META.get("REMOTE_ADDR") or ""
    forwarded = [part for part in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if part]
    if 0 < settings.NUM_PROXIES <= len(forwarded):
        text = forwarded[-settings.NUM_PROXIES].strip()
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)


def client_network(request: HttpRequest) -> str | None:
    """Return what limits count as one client: an IPv4 address, or the /64 of an IPv6 address."""
    address = client_address(request)
    if ":" not in address:
        return address or None
    return str(ipaddress.ip_network(f"{address}/64", strict=False).network_address)


def current_request() -> HttpRequest | None:
    """Return the request being answered, if any."""
    return _current.get()


@sync_and_async_middleware
def request_kept(get_response: Answer) -> Answer:
    """Keep the request for `current_request` while it is answered."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> Any:
            token = _current.set(request)
            try:
                return await get_response(request)
            finally:
                _current.reset(token)

        return answer_async

    def answer(request: HttpRequest) -> Any:
        token = _current.set(request)
        try:
            return get_response(request)
        finally:
            _current.reset(token)

    return answer
