"""Jobs of one node share a user: what one leaves behind is not used for another."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

import pytest

from agents.settings import TRAINER_COMMAND
from agents.supervision.cache import FileCache
from agents.supervision.processes import trainer_environment

CONTENT = b"def build(settings): ..."
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def fetch(file: BinaryIO) -> None:
    file.write(CONTENT)


def test_packages_in_the_home_of_the_user_are_not_imported(tmp_path: Path) -> None:
    environment = trainer_environment({"PYTHONNOUSERSITE": ""}, tmp_path, {})
    assert environment["PYTHONNOUSERSITE"] == "1"
    assert "-s" in TRAINER_COMMAND


@pytest.mark.parametrize("change", ["content", "link", "copy"])
def test_a_cached_file_with_another_content_is_fetched_again(change: str, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    cache = FileCache(tmp_path / "cache", 10_000)
    first, second = tmp_path / "first", tmp_path / "second"
    cache.take(SHA256, fetch, first)
    cached = tmp_path / "cache" / SHA256
    if change == "content":
        cached.write_bytes(b"evil")
    elif change == "link":
        cached.unlink()
        (tmp_path / "evil").write_bytes(b"evil")
        cached.symlink_to(tmp_path / "evil")
    else:
        first.write_bytes(b"evil")  # a trainer writes into its own copy
    cache.take(SHA256, fetch, second)
    assert second.read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["dangling", "folder"])
def test_odd_entries_of_the_cache_do_not_keep_out_others(kind: str, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    odd = tmp_path / "cache" / ("f" * 64)
    if kind == "dangling":
        odd.symlink_to(tmp_path / "nowhere")
    else:
        odd.mkdir()
    FileCache(tmp_path / "cache", 1).take(SHA256, fetch, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == CONTENT


def test_a_fetched_file_with_another_digest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    cache = FileCache(tmp_path / "cache", 10_000)
    with pytest.raises(ValueError, match="does not have SHA-256"):
        cache.take("0" * 64, fetch, tmp_path / "target")
    assert not (tmp_path / "target").exists()
