"""Digests of the base images: which are recorded, and that other images are noticed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.base_images import (
    digests_locked,
    images_check,
    images_lock,
    images_used,
)

FIRST, SECOND = (f"sha256:{digit * 64}" for digit in "ab")
DOCKERFILE = "FROM --platform=linux/amd64 base:1 AS one\nFROM one AS two\nFROM base:1\n"
COMPOSE = "services: {a: {image: other:2}, b: {build: ., image: own}, c: {image: other:2}}\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder of files that use the images base:1 and other:2."""
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "docker-compose.yml").write_text(COMPOSE)
    return tmp_path


def lock_of(root: Path, *lines: str) -> Path:
    path = root / "images.txt"
    path.write_text("\n".join(["# A comment.", *lines, ""]))
    return path


def engine(images: dict[str, list[str] | None]) -> list[str]:
    """Return a command like docker's, of an engine with some images and their digests."""
    answers = {name: digests for name, digests in images.items() if digests is not None}
    script = (
        f"import json, sys; images = {answers!r}\n"
        "if sys.argv[1] == 'pull': sys.exit(sys.argv[-1] not in images)\n"
        "if sys.argv[-1] not in images: sys.exit(1)\n"
        "name = sys.argv[-1].split(':')[0]\n"
        "print(json.dumps([f'{name}@{digest}' for digest in images[sys.argv[-1]]]))"
    )
    return [sys.executable, "-c", script]


def test_all_base_images_are_listed_and_no_others() -> None:
    assert set(digests_locked()) == images_used()


def test_images_are_those_that_are_pulled(root: Path) -> None:
    assert images_used(root) == {"base:1", "other:2"}


@pytest.mark.parametrize(
    ("line", "digests", "words"),
    [
        (f"other:2@{FIRST}", [FIRST], ""),
        (f"other:2@{FIRST}", [SECOND, FIRST], ""),
        (f"other:2@{FIRST}", [SECOND], f"the engine has {SECOND}, recorded is {FIRST}"),
        (f"other:2@{FIRST}", [], "made on this machine"),
        (f"other:2@{FIRST}", None, "the engine has no such image"),
        ("other:2", [FIRST], "no digest is recorded"),
        ("", [FIRST], "no digest is recorded"),
    ],
)
def test_an_image_is_the_recorded_one_or_named(
    root: Path, line: str, digests: Sequence[str] | None, words: str
) -> None:
    lock = lock_of(root, f"base:1@{FIRST}", line)
    images = {"base:1": [FIRST], "other:2": None if digests is None else [*digests]}
    faults = images_check(lock, engine(images), root)
    assert [words in fault and fault.startswith("other:2: ") for fault in faults] == [True] * bool(
        words
    )


def test_without_an_engine_nothing_is_said_to_be_right(root: Path) -> None:
    lock = lock_of(root, f"base:1@{FIRST}", f"other:2@{FIRST}")
    assert len(images_check(lock, ["no-such-program"], root)) == 2


def test_what_is_pulled_is_recorded(root: Path) -> None:
    lock = lock_of(root, "base:1", f"gone:3@{SECOND}")
    images = {"base:1": [FIRST], "other:2": [SECOND]}
    command = engine(images)
    images_lock(lock, command, root)
    assert lock.read_text() == f"# A comment.\nbase:1@{FIRST}\nother:2@{SECOND}\n"
    assert images_check(lock, command, root) == []


@pytest.mark.parametrize("other", [None, []], ids=["not pulled", "made here"])
def test_no_digest_is_invented(root: Path, other: list[str] | None) -> None:
    lock = lock_of(root, "base:1")
    before = lock.read_text()
    with pytest.raises((ValueError, subprocess.CalledProcessError)):
        images_lock(lock, engine({"base:1": [FIRST], "other:2": other}), root)
    assert lock.read_text() == before


@pytest.mark.parametrize("digest", ["", "latest", "sha256:abc", f"{FIRST}0", FIRST.upper()])
def test_a_wrong_digest_is_refused(root: Path, digest: str) -> None:
    with pytest.raises(ValueError, match=f"'base:1@{digest}'"):
        digests_locked(lock_of(root, f"base:1@{digest}"))
