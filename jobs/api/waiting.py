"""Long polls: requests answered at the next change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from django.conf import settings

from jobs import nudges

#: Requests waiting at a time in this process; further ones are answered at once.
_WAITS = threading.BoundedSemaphore(max(settings.WAITS_LIMIT, 1))


def changes_await(is_over: Callable[[], bool], job_id: int | None, wait_s: float) -> None:
    """Wait until `is_over` holds, checked at each change, for at most `wait_s`.

    Args:
        job_id: check at changes of this job only.
    """
    if not settings.WAITS_LIMIT or not _WAITS.acquire(blocking=False):
        return
    try:
        deadline = time.monotonic() + wait_s
        with nudges.listening(nudges.CHANGES) as listener:
            while not is_over():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return
                listener.wait(left_s, job_id)
    finally:
        _WAITS.release()
