"""Readers of user-supplied files, with errors that state the file, the place and the problem."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controlplane.core.values.tiers import Tier

#: Largest whole number up to which floats hold every one: 53 bits.
MOST_COUNT = 2**53 - 1


def json_read(path: Path, option: str) -> Any:
    """Read a JSON file.

    Args:
        option: option that named the file.

    Raises:
        ValueError: the file cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{option}: cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{option}: {path} is no JSON: {error}") from error


def csv_read(path: Path, option: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV file that are not empty, with their line numbers, the first being 1.

    Raises:
        ValueError: the file cannot be read or is not CSV.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            delimiter = csv_delimiter(file.readline())
            file.seek(0)
            reader = csv.DictReader(file, delimiter=delimiter, skipinitialspace=True)
            rows = [(reader.line_num, row) for row in reader if any(row.values())]
    except OSError as error:
        raise ValueError(f"{option}: cannot read {path}: {error.strerror}") from error
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{option}: {path} is no CSV: {error}") from error
    yield from rows


def csv_delimiter(titles: str) -> str:
    """Return what separates the titles of a CSV file: a comma, a semicolon or a tabulator."""
    return max(",;\t", key=titles.count)


@contextmanager
def row_of(option: str, where: str) -> Iterator[None]:
    """Add the option and the row to errors raised in the context.

    Raises:
        ValueError: there was an error.
    """
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{option}: {where}: {error} is missing") from error
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{option}: {where}: {error}") from error


def text_of(row: Any, name: str) -> str:
    """Return a value as text.

    Raises:
        ValueError: the value is missing, or a list or object.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"must be an object with {name!r}, not {row!r}")
    value = row.get(name)
    if value is None or value == "":
        raise ValueError(f"{name!r} is missing")
    if isinstance(value, list | dict):
        raise ValueError(f"{name!r} must be a single value, not {value!r:.40}")
    return str(value)


def number_of(row: Any, name: str) -> float:
    """Return a finite number.

    Raises:
        ValueError: the value is missing or not a finite number.
    """
    value = text_of(row, name)
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{name!r} must be a number, not {value!r}")
    return found


def whole_of(row: Any, name: str, most: int = MOST_COUNT) -> int:
    """Return a whole number of at most `most`.

    Raises:
        ValueError: the value is missing, not a whole number or too large.
    """
    found = number_of(row, name)
    if not found.is_integer():
        raise ValueError(f"{name!r} must be a whole number, not {found:g}")
    if found > most:
        raise ValueError(f"{name!r} must be at most {most}, not {text_of(row, name)}")
    return int(found)


def tier_of(row: Mapping[str, Any]) -> Tier:
    """Read the tier of a row; a row without one is normal.

    Raises:
        ValueError: there is no such tier.
    """
    text = row.get("tier") or Tier.NORMAL
    if text not in list(Tier):
        raise ValueError(f"'tier' is {text!r:.40}; give one of {', '.join(Tier)}")
    return Tier(text)
