"""Search of logs for a text or a level, bounded in matches, bytes and time.

Trainer after trainer is searched from its first byte on. A search that reaches a bound says which,
and gives a cursor to go on from.
"""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from controlplane.core.protocol.plain_text import parts_shown
from jobs.models import Job, LogChunk
from jobs.selectors.log_lines import (
    MAX_LINE,
    OUTPUT,
    LogLine,
    has_level,
    level_of,
    line_data,
    may_tell_level,
)
from jobs.selectors.logs import chunks_from

MATCHES_LIMIT = 100
SEARCHED_BYTES = 32 * 1024**2
SEARCHED_S = 1.0
CONTEXT_LIMIT = 20
_CURSOR = re.compile(r"(\d{1,9})\.(\d{1,18})")
#: Longest line, in characters; what goes on beyond is searched as another line.
_LONGEST = 64 * 1024


class SearchBound(StrEnum):
    """Bound at which a search stopped, or the end of the log."""

    END = "end"
    MATCHES = "matches"
    BYTES = "bytes"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class LogMatch:
    """A matching line with lines around it that belong to no match before."""

    line: LogLine
    before: list[LogLine]
    after: list[LogLine]


@dataclass(slots=True)
class LogSearch:
    """Found lines in order.

    Attributes:
        next_cursor: to go on from; empty at the end of the log.
        searched_bytes: bytes read by this search.
    """

    matches: list[LogMatch] = field(default_factory=list)
    stopped: SearchBound = SearchBound.END
    next_cursor: str = ""
    searched_bytes: int = 0

    def as_data(self) -> dict[str, Any]:
        """Return the search as an object of JSON, the same on pages and by REST."""
        return {
            "matches": [
                line_data(match.line)
                | {
                    "before": [*map(line_data, match.before)],
                    "after": [*map(line_data, match.after)],
                }
                for match in self.matches
            ],
            "stopped": self.stopped.value,
            "next_cursor": self.next_cursor,
            "searched_bytes": self.searched_bytes,
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """Lines that are searched for.

    Attributes:
        text: a part of the line, whatever the case; empty: any line.
        level: a filter of `has_level`; empty: any level.
        context: lines shown before and after each.
    """

    text: str = ""
    level: str = ""
    context: int = 0

    def may_match(self, text: str) -> bool:
        """Return False if no line of a text can match."""
        tells = self.level in ("", OUTPUT) or may_tell_level(text)
        return tells and self.text.lower() in text.lower()

    def matches(self, text: str, level: str) -> bool:
        return self.may_match(text) and has_level(level, self.level)


def cursor_read(text: str) -> tuple[int, int]:
    """Read a cursor: number of a trainer and byte of its log; empty: the beginning.

    Raises:
        ValueError: it is no cursor.
    """
    if not text:
        return 0, 0
    found = _CURSOR.fullmatch(text)
    if found is None or not text.isascii():
        raise ValueError(f"no cursor of a search: {text:.20}")
    return int(found[1]), int(found[2])


def log_search(job: Job, slot: int | None, wanted: Wanted, cursor: str = "") -> LogSearch:
    """Search a job's log from a cursor on.

    Raises:
        ValueError: the cursor is none.
    """
    start = cursor_read(cursor)
    scan = _Scan(wanted, start)
    deadline = time.monotonic() + SEARCHED_S
    found = scan.found
    for chunk in chunks_from(job, slot, *start):
        stop, place = _bound_reached(scan, deadline), scan.resume_at or scan.place(chunk)
        if stop is not None and place > start:
            found.stopped, found.next_cursor = stop, _cursor(place)
            return found
        scan.take(chunk)
    scan.finish_trainer()
    if scan.resume_at is not None:
        found.stopped = SearchBound.MATCHES
        found.next_cursor = _cursor(scan.resume_at)
    return found


def _cursor(place: tuple[int, int]) -> str:
    return f"{place[0]}.{place[1]}"


def _bound_reached(scan: _Scan, deadline: float) -> SearchBound | None:
    if scan.is_full:
        return SearchBound.MATCHES
    if scan.found.searched_bytes >= SEARCHED_BYTES:
        return SearchBound.BYTES
    return SearchBound.TIME if scan.found.searched_bytes and time.monotonic() > deadline else None


class _Scan:
    """State of a search between chunks: the unfinished line, and the lines before the next one."""

    def __init__(self, wanted: Wanted, start: tuple[int, int]) -> None:
        self.found = LogSearch()
        self.resume_at: tuple[int, int] | None = None
        self._wanted = wanted
        self._start = start
        self._before: deque[LogLine] = deque(maxlen=wanted.context)
        self._after: list[LogLine] = []
        self._num_after = 0
        self._slot = start[0]
        self._rest = ""
        self._rest_of: LogChunk | None = None
        self._rest_offset = 0

    @property
    def is_full(self) -> bool:
        """True once no more matches are taken and the last one has the lines after it."""
        return self.resume_at is not None and not self._num_after

    def place(self, chunk: LogChunk) -> tuple[int, int]:
        """Return the first byte that has not been searched, if `chunk` comes next."""
        if self._rest_of is not None:
            return self._rest_of.slot, self._rest_offset
        return chunk.slot, chunk.offset

    def take(self, chunk: LogChunk) -> None:
        """Search a chunk's whole lines."""
        if chunk.slot != self._slot:
            self.finish_trainer()
            self._slot = chunk.slot
        if self._rest_of is not None and self._start == (chunk.slot, chunk.offset):
            self._end_line()  # of a line that was cut, which has been searched before
        self.found.searched_bytes += chunk.size_bytes
        first, newline, whole = chunk.text.partition("\n")
        if self._rest_of is None:
            self._rest_of, self._rest_offset = chunk, chunk.offset
        self._rest += first
        if not newline and len(self._rest) < _LONGEST:
            return
        self._end_line()
        offset = chunk.offset + len(first.encode()) + 1
        whole, newline, rest = whole.rpartition("\n")
        if newline:
            self._take_lines(chunk, whole, offset)
            offset += len(whole.encode()) + 1
        self._rest, self._rest_of, self._rest_offset = rest, chunk if rest else None, offset

    def finish_trainer(self) -> None:
        """Search the unfinished line at the end of a trainer's log, and forget its context."""
        if self._rest_of is not None and self._rest:
            self._end_line()
        self._rest, self._rest_of = "", None
        self._before.clear()
        self._after, self._num_after = [], 0

    def _end_line(self) -> None:
        assert self._rest_of is not None
        self._judge(self._rest_of, parts_shown(self._rest), self._rest_offset)
        self._rest, self._rest_of = "", None

    def _take_lines(self, chunk: LogChunk, whole: str, offset: int) -> None:
        if not self._num_after and not self._wanted.may_match(whole):
            # Only the lines that a match in the next chunk may show before it are cut.
            lines = whole.rsplit("\n", self._wanted.context)
            if len(lines) > self._wanted.context:
                offset += len(lines.pop(0).encode()) + 1
        else:
            lines = whole.split("\n")
        for text in lines:
            self._judge(chunk, text, offset)
            offset += len(text.encode()) + 1

    def _judge(self, chunk: LogChunk, text: str, offset: int) -> None:
        offset = min(offset, chunk.offset + max(chunk.size_bytes - 1, 0))
        line = LogLine(chunk.slot, offset, chunk.at, level_of(text), text[:MAX_LINE])
        if (chunk.slot, offset) < self._start:
            self._before.append(line)
            return
        if len(self.found.matches) == MATCHES_LIMIT and self.resume_at is None:
            self.resume_at = chunk.slot, offset
        if self.resume_at is None and self._wanted.matches(text, line.level):
            self._after = []
            self.found.matches.append(LogMatch(line, [*self._before], self._after))
            self._before.clear()
            self._num_after = self._wanted.context
            return
        if self._num_after:
            self._after.append(line)
            self._num_after -= 1
        else:
            self._before.append(line)
