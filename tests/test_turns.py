"""Requests of a web process have turns in the order of arrival, and wait for none too long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from controlplane import turns
from controlplane.turns import Turns, in_turns, turn_end

LONG_S = 60.0
#: Prints the cores of a process that is no worker of a server, and ids and cores of two workers.
CORES = """
import importlib, json, multiprocessing, os, threading
import controlplane.asgi, controlplane.wsgi

def told():
    cores = []
    thread = threading.Thread(target=lambda: cores.extend(sorted(os.sched_getaffinity(0))))
    thread.start()
    thread.join()
    return os.getpid(), cores

def worker(end, server):
    importlib.reload(server)
    end.send(told())

found = [told()]
for server in (controlplane.wsgi, controlplane.wsgi, controlplane.asgi):
    end, other = multiprocessing.Pipe()
    multiprocessing.get_context("fork").Process(target=worker, args=[other, server]).start()
    found.append(end.recv())
print(json.dumps(found))
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def num_waiting(of: Turns) -> int:
    return len(of._waiting)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_turns_are_had_in_the_order_of_arrival(number: int) -> None:
    of, began, may_end = Turns(number), list[int](), [threading.Event() for _ in range(8)]

    def ask(request: int) -> None:
        with of.taken(LONG_S) as has_turn:
            assert has_turn
            began.append(request)
            assert may_end[request].wait(LONG_S)

    threads = []
    for request in range(8):
        threads.append(threading.Thread(target=ask, args=[request]))
        threads[-1].start()
        until(lambda request=request: len(began) + num_waiting(of) == request + 1)  # type: ignore[misc]
    for request in range(8):
        assert began == [*range(min(request + number, 8))]
        may_end[request].set()
        until(lambda request=request: len(began) == min(request + 1 + number, 8))  # type: ignore[misc]
    for thread in threads:
        thread.join(LONG_S)
    with ExitStack() as stack:
        assert all(stack.enter_context(of.taken(0.0)) for _ in range(number))


def test_who_waits_too_long_goes_on_and_leaves_its_place_to_others() -> None:
    of = Turns(1)
    with of.taken(LONG_S):
        for _ in range(3):
            with of.taken(0.01) as has_turn:
                assert not has_turn
        assert num_waiting(of) == 0
    with of.taken(0.0) as has_turn:
        assert has_turn


@pytest.mark.parametrize("patience_s", [0.0, 1e-4, 1e-3, 0.02])
def test_no_turn_is_lost_or_had_twice(patience_s: float) -> None:
    of, guard, computing, most = Turns(2), threading.Lock(), [0], [0]

    def ask() -> None:
        for _ in range(50):
            with of.taken(patience_s) as has_turn:
                with guard:
                    computing[0] += has_turn
                    most[0] = max(most[0], computing[0])
                time.sleep(1e-4)
                with guard:
                    computing[0] -= has_turn

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert 1 <= most[0] <= 2
    assert num_waiting(of) == 0
    with of.taken(0.0) as first, of.taken(0.0) as second, of.taken(0.0) as third:
        assert (first, second, third) == (True, True, False)


def test_slow_requests_and_failures_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE_S", 0.01)
    may_end, slow = threading.Event(), threading.Semaphore(0)

    def application(environ: dict[str, Any], _start: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/slow/":
            slow.release()
            assert may_end.wait(LONG_S)
        if environ["PATH_INFO"] == "/broken/":
            raise OSError("broken")
        return [b"answer"]

    bounded = in_turns(application)

    def ask(path: str, query: str = "") -> Any:
        return bounded({"PATH_INFO": path, "QUERY_STRING": query}, lambda *_: None)  # type: ignore[arg-type]

    for _ in range(2 * turns.NUM_TURNS):
        with pytest.raises(OSError, match="broken"):
            ask("/broken/")
    threads = [threading.Thread(target=ask, args=["/slow/"]) for _ in range(2 * turns.NUM_TURNS)]
    try:
        for thread in threads:
            thread.start()
            assert slow.acquire(timeout=LONG_S)
        assert ask("/quick/") == [b"answer"]
    finally:
        may_end.set()
        for thread in threads:
            thread.join(LONG_S)


def test_only_a_request_that_says_that_it_waits_gives_its_turn_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "PATIENCE_S", LONG_S)
    may_end, waits = threading.Event(), threading.Semaphore(0)

    def application(environ: dict[str, Any], _start: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/poll/":
            turn_end()
        waits.release()
        assert may_end.wait(LONG_S)
        return [b"answer"]

    bounded = in_turns(application)

    def begin(path: str) -> None:
        request = {"PATH_INFO": path, "QUERY_STRING": "wait=30"}
        threads.append(threading.Thread(target=bounded, args=[request, None]))
        threads[-1].start()

    threads: list[threading.Thread] = []
    try:
        for path in ["/poll/"] * 2 * turns.NUM_TURNS + ["/page/"] * turns.NUM_TURNS:
            begin(path)
            assert waits.acquire(timeout=LONG_S)
        begin("/page/")
        assert not waits.acquire(timeout=0.05)
    finally:
        may_end.set()
        for thread in threads:
            thread.join(LONG_S)


def test_worker_processes_keep_to_a_core_each() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CORES], env=os.environ | {"VIRTUALFLOW_DEBUG": "1"},
        capture_output=True, text=True, timeout=LONG_S, check=True,
    )  # fmt: skip
    (_, all_cores), *workers = json.loads(done.stdout)
    assert all_cores == sorted(os.sched_getaffinity(0))
    assert len(workers) == 3
    first = {(all_cores.index(core) - pid) % len(all_cores) for pid, (core,) in workers}
    assert len(first) == 1  # the next process id has the next core
