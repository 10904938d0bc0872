"""Ports that a demo is given, and nobody else meanwhile."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.demo.stack import ports
from jobs.demo.stack.ports import free_port, reserved_ports

RESERVE_AND_WAIT = """
import sys
from jobs.demo.stack import ports
ports.TRAINER_PORTS = range(int(sys.argv[1]), int(sys.argv[2]))
with ports.reserved_ports(1, 20) as (reserved,):
    print(reserved.start, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the reservations of whatever else runs on this machine out of these tests."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_taken_port_is_passed_over(taken_port: int) -> None:
    assert free_port(taken_port) > taken_port


def test_who_asks_at_once_is_given_another_port_until_the_first_one_ends() -> None:
    ask = "import sys; from jobs.demo.stack.ports import free_port; print(free_port(61100))"
    first = subprocess.Popen(
        [sys.executable, "-c", f"{ask}; sys.stdout.flush(); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    taken = int(first.stdout.readline())
    during = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60)
    assert int(during.stdout) > taken
    first.communicate(timeout=60)
    after = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60)
    assert int(after.stdout) == taken


def test_no_free_port_is_an_error_that_names_the_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda _port: False)
    with pytest.raises(OSError, match="no free port from 8000 to 8099"):
        free_port(8000)


@pytest.fixture
def own_ports(monkeypatch: pytest.MonkeyPatch) -> range:
    """Have reservations look where nothing else of this machine does."""
    few = range(61000, 61060)
    monkeypatch.setattr(ports, "TRAINER_PORTS", few)
    return few


def test_ranges_avoid_what_is_taken(own_ports: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: port != own_ports[7])
    with reserved_ports(count=2, size=10) as ranges:
        assert own_ports[7] not in {*ranges[0], *ranges[1]}
        assert not {*ranges[0]} & {*ranges[1]}


def test_ranges_of_any_size_are_given_once_until_they_are_given_back(own_ports: range) -> None:
    for _ in range(2):
        with reserved_ports(count=2, size=15) as large, reserved_ports(count=2, size=10) as small:
            given = [port for run in (*large, *small) for port in run]
            assert len(given) == len(set(given)) == 50
            assert set(given) <= set(own_ports)


def test_too_few_ranges_are_an_error_and_nothing_stays_reserved(own_ports: range) -> None:
    with (
        reserved_ports(count=1, size=20),
        pytest.raises(OSError, match="found 2 of 3 ranges of 20 free ports"),
        reserved_ports(count=3, size=20),
    ):
        pass
    with reserved_ports(count=3, size=20) as ranges:
        assert sum(map(len, ranges)) == len(own_ports)


def test_another_process_is_not_given_the_same_and_a_dead_one_holds_none(
    own_ports: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = [str(own_ports.start), str(own_ports.stop)]
    command = [sys.executable, "-c", RESERVE_AND_WAIT, *bounds]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        first = int(other.stdout.readline())
        # This process looks where the other one looked first.
        monkeypatch.setattr(os, "getpid", lambda: other.pid)
        with reserved_ports(1, 20) as (beside,):
            assert beside.start != first
        other.kill()
        other.wait(10)
        with reserved_ports(1, 20) as (again,):
            assert again.start == first
    assert first in own_ports
