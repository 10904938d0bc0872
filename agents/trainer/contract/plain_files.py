"""Files that job code can write, or put something else in their place: opened with care.

A pipe would block the reader, a link would lead it elsewhere, so only regular files are opened.
"""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path
from typing import Any

from controlplane.core.protocol.codec import is_nested_deeper

#: Levels of JSON in a file of a run directory.
DEPTH_LIMIT = 48


def plain_file_open(path: Path) -> io.BufferedReader:
    """Open a regular file for reading.

    Raises:
        OSError: the file is missing, a link, or of another type.
    """
    return os.fdopen(_descriptor(path, os.O_RDONLY), "rb")


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
        status = path.lstat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def plain_file_truncate(path: Path, size_bytes: int) -> None:
    """Truncate a regular file.

    Raises:
        OSError: as `plain_file_open`.
    """
    descriptor = _descriptor(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, size_bytes)
    finally:
        os.close(descriptor)


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


def _descriptor(path: Path, access: int) -> int:
    descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor
