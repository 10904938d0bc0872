"""Core enumerations as plain text, so that migrations do not depend on their names."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


def values(members: Iterable[StrEnum]) -> list[str]:
    """List the stored values, sorted so that a set yields the same migration each time."""
    return sorted(member.value for member in members)


def choices(members: Iterable[StrEnum]) -> list[tuple[str, str]]:
    """List (value, label) pairs in the order given."""
    return [(member.value, member.value) for member in members]
