"""Turns of requests in one process of the WSGI server.

Threads of Python compute one after the other, and hand the interpreter's lock on at every query. Of
16 requests at once each then takes twice its processor time, and the last one waits for all. So a
few requests have a turn, the others wait for theirs in the order of their arrival; who has waited
for PATIENCE_S goes on beside them, so that slow requests hold up nobody for longer. A long-poll
gives its turn back before it waits.

As one thread computes at a time, the process keeps to one core: a thread that is woken on another
one finds nothing of what it needs in the caches there.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

#: Requests that have a turn at once: one may wait for its query while another one computes.
NUM_TURNS = 2
PATIENCE_S = 0.02
#: `turns` of a thread: the `Turns` of which its request has one.
_own = threading.local()


def core_keep() -> None:
    """Keep a worker process of a server, with all threads that it starts from now on, to one core.

    Workers with consecutive process ids keep to different cores, and containers, whose ids are
    alike, seldom to the same ones.
    """
    if sys.platform == "linux" and multiprocessing.parent_process() is not None:
        cores = sorted(os.sched_getaffinity(0))
        place = os.getpid() + zlib.crc32(os.uname().nodename.encode())
        with suppress(OSError):  # where a sandbox refuses it
            os.sched_setaffinity(0, {cores[place % len(cores)]})


class Turns:
    """A number of turns that are taken in the order of arrival."""

    def __init__(self, number: int) -> None:
        self._num_free = number
        self._waiting: deque[threading.Lock] = deque()
        self._changing = threading.Lock()

    @contextmanager
    def taken(self, patience_s: float) -> Iterator[bool]:
        """Have a turn, or none after `patience_s`; which of the two is yielded."""
        has_turn = self._take(patience_s)
        before, _own.turns = getattr(_own, "turns", None), self if has_turn else None
        try:
            yield has_turn
        finally:
            turn_end()
            _own.turns = before

    def _take(self, patience_s: float) -> bool:
        with self._changing:
            if self._num_free:
                self._num_free -= 1
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        if turn.acquire(timeout=patience_s):
            return True
        with self._changing:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return False
        return True  # it was passed on in the last moment

    def pass_on(self) -> None:
        """Give a turn to the one that waits longest."""
        with self._changing:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._num_free += 1


def turn_end() -> None:
    """End the turn of this thread's request, if it has one, before it waits for anything long."""
    turns, _own.turns = getattr(_own, "turns", None), None
    if turns is not None:
        turns.pass_on()


def in_turns(application: WSGIApplication) -> WSGIApplication:
    """Answer requests in turns; what an answer in pieces still does has none."""
    turns = Turns(NUM_TURNS)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with turns.taken(PATIENCE_S):
            return application(environ, start_response)

    return answer
