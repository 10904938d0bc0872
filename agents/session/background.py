"""Runs calls that may block on threads of their own, so that the loop never waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


class Background:
    """Runs at most `limit` calls at a time, each on a daemon thread.

    Daemon threads, because a stopping agent must not wait for a download to time out. `wake` is
    called after each call, so that the loop processes the result at once.
    """

    def __init__(self, limit: int, wake: Callable[[], None]) -> None:
        self._slots = threading.BoundedSemaphore(limit)
        self._wake = wake

    def start(self, name: str, call: Callable[[], Result]) -> Future[Result] | None:
        """Start `call`; None if `limit` calls are running, or no thread can be (retry later)."""
        if not self._slots.acquire(blocking=False):
            return None
        future: Future[Result] = Future()

        def run() -> None:
            try:
                result = call()
            except BaseException as error:  # raised again where the future is read
                self._slots.release()
                future.set_exception(error)
            else:
                self._slots.release()
                future.set_result(result)
            self._wake()

        try:
            threading.Thread(target=run, name=name, daemon=True).start()
        except RuntimeError:  # jobs have all threads that this machine or container may have
            self._slots.release()
            return None
        return future
