"""Time limits of waits for what goes on at a site, with or without the client."""

from __future__ import annotations

import math
import time

from virtualflow.errors import VirtualFlowError

#: Longest wait of a long poll; the site's own limit is 30 s.
POLL_LIMIT_S = 25.0


class Deadline:
    """End of a wait; without a time limit there is none."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._at = math.inf if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self, limit_s: float) -> float:
        """Return the seconds left, at most `limit_s`."""
        return min(limit_s, max(self._at - time.monotonic(), 0.0))

    def check(self, unfinished: str) -> None:
        """Tell that the time is over.

        Raises:
            VirtualFlowError: it is, with the code `timed_out`.
        """
        if time.monotonic() >= self._at:
            text = f"{unfinished} within {self._timeout_s:g} s; it goes on."
            raise VirtualFlowError(text, code="timed_out")
