"""Files that job code can write, or put something else in their place: opened with care.

A pipe would block the reader; a link, of a file or of a folder on the way to it, would lead it
elsewhere; a second name of a file of somebody else (link(2)) would give that away. So a file is
opened from its folder, which must be no link, and must be a regular file with one name.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from agents.trainer.contract.atomic_write import PARTIAL_PREFIX
from controlplane.core.protocol.codec import is_nested_deeper

#: Levels of JSON in a file of a run directory.
DEPTH_LIMIT = 48
#: FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE.
_PUNCH = 0x01 | 0x02
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def plain_file_open(path: Path, below: Path | None = None) -> io.BufferedReader:
    """Open a regular file for reading.

    Args:
        below: folder above the file, from which on no folder may be a link; by default the file's
            own folder.

    Raises:
        OSError: the file is missing, a link, or of another type.
    """
    return os.fdopen(_descriptor(path, os.O_RDONLY, below), "rb")


def plain_file_read(path: Path, limit_bytes: int) -> bytes:
    """Read a whole regular file.

    Raises:
        OSError: as `plain_file_open`, or the file is larger than `limit_bytes`.
    """
    with plain_file_open(path) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(f"{path} is larger than {limit_bytes} bytes")
    return content


def plain_file_size(path: Path) -> int:
    """Return the size of a regular file; 0 if there is none."""
    try:
        with plain_file_open(path) as file:
            return os.fstat(file.fileno()).st_size
    except OSError:
        return 0


def is_plain_file(path: Path, below: Path | None = None) -> bool:
    """Return whether `plain_file_open` opens the file."""
    try:
        plain_file_open(path, below).close()
    except OSError:
        return False
    return True


def plain_file_truncate(path: Path, size_bytes: int) -> None:
    """Truncate a regular file.

    Raises:
        OSError: as `plain_file_open`.
    """
    with os.fdopen(_descriptor(path, os.O_WRONLY), "ab") as file:
        file.truncate(size_bytes)


def plain_file_punch(path: Path, start: int, count: int) -> None:
    """Give back the space of `count` bytes of a regular file, which read as zeros then.

    Raises:
        OSError: as `plain_file_open`, or the file system cannot do it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    where = ctypes.c_int64(start), ctypes.c_int64(count)
    with os.fdopen(_descriptor(path, os.O_WRONLY), "ab") as file:
        if library.fallocate(file.fileno(), _PUNCH, *where):
            raise OSError(ctypes.get_errno(), "fallocate")


def plain_file_touch(path: Path) -> None:
    """Set the time of a regular file to now, creating it if it is missing.

    Raises:
        OSError: as `plain_file_open`.
    """
    with os.fdopen(_descriptor(path, os.O_WRONLY | os.O_CREAT), "ab") as file:
        os.utime(file.fileno())


def plain_file_append(path: Path) -> int:
    """Open a regular file for appending, creating it if it is missing; return its descriptor.

    Raises:
        OSError: as `plain_file_open`.
    """
    descriptor = _descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.set_blocking(descriptor, True)
    return descriptor


def plain_file_write(path: Path, content: bytes | BinaryIO) -> None:
    """Replace a file atomically; the new one belongs to the owner of its folder.

    Args:
        content: the bytes, or an open file that is copied to its end.

    Raises:
        OSError: the folder is a link or missing, or another folder has the file's name.
    """
    partial = f"{PARTIAL_PREFIX}{secrets.token_hex(8)}-{path.name}"
    with _folder(path, None) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(partial, flags, 0o600, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    shutil.copyfileobj(content, file)
                _owner_give(file.fileno(), os.fstat(folder))
            os.replace(partial, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=folder)
            raise


def plain_file_delete(path: Path, below: Path) -> None:
    """Delete a file; nothing happens if it is missing.

    Raises:
        OSError: a folder from `below` on is a link, or the file is a folder.
    """
    with contextlib.suppress(FileNotFoundError), _folder(path, below) as folder:
        os.unlink(path.name, dir_fd=folder)


def json_parse(text: bytes | str) -> Any:
    """Parse JSON that job code may have written.

    Raises:
        ValueError: the text is no JSON, or nested deeper than `DEPTH_LIMIT`.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if is_nested_deeper(value, DEPTH_LIMIT):
        raise ValueError("the JSON is nested too deeply")
    return value


def _descriptor(path: Path, access: int, below: Path | None = None) -> int:
    flags = access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with _folder(path, below) as folder:
        descriptor = os.open(path.name, flags, 0o600, dir_fd=folder)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(descriptor)
            raise OSError(f"{path} is not a regular file with one name")
        if access & os.O_CREAT and not status.st_size:
            _owner_give(descriptor, os.fstat(folder))
    return descriptor


@contextmanager
def _folder(path: Path, below: Path | None) -> Iterator[int]:
    """Yield the descriptor of the file's folder, opened level by level from `below` on."""
    folder = os.open(below or path.parent, _FOLDER)
    try:
        for name in path.parent.relative_to(below).parts if below else ():
            inner = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _owner_give(descriptor: int, folder: os.stat_result) -> None:
    if folder.st_uid != os.fstat(descriptor).st_uid:
        os.fchown(descriptor, folder.st_uid, folder.st_gid)
