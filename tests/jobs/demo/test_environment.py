"""Secrets and paths of the demo."""

from __future__ import annotations

import stat
from pathlib import Path

from jobs.demo.environment import kept_secret, socket_path


def test_a_secret_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "password"
    first = kept_secret(path)
    assert len(first) >= 32
    assert kept_secret(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kept_secret(tmp_path / "other") != first


def test_a_secret_that_is_too_short_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "secret-key"
    short = kept_secret(path)
    long = kept_secret(path, 48)
    assert len(long) >= 50
    assert long != short
    assert kept_secret(path, 48) == long


def test_a_long_directory_gets_a_short_socket_path_that_stays_the_same(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    path = socket_path(deep)
    assert len(str(path)) <= 107
    assert socket_path(deep) == path
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.parent.rmdir()
    assert socket_path(Path("/srv/demo")) == Path("/srv/demo/redis.sock")
