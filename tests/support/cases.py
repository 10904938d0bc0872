"""Parameters of a test of which `make test` runs some, and `make nightly` all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest

_NIGHTLY = pytest.mark.nightly


def some(cases: Iterable[str], nightly: Collection[str]) -> list[Any]:
    """Mark the cases that only `make nightly` runs.

    Raises:
        ValueError: `nightly` names a case that is not there.
    """
    names = list(cases)
    if unknown := set(nightly) - set(names):
        raise ValueError(f"no such cases: {sorted(unknown)}")
    return [pytest.param(name, marks=_NIGHTLY if name in nightly else ()) for name in names]


def pairs(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """Combine all of two families; `make test` runs each member of both at least once."""
    rows, columns = list(first), list(second)
    return [
        pytest.param(row, column, marks=() if _is_first(at, other, rows, columns) else _NIGHTLY)
        for at, row in enumerate(rows)
        for other, column in enumerate(columns)
    ]


def _is_first(at: int, other: int, rows: Sequence[Any], columns: Sequence[Any]) -> bool:
    if len(rows) >= len(columns):
        return at % len(columns) == other
    return other % len(rows) == at
