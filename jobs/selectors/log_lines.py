"""Lines of logs with trainer, place, time of arrival and level; windows of them for pages."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jobs.models import Job, LogChunk
from jobs.selectors.logs import chunks_after, chunks_before, offset_before

#: Most bytes of a window, unless a chunk has more.
WINDOW_BYTES = 64 * 1024
#: Most characters of a line that are shown or searched.
MAX_LINE = 2_000
#: Levels that a filter may name: lines of that level or above, or lines that tell no level.
LEVELS = ("debug", "info", "warning", "error")
OUTPUT = "output"
#: Filters by level, and how pages call them.
LEVEL_FILTERS = (
    ("error", "errors"),
    ("warning", "warnings, errors"),
    ("info", "info and above"),
    ("debug", "any level"),
    (OUTPUT, "no level"),
)

_LETTERS = {"D": "debug", "I": "info", "W": "warning", "E": "error", "F": "error"}
_WORDS = {
    **{level: level for level in LEVELS},
    "warn": "warning",
    "critical": "error",
    "fatal": "error",
}
#: Levels as the logging module, absl, TensorFlow and JSON formatters write them, and as Python
#: writes warnings and exceptions.
_LEVEL = re.compile(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<tensorflow>[DIWEF]) )"
    r"|(?P<absl>[DIWEF])\d{4} \d\d:\d\d:\d\d"
    r"|(?:[\[(]?[\d:.,TZ+/-]+[\])]?[ \t]+){0,3}(?:[\w.]+[ \t]+-[ \t]+|-[ \t]+)?"
    r"[\[(]?(?P<word>DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b[\])]?"
    r"(?=[ \t]*[:|-]|[\])]|[ \t]|$)"
    r'|\{.{0,200}?"level(?:name)?": ?"(?P<json>[A-Za-z]+)"'
    r"|[^\s:]{1,300}:\d+: (?P<warning>\w*Warning)\b"
    r"|(?P<error>Traceback \(most recent call last\):|[\w.]*(?:Error|Exception)(?::|$))"
)
#: Texts, in lower case, and forms without which no line of a text tells a level.
_HINTS = (
    *("debug", "info", "warn", "error", "critical", "fatal", "exception", "traceback"),
    '"level',
)
_LETTER_HINTS = (re.compile(r"\n[DIWEF]\d{4} "), re.compile(r": [DIWEF] "))


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line, or a piece of one.

    Attributes:
        offset: byte of the trainer's log at which it begins.
        at: when it arrived.
        level: one of `LEVELS` that the line tells, else `OUTPUT`.
        continues: it goes on with the line that this trainer had not finished.
        replaces: it replaces what that line had, as progress bars do.
    """

    slot: int
    offset: int
    at: datetime.datetime
    level: str
    text: str
    continues: bool = False
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class LogWindow:
    """Lines in order of arrival.

    Attributes:
        first_cursor, next_cursor: numbers to ask for the lines before and after these.
        has_earlier, has_later: whether there are such lines now.
    """

    lines: list[LogLine]
    first_cursor: int
    next_cursor: int
    has_earlier: bool
    has_later: bool


def line_data(line: LogLine) -> dict[str, Any]:
    """Return a line as an object of JSON."""
    at = line.at.isoformat().replace("+00:00", "Z")
    return {
        "slot": line.slot,
        "offset": line.offset,
        "at": at,
        "level": line.level,
        "text": line.text,
    }


def level_of(text: str) -> str:
    """Return the level that a line tells by its form; `OUTPUT` if it tells none."""
    found = _LEVEL.match(text)
    if found is None:
        return OUTPUT
    kind = found.lastgroup
    assert kind is not None
    if kind in ("tensorflow", "absl"):
        return _LETTERS[found[kind]]
    if kind in ("word", "json"):
        return _WORDS.get(found[kind].lower(), OUTPUT)
    return kind


def may_tell_level(text: str) -> bool:
    """Return False if no line of a text tells a level; much faster than `level_of` of each."""
    lowered, text = text.lower(), f"\n{text}"
    return any(hint in lowered for hint in _HINTS) or any(h.search(text) for h in _LETTER_HINTS)


def has_level(level: str, wanted: str) -> bool:
    """Return whether a line of a level passes a filter; an empty one lets all pass."""
    if not wanted or OUTPUT in (level, wanted):
        return wanted in ("", level)
    return LEVELS.index(level) >= LEVELS.index(wanted)


def window_before(job: Job, slot: int | None, cursor: int | None) -> LogWindow:
    """Return the lines before a window that begins at `cursor`; None: the newest lines."""
    chunks, has_earlier = chunks_before(job, slot, cursor, WINDOW_BYTES)
    if not chunks:
        return LogWindow([], cursor or 0, cursor or 0, has_earlier=False, has_later=False)
    is_inside = cursor is not None
    return _window(job, chunks, has_earlier=has_earlier, has_later=is_inside)


def window_after(job: Job, slot: int | None, cursor: int) -> LogWindow:
    """Return the lines after a window that ends at `cursor`."""
    chunks, has_later = chunks_after(job, slot, cursor, WINDOW_BYTES)
    if not chunks:
        return LogWindow([], cursor, cursor, has_earlier=bool(cursor), has_later=False)
    return _window(job, chunks, has_earlier=True, has_later=has_later)


def window_at(job: Job, slot: int, offset: int) -> LogWindow:
    """Return lines of one trainer from a little before a byte of its log on."""
    of_trainer = LogChunk.objects.filter(job=job, slot=slot)
    start = of_trainer.filter(offset=offset_before(of_trainer, offset))
    number = start.values_list("pk", flat=True).first()
    chunks: list[LogChunk] = []
    has_later = False
    if number is not None:
        # The chunk before, the one with the byte, and what still has room.
        chunks, has_later = chunks_after(job, slot, number - 1, 3 * WINDOW_BYTES)
    if not chunks:
        return LogWindow([], 0, 0, has_earlier=False, has_later=False)
    return _window(job, chunks, has_earlier=chunks[0].offset > 0, has_later=has_later)


def _window(job: Job, chunks: list[LogChunk], *, has_earlier: bool, has_later: bool) -> LogWindow:
    lines: list[LogLine] = []
    is_open: dict[int, bool] = {}
    for chunk in chunks:
        if chunk.slot not in is_open:
            is_open[chunk.slot] = _is_open_before(job, chunk)
        lines += _pieces(chunk, continues=is_open[chunk.slot])
        if chunk.text:
            is_open[chunk.slot] = not chunk.text.endswith("\n")
    return LogWindow(lines, chunks[0].pk, chunks[-1].pk, has_earlier, has_later)


def _is_open_before(job: Job, chunk: LogChunk) -> bool:
    """Return whether a line of the same trainer had not ended when a chunk came."""
    if chunk.offset == 0:
        return False
    earlier = LogChunk.objects.filter(job=job, slot=chunk.slot, offset__lt=chunk.offset)
    text = earlier.exclude(text="").order_by("-offset").values_list("text", flat=True).first()
    return text is not None and not text.endswith("\n")


def _pieces(chunk: LogChunk, *, continues: bool) -> Iterator[LogLine]:
    """Yield the lines of a chunk, the first and the last of which may be unfinished."""
    offset, end = chunk.offset, chunk.offset + max(chunk.size_bytes - 1, 0)
    for text in chunk.text.removesuffix("\n").split("\n") if chunk.text else ():
        *_, shown = text.rpartition("\r")
        is_rest = continues and offset == chunk.offset
        level = level_of(shown)
        place = min(offset, end)
        yield LogLine(
            chunk.slot, place, chunk.at, level, shown[:MAX_LINE], is_rest, is_rest and "\r" in text
        )
        offset += len(text.encode()) + 1
