"""Readers of single submission fields, from JSON values or from a form's text.

Each reader returns the value, or raises ValueError with a message for the user.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

SETTINGS_LIMIT_BYTES = 64 * 1024
KINDS_LIMIT = 20

_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off", ""})


def whole_number(low: int, high: int) -> Callable[[Any], int]:
    """Return a reader of whole numbers within `[low, high]`."""

    def read(value: Any) -> int:
        message = f"Give a whole number from {low} to {high}."
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(message)
        try:
            number = int(value)
        except ValueError:
            raise ValueError(message) from None
        if not low <= number <= high:
            raise ValueError(message)
        return number

    return read


def finite_number(value: Any) -> float:
    """Read a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("Give a number.")
    try:
        number = float(value)
    except ValueError:
        raise ValueError("Give a number.") from None
    if not math.isfinite(number):
        raise ValueError("Give a finite number.")
    return number


def short_text(limit: int) -> Callable[[Any], str]:
    """Return a reader of printable text of at most `limit` characters."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("Give text.")
        text = value.strip()
        if not 1 <= len(text) <= limit or not text.isprintable():
            raise ValueError(f"Give 1 to {limit} printable characters.")
        return text

    return read


def yes_or_no(value: Any) -> bool:
    """Read a boolean."""
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in _TRUE | _FALSE:
        raise ValueError("Give true or false.")
    return word in _TRUE


def one_of(options: Any) -> Callable[[Any], Any]:
    """Return a reader of the values of an enumeration."""

    def read(value: Any) -> Any:
        try:
            return options(value)
        except ValueError:
            raise ValueError(f"Choose one of {', '.join(options)}.") from None

    return read


def settings_object(value: Any) -> dict[str, Any]:
    """Read an object of plain JSON values, given as an object or as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"This is no JSON: {error}.") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError('Give an object with text keys, such as {"learning_rate": 0.001}.')
    try:
        size_bytes = len(json.dumps(value, allow_nan=False).encode())
    except (TypeError, ValueError):
        raise ValueError(
            "Use text, finite numbers, true, false, null, lists and objects."
        ) from None
    if size_bytes > SETTINGS_LIMIT_BYTES:
        raise ValueError(f"At most {SETTINGS_LIMIT_BYTES} bytes of JSON.")
    return value


def accelerator_kinds(value: Any) -> tuple[str, ...]:
    """Read a list of kinds, given as a list or as comma-separated text."""
    words = [word.strip() for word in value.split(",")] if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or len(words) > KINDS_LIMIT:
        raise ValueError(f"Give a list of at most {KINDS_LIMIT} kinds.")
    words = [word for word in words if word != ""]
    for word in words:
        if not isinstance(word, str) or not _KIND.fullmatch(word):
            raise ValueError(f"{word!r:.50} is no kind of accelerator; see the nodes page.")
    return tuple(dict.fromkeys(words))
