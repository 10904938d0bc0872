"""Counters of all processes of the site, summed in Redis, for the metrics.

A process adds up what it counts and sends that now and then, so that counting costs a request
nothing. What a process has not sent when it ends is lost, and so is everything when Redis is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from typing import cast

import redis
from django.conf import settings

from jobs import nudges

_KEY = "virtualflow:counters"
_SHARE_KEY = "virtualflow:share"
#: Seconds between two flushes of a process, and after one that failed.
FLUSH_S, RETRY_S = 2.0, 30.0
#: Seconds for which a process's share of a gauge stands.
SHARE_S = 45
SEPARATOR = "|"

logger = logging.getLogger(__name__)
_lock = threading.Lock()
_new: Counter[str] = Counter()
_not_before = 0.0


def count(name: str, *labels: str, amount: float = 1) -> None:
    """Add to a counter. The labels have few values, and never those of a user."""
    with _lock:
        _new[SEPARATOR.join((name, *labels))] += amount  # type: ignore[assignment]


def is_flush_due() -> bool:
    """Return whether there is something to send, and the time for it has come."""
    return bool(_new) and bool(settings.REDIS_URL) and time.monotonic() >= _not_before


def flush() -> None:
    """Send what was counted; after a failure it is kept for the next time."""
    global _not_before
    if not settings.REDIS_URL:
        return
    with _lock:
        taken = dict(_new)
        _new.clear()
        _not_before = time.monotonic() + FLUSH_S
    try:
        with nudges.client().pipeline(transaction=False) as pipeline:
            for name, amount in taken.items():
                pipeline.hincrbyfloat(_KEY, name, amount)
            pipeline.execute()
    except redis.RedisError as error:
        logger.warning("counters are not sent: %s", error)
        with _lock:
            _new.update(taken)
            _not_before = time.monotonic() + RETRY_S


def counted() -> dict[tuple[str, ...], float]:
    """Return all counters, by name and labels; without Redis those of this process.

    Raises:
        RedisError: Redis does not respond.
    """
    if not settings.REDIS_URL:
        with _lock:
            return {tuple(name.split(SEPARATOR)): amount for name, amount in _new.items()}
    flush()
    values = cast(dict[bytes, bytes], nudges.client().hgetall(_KEY))
    return {tuple(name.decode().split(SEPARATOR)): float(value) for name, value in values.items()}


def mark(name: str, value: float) -> None:
    """Set a value that has no sum, such as a time."""
    if settings.REDIS_URL:
        with contextlib.suppress(redis.RedisError):
            nudges.client().hset(_KEY, name, value)


def share_tell(name: str, value: float) -> None:
    """Tell this process's share of a gauge, which stands for `SHARE_S`."""
    if settings.REDIS_URL:
        with contextlib.suppress(redis.RedisError):
            nudges.client().set(f"{_SHARE_KEY}:{name}:{_PROCESS}", value, ex=SHARE_S)


def shares_sum(name: str) -> float:
    """Return the sum of all processes' shares of a gauge.

    Raises:
        RedisError: Redis does not respond.
    """
    if not settings.REDIS_URL:
        return 0.0
    client = nudges.client()
    keys = list(client.scan_iter(f"{_SHARE_KEY}:{name}:*", count=1000))
    values = cast(list[bytes | None], client.mget(keys)) if keys else []
    return sum(float(value) for value in values if value is not None)


_PROCESS = f"{os.uname().nodename}:{os.getpid()}:{time.time_ns()}"
