"""Keeps standard output free of what native libraries print."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def native_output_dropped() -> Iterator[None]:
    """Drop all that is written to file descriptor 1 in the context.

    HiGHS prints a line when it mends a solution, whatever its options, so the descriptor itself is
    turned away. For programs with one thread that write no results meanwhile.
    """
    sys.stdout.flush()
    library = ctypes.CDLL(None)
    library.fflush(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        library.fflush(None)  # or buffered lines would follow the results at the end
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
