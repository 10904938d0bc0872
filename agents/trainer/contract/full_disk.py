"""Writing while the disk is full: files wait for room, output of a job is dropped and noted."""

from __future__ import annotations

import errno
import functools
import io
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Interval between two tries on a full disk; longest time for which a trainer waits for room.
FULL_DISK_POLL_S, FULL_DISK_LIMIT_S = 1.0, 60.0

Written = TypeVar("Written")


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether there was no room, on the disk or in a user's quota."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def room_awaited(write: Callable[[], Written], limit_s: float = FULL_DISK_LIMIT_S) -> Written:
    """Return the result of `write`, which leaves nothing behind if the disk is full.

    Raises:
        OSError: as `write`; that there is no room only after `limit_s`.
    """
    until = time.monotonic() + limit_s
    while True:
        try:
            return write()
        except OSError as error:
            if not is_disk_full(error) or time.monotonic() >= until:
                raise
        time.sleep(FULL_DISK_POLL_S)


class OutputFile(io.FileIO):
    """An open file descriptor; what it has no room for is dropped, and counted in the file later.

    Job code that prints would else fail by its own line.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._num_dropped = 0

    def write(self, data: Any) -> int:
        """Write all of `data`, or drop it; return its length in bytes."""
        whole = bytes(data)
        left = whole
        if self._num_dropped:
            left = f"\n[{self._num_dropped:,} bytes found no room on the disk]\n".encode() + left
        try:
            while left:
                left = left[super().write(left) or 0 :]
                self._num_dropped = 0
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._num_dropped += min(len(left), len(whole))
        return len(whole)


@functools.cache
def log_file() -> OutputFile:
    """Return this process's log, its first standard output, whatever job code makes of that."""
    return OutputFile(1)


def output_files_open() -> None:
    """Let standard output and error of this process drop what finds no room, unbuffered."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        text = io.TextIOWrapper(
            OutputFile(descriptor),
            encoding="utf-8",
            errors="backslashreplace",
            write_through=True,
        )
        setattr(sys, name, text)
