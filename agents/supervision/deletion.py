"""Deletion of folders that job code has filled: of any depth and size, and through no link.

Each folder inside is moved up to where the deleted one is, under a name of its own, so neither
recursion nor the number of open files limits the depth.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agents.trainer.contract.full_disk import is_disk_full

#: Beginning of the names of folders that are being deleted.
DELETED_PREFIX = ".deleted-"
#: Longest time of a round of the agent that is spent on one deletion.
ROUND_S = 0.05
#: Times that a folder is listed which others may still write to, and folders moved out of it each.
_PASSES, _MOVED_LIMIT = 3, 1000
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def folder_delete(path: Path) -> None:
    """Delete a folder, or a file; what takes long is done on a thread of its own.

    The name is free on return. What cannot be deleted is left beside it, under another name.
    """
    steps = deletion(path)
    if not deletion_advance(steps, ROUND_S):
        rest = threading.Thread(
            target=deletion_advance, args=(steps,), name="deletion", daemon=True
        )
        rest.start()


def deletions_resume(parent: Path) -> None:
    """Delete what earlier processes have begun to delete in a folder."""
    for path in parent.glob(f"{DELETED_PREFIX}*"):
        folder_delete(path)


def deletion_advance(steps: Iterator[None], limit_s: float = math.inf) -> bool:
    """Go on with a deletion for some time, in seconds; return whether it is complete."""
    ends_at = time.monotonic() + limit_s
    return not any(time.monotonic() >= ends_at for _ in steps)


def deletion(path: Path) -> Iterator[None]:
    """Delete a folder or a file, one file a step; nothing happens if it is missing."""
    with contextlib.suppress(OSError), _opened(path.parent) as parent:
        first = _removed(parent, path.name, parent)
        pending = [(first, _PASSES)] if first else []
        while pending:
            name, passes = pending.pop()
            moved: list[tuple[str, int]] = []
            with (
                contextlib.suppress(OSError),
                _taken(parent, name) as folder,
                os.scandir(folder) as entries,
            ):
                for entry in entries:
                    with contextlib.suppress(OSError):
                        inner = _removed(folder, entry.name, parent)
                        moved += [(inner, _PASSES)] if inner else []
                    yield
                    if len(moved) >= _MOVED_LIMIT:
                        break
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError:
                passes -= len(moved) < _MOVED_LIMIT
                pending += [(name, passes)] if passes else []
            pending += moved


def _removed(folder: int, name: str, parent: int) -> str | None:
    """Delete a file, or move a folder to `parent` and return its new name.

    Raises:
        OSError: it is neither deleted nor moved.
    """
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
        return None
    new_name = DELETED_PREFIX + secrets.token_hex(8)
    with _taken(folder, name):
        try:
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=parent)
        except OSError as error:
            if folder == parent and is_disk_full(error):
                return name  # emptied where it is
            raise
    return new_name


@contextmanager
def _taken(parent: int, name: str) -> Iterator[int]:
    """Open a folder, which others can neither list nor change from now on."""
    handle = os.open(name, os.O_PATH | _FOLDER, dir_fd=parent)
    try:
        itself = Path(f"/proc/self/fd/{handle}")
        with contextlib.suppress(OSError):
            os.chown(itself, os.geteuid(), os.getegid())
        with contextlib.suppress(OSError):
            itself.chmod(0o700)
        with _opened(itself) as folder:
            yield folder
    finally:
        os.close(handle)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)
