"""What must be there for a test to go on with it."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    assert value is not None
    return value
