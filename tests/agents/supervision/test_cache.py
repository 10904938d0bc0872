"""Downloads that are kept, and waits between attempts."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from agents.session.backoff import Backoff
from agents.supervision.cache import FileCache


def test_backoff_grows_to_its_cap_and_starts_over() -> None:
    backoff = Backoff(1.0, 8.0, random.Random(4))
    delays_s = [backoff.next_delay_s() for _ in range(40)]
    for delay_s, bound_s in zip(delays_s, [1, 2, 4, 8, 8, 8], strict=False):
        assert bound_s / 2 <= delay_s <= bound_s
    assert max(delays_s) <= 8.0
    assert backoff.next_delay_s(wished_s=8.5) == 8.0
    backoff.reset()
    assert backoff.next_delay_s() <= 1.0
    assert backoff.next_delay_s(wished_s=5.0) == 5.0


class Downloads:
    """Counts what a cache asks for; file i is 100 bytes of the digit i."""

    def __init__(self, cache: FileCache, target: Path) -> None:
        self.cache = cache
        self.target = target
        self.fetched: list[int] = []

    def take(self, number: int) -> Path:
        def fetch(file: BinaryIO) -> None:
            self.fetched.append(number)
            file.write(content(number))

        path = self.target / f"{len(list(self.target.iterdir()))}"
        self.cache.take(name_of(number), fetch, path)
        return path


def content(number: int) -> bytes:
    return str(number).encode() * 100


def name_of(number: int) -> str:
    return hashlib.sha256(content(number)).hexdigest()


@pytest.fixture
def downloads(tmp_path: Path) -> Callable[[int], Downloads]:
    def make(max_bytes: int) -> Downloads:
        for name in ("cache", "target"):
            (tmp_path / name).mkdir()
        return Downloads(FileCache(tmp_path / "cache", max_bytes), tmp_path / "target")

    return make


def test_cache_fetches_once_and_forgets_the_longest_unused(
    downloads: Callable[[int], Downloads], tmp_path: Path
) -> None:
    loads = downloads(250)
    first = loads.take(1)
    os.utime(tmp_path / "cache" / name_of(1), (100, 100))
    loads.take(2)
    os.utime(tmp_path / "cache" / name_of(2), (200, 200))
    loads.take(1)  # used again: 2 is the longest unused now
    loads.take(3)
    loads.take(1)
    loads.take(2)
    assert loads.fetched == [1, 2, 3, 2]
    assert first.read_bytes() == b"1" * 100


def test_cache_hands_out_a_file_larger_than_itself(
    downloads: Callable[[int], Downloads], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file is taken while the last of two trainers of a job is given its copy."""
    utime, num_given = os.utime, itertools.count(1)

    def given(path: Path, **options: bool) -> None:
        if next(num_given) == 2:
            loads.take(3)
        utime(path, **options)

    def fetch(file: BinaryIO) -> None:
        second = pool.submit(loads.take, 1)
        time.sleep(0.02)  # it waits for this one by then
        taken.append(second)
        file.write(content(1))

    loads, taken = downloads(50), list[Future[Path]]()
    monkeypatch.setattr(os, "utime", given)
    with ThreadPoolExecutor(1) as pool:
        loads.cache.take(name_of(1), fetch, tmp_path / "first")
    assert taken[0].result().read_bytes() == (tmp_path / "first").read_bytes() == content(1)
    loads.take(2)
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [name_of(2)]


def test_cache_keeps_nothing_of_a_failed_fetch(tmp_path: Path) -> None:
    def fetch(file: BinaryIO) -> None:
        file.write(b"half")
        raise ConnectionError("gone")

    cache = FileCache(tmp_path, 1000)
    with pytest.raises(ConnectionError):
        cache.take("a" * 64, fetch, tmp_path / "target")
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        cache.take("../../etc/passwd", fetch, tmp_path / "target")
    assert not list(tmp_path.iterdir())


def test_all_but_what_is_just_taken_makes_room(downloads: Callable[[int], Downloads]) -> None:
    made = downloads(10_000)
    kept = [made.take(number) for number in (1, 2)]
    with pytest.raises(FileExistsError):  # one on a full disk would do
        made.cache.take(name_of(2), lambda file: None, kept[0])
    made.cache.clear()
    assert [path.read_bytes() for path in kept] == [content(1), content(2)]
    assert list((made.target.parent / "cache").iterdir()) == []
    assert made.take(1).read_bytes() == content(1)
    assert made.fetched == [1, 2, 1]

    def fetch(file: BinaryIO) -> None:
        file.write(content(3))
        made.cache.clear()

    made.cache.take(name_of(3), fetch, made.target / "during")
    assert (made.target / "during").read_bytes() == content(3)
