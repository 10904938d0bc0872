"""Atomic writes: a reader sees the old file or the new one, never a part of either."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Prefix of files that are not complete yet.
PARTIAL_PREFIX = ".partial-"


@contextmanager
def atomic_write(path: Path, *, mode: int = 0o666, is_synced: bool = False) -> Iterator[Path]:
    """Yield an empty file beside `path`, with the same suffix, that replaces `path` at the end.

    After an error in the block the file is deleted and `path` is unchanged.

    Args:
        mode: permissions, less those that the umask removes.
        is_synced: force the content to the disk before the file gets its name.
    """
    partial = path.with_name(f"{PARTIAL_PREFIX}{secrets.token_hex(4)}-{path.name}")
    partial.touch(mode, exist_ok=False)
    try:
        yield partial
        if is_synced:
            with partial.open("rb") as stream:
                os.fsync(stream.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def text_write(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a text file atomically, as UTF-8."""
    with atomic_write(path, mode=mode) as partial:
        partial.write_text(text, encoding="utf-8")
