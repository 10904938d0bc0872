"""Bounded numbers of requests that may hold a thread of the web server for a slow client."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import partial

from jobs.exceptions import BusyError

#: Threads that wait at once for one of the places.
WAITING_LIMIT = 2


class Places:
    """A bounded number of places, of which one holder may have a part.

    Attributes:
        refusal: tells who finds no place why.
    """

    def __init__(self, limit: int, limit_each: int, refusal: str) -> None:
        self.refusal = refusal
        self._limit = limit
        self._limit_each = limit_each
        self._held: Counter[Hashable] = Counter()
        self._num_waiting = 0
        self._changed = threading.Condition()

    @contextmanager
    def held(self, holder: Hashable, wait_s: float = 0.0) -> Iterator[None]:
        """Hold a place, after `wait_s` at most; WAITING_LIMIT threads may wait at once.

        Raises:
            BusyError: no place is free for `holder`.
        """
        with self._changed:
            if not (self._is_free(holder) or self._has_become_free(holder, wait_s)):
                raise BusyError(self.refusal)
            self._held[holder] += 1
        try:
            yield
        finally:
            with self._changed:
                self._held[holder] -= 1
                self._held += Counter()  # without those that hold none
                self._changed.notify_all()

    def _is_free(self, holder: Hashable) -> bool:
        return self._held.total() < self._limit and self._held[holder] < self._limit_each

    def _has_become_free(self, holder: Hashable, wait_s: float) -> bool:
        if self._num_waiting >= WAITING_LIMIT or not wait_s:
            return False
        self._num_waiting += 1
        try:
            return self._changed.wait_for(partial(self._is_free, holder), wait_s)
        finally:
            self._num_waiting -= 1
