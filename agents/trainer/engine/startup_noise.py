"""Keeps TensorFlow's start-up messages out of a trainer's log.

A log is for the job's own output and for errors. Environment variables, set before TensorFlow is
imported, silence most messages. Messages that its libraries write while they are loaded ignore
these variables, so they are filtered from standard error line by line.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|To enable the following instructions: "
    rb"|[IW]\d{4} \d\d:\d\d:\d+\.\d+ "
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] "
    rb"|(?:E\d{4} |\d{4}-\d\d-\d\d ).* already (?:been )?registered"
)
_LINE_LIMIT_BYTES = 64 * 1024
_DRAINED_LIMIT_S = 5.0


@contextmanager
def startup_noise_dropped() -> Iterator[None]:
    """Drop start-up messages of libraries from standard error inside the block; pass on the rest.

    Standard error is not restored if it was redirected inside the block.
    """
    sys.stderr.flush()
    outside = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    pipe = os.fstat(writing)
    thread = threading.Thread(
        target=_pass_on, args=(reading, outside), name="start-up messages", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        if os.path.samestat(os.fstat(2), pipe):
            os.dup2(outside, 2)
        os.close(writing)
        thread.join(_DRAINED_LIMIT_S)  # a process started meanwhile may hold the pipe for longer


def is_startup_noise(line: bytes) -> bool:
    """Return whether a line is a message that a library writes while it is loaded."""
    return _NOISE.match(line) is not None


def _pass_on(reading: int, outside: int) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(outside, "wb", buffering=0) as rest:
        while line := lines.readline(_LINE_LIMIT_BYTES):
            if not is_startup_noise(line):
                rest.write(line)
