"""Values that a test cannot go on without."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    assert value is not None
    return value
