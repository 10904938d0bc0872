"""Exit codes of the command line."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes; docs/client.md lists them."""

    FINE = 0
    JOB_FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNREACHABLE = 4
    TIMED_OUT = 5
    INTERRUPTED = 130
