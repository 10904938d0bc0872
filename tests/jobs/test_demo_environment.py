"""Secrets, ports and paths of the demo."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.demo import environment
from jobs.demo.environment import free_port, free_port_ranges, kept_secret, socket_path


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_secret_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "password"
    first = kept_secret(path)
    assert len(first) >= 32
    assert kept_secret(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kept_secret(tmp_path / "other") != first


def test_a_taken_port_is_passed_over(taken_port: int) -> None:
    assert free_port(taken_port) > taken_port


def test_no_free_port_is_an_error_that_names_the_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "is_free", lambda _port: False)
    with pytest.raises(OSError, match="no free port from 8000 to 8099"):
        free_port(8000)


def test_port_ranges_do_not_overlap_and_avoid_what_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 0)
    monkeypatch.setattr(environment, "is_free", lambda port: port != 21007)
    assert free_port_ranges(count=2, size=10) == [range(21010, 21020), range(21020, 21030)]


def test_two_processes_look_in_different_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "is_free", lambda _port: True)
    monkeypatch.setattr(os, "getpid", lambda: 109)
    assert free_port_ranges(count=2, size=100) == [range(31800, 31900), range(31900, 32000)]
    monkeypatch.setattr(os, "getpid", lambda: 110)
    assert free_port_ranges(count=2, size=100) == [range(21000, 21100), range(21100, 21200)]


def test_too_few_ranges_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "is_free", lambda port: port < 21010)
    with pytest.raises(OSError, match="found 1 of 2 ranges of 10 free ports"):
        free_port_ranges(count=2, size=10)


def test_a_long_directory_gets_a_short_socket_path_that_stays_the_same(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    path = socket_path(deep)
    assert len(str(path)) <= 107
    assert socket_path(deep) == path
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.parent.rmdir()
    assert socket_path(Path("/srv/demo")) == Path("/srv/demo/redis.sock")
