"""Long polls: requests answered at the next change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from django.conf import settings
from rest_framework.request import Request

from controlplane.turns import turn_end
from jobs import nudges
from jobs.api.authentication import rights_renew

#: Requests waiting at a time in this process; further ones are answered at once.
_WAITS = threading.BoundedSemaphore(max(settings.WAITS_LIMIT, 1))


def changes_await(
    request: Request, is_over: Callable[[], bool], job_id: int | None, wait_s: float
) -> None:
    """Wait until `is_over` holds, checked at each change, for at most `wait_s`.

    Args:
        request: has the rights of its user after the wait.
        job_id: check at changes of this job only.

    Raises:
        AuthenticationFailed: the token or login has ended meanwhile.
    """
    if _has_waited(is_over, job_id, wait_s):
        rights_renew(request)


def _has_waited(is_over: Callable[[], bool], job_id: int | None, wait_s: float) -> bool:
    if not settings.WAITS_LIMIT or not _WAITS.acquire(blocking=False):
        return False
    try:
        deadline = time.monotonic() + wait_s
        has_waited = False
        with nudges.listening(nudges.CHANGES) as listener:
            while not is_over() and (left_s := deadline - time.monotonic()) > 0:
                turn_end()
                listener.wait(left_s, job_id)
                has_waited = True
        return has_waited
    finally:
        _WAITS.release()
