"""Counts of what takes long, limited in `make test`: its length, checked without a clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

#: Most starts in a run of all tests but the nightly ones. A test that needs more shares what
#: another one has started, or is marked nightly.
LIMITS: Mapping[str, int] = {
    "whole stacks": 2,
    "demos": 1,
    "sites for a browser": 2,
    "windows of a browser": 48,
    "trainers": 150,
    "cases of Keras's classes": 20,
}
#: Starts of this process, by name in `LIMITS`.
STARTED: Counter[str] = Counter()


def count_start(name: str) -> None:
    """Count a start of something in `LIMITS`."""
    assert name in LIMITS
    STARTED[name] += 1


def excesses(started: Mapping[str, int]) -> list[str]:
    """List what was started more often than `make test` may, in sentences."""
    return [
        f"{started[name]} {name} were started, {limit} may be (tests/support/starts.py)"
        for name, limit in LIMITS.items()
        if started.get(name, 0) > limit
    ]
