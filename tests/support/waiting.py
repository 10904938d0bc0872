"""Waits for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 60.0


def wait_until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition; the test fails if it does not come about in time."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
