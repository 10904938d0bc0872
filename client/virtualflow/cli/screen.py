"""Output: JSON, or tables and lines for people, on standard output; notes on standard error.

Text of the site is other people's: it is shown without control characters and without markup.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from virtualflow.answers import ExpectedEnd, Job, Validation

EMPTY = "\N{EN DASH}"
#: Characters that have to be looked up: all but printable ASCII, tabs, ends of lines, and joiners,
#: which Persian words and families of emoji are written with.
_DOUBTFUL = re.compile(r"[^\n\t\x20-\x7e\u200c\u200d]")
#: Control characters, and those that change the direction of what follows.
_HARMFUL = frozenset({"Cc", "Cf", "Cs"})
_STATUS_STYLES = {
    "running": "green",
    "finished": "bold green",
    "failed": "bold red",
    "invalid": "bold red",
    "cancelled": "dim",
    "paused": "yellow",
    "preempting": "yellow",
    "online": "green",
    "lost": "bold red",
    "quarantined": "red",
    "cordoned": "yellow",
    "draining": "yellow",
    "maintenance": "yellow",
}


class OutputConsole(Console):
    """Console of plain text, which leaves a closed pipe to `Group.invoke`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(*, is_error: bool = False) -> Console:
    """Return a console of standard output or standard error."""
    file = sys.stderr if is_error else sys.stdout
    return OutputConsole(file=file, highlight=False, markup=False, emoji=False)


def plain(value: object) -> str:
    """Return a value as text that changes nothing on a terminal but shows itself."""
    if value is None or value == "" or value == []:
        return EMPTY
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    if isinstance(value, Mapping):
        value = json.dumps(value, ensure_ascii=False)
    return log_text(str(value))


def exact(value: object) -> object:
    """Return a value of settings for a table: text and None as they are, others as JSON."""
    is_json = isinstance(value, bool | int | float | list | Mapping)
    return json.dumps(value, ensure_ascii=False) if is_json else value


def log_text(text: str) -> str:
    """Return text without what would move the cursor, change colours or the reading direction."""
    return _DOUBTFUL.sub(lambda found: _harmless(found[0]), text)


@lru_cache(4096)
def _harmless(char: str) -> str:
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in _HARMFUL else char


def status_text(status: str) -> Text:
    """Return a status in its colour."""
    return Text(plain(status), _STATUS_STYLES.get(status, ""))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        text: the cell of a row.
        at_width: narrower terminals do without it.
    """

    title: str
    text: Callable[[Any], object]
    at_width: int = 0
    is_number: bool = False
    is_status: bool = False


def row_columns(titles: Iterable[str]) -> list[Column]:
    """Return columns of rows that are a name and a list of values, one for each title."""
    return [
        Column("", itemgetter(0)),
        *(Column(plain(title), _nth_value(i)) for i, title in enumerate(titles)),
    ]


def _nth_value(index: int) -> Callable[[Any], object]:
    return lambda row: row[1][index]


def print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2))


def print_json_line(data: Any) -> None:
    """Print one JSON document of several, each on a line of its own."""
    click.echo(json.dumps(data))


def print_answer(data: Any, sentence: str, *, as_json: bool) -> None:
    """Print what was done: one JSON document, or a sentence for people."""
    if as_json:
        print_json(data)
    else:
        click.echo(sentence)


def print_table(
    columns: Sequence[Column], rows: Iterable[Any], empty: str = "", *, as_json: bool = False
) -> None:
    """Print rows as a table; not on a terminal, as lines with tabs, with all columns.

    Args:
        empty: note in place of a table without rows.
        as_json: print one JSON document instead.
    """
    rows = list(rows)
    if as_json:
        return print_json(rows)
    out = console()
    if not out.is_terminal:
        _print_line([column.title for column in columns])
        for row in rows:
            _print_line([plain(column.text(row)) for column in columns])
        return None
    if not rows and empty:
        return note(empty)
    shown = [column for column in columns if out.width >= column.at_width]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in shown:
        justify: Any = "right" if column.is_number else "left"
        table.add_column(column.title, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(column, row) for column in shown))
    return out.print(table)


def _print_line(cells: Iterable[str]) -> None:
    click.echo("\t".join(" ".join(cell.split()) for cell in cells))


def _cell(column: Column, row: Any) -> Text:
    value = column.text(row)
    return status_text(str(value)) if column.is_status else Text(plain(value))


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names with their values, without those that are empty."""
    out = console()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        if (text := plain(value)) == EMPTY:
            continue
        if out.is_terminal:
            table.add_row(Text(plain(name)), status_text(text) if name == "status" else Text(text))
        else:
            _print_line([plain(name), text])
    if out.is_terminal:
        out.print(table)


def note(text: str) -> None:
    """Print a line for people on standard error; what reads it may be gone."""
    with suppress(OSError):
        click.echo(plain(text), err=True)


def warnings(found: Job | Validation) -> list[str]:
    """Return what a validation warns of, such as settings that nothing reads."""
    return [plain(text) for text in (found["facts"] or {}).get("warnings", ())]


def when(text: str | None) -> str:
    """Return a time of the site in the local time zone; on a terminal of today without the date."""
    if not text:
        return EMPTY
    try:
        at = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        return plain(text)
    if not console().is_terminal:
        return at.isoformat(" ", "seconds")
    is_today = at.date() == datetime.now().astimezone().date()
    return at.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M")


def until(end: ExpectedEnd) -> str:
    """Return a range of times, such as `14:05:00 to 14:20:00`; without an earliest one its end."""
    latest = when(end["latest_at"])
    return f"{when(end['earliest_at'])} to {latest}" if end["earliest_at"] else f"by {latest}"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    whole = round(seconds)
    for unit_s, unit, part_s, part in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit_s:
            return f"{whole // unit_s} {unit} {whole % unit_s // part_s} {part}"
    return f"{whole} s"
