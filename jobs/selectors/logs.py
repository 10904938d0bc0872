"""Logs of jobs: the newest part, the part since an earlier one, matching lines, or all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.db.models import QuerySet

from controlplane.core.protocol.plain_text import parts_shown
from jobs.models import Job, LogChunk

#: Most characters of one response to a page; a download has no such limit.
MAX_TEXT = 200_000
MAX_CHUNKS = 2_000
MAX_MATCHES = 500
#: Most characters of a line in search results.
MAX_LINE = 2_000
MAX_SLOTS = 1_000
_SEARCHED_CHUNKS = 20_000


@dataclass(frozen=True, slots=True)
class LogPart:
    """Part of a log.

    Attributes:
        next_cursor: position to pass in for the next part.
        truncated: older text was left out.
    """

    text: str
    next_cursor: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class LogLine:
    """A matching line; `number` counts from 1 within its trainer's log."""

    slot: int
    number: int
    text: str


def log_slots(job: Job) -> list[int]:
    """List the slots of trainers that have written a log."""
    slots = LogChunk.objects.filter(job=job).order_by("slot").values_list("slot", flat=True)
    return list(slots.distinct()[:MAX_SLOTS])


def log_tail(job: Job, slot: int | None) -> LogPart:
    """Return the newest text, in order of arrival."""
    chunks = list(_chunks(job, slot).order_by("-id")[: MAX_CHUNKS + 1])
    kept: list[LogChunk] = []
    size = 0
    for chunk in chunks[:MAX_CHUNKS]:
        if kept and size + len(chunk.text) > MAX_TEXT:
            break
        kept.append(chunk)
        size += len(chunk.text)
    text = parts_shown(_joined(kept[::-1], with_slots=slot is None))
    truncated = len(kept) < len(chunks) or len(text) > MAX_TEXT
    return LogPart(text[-MAX_TEXT:], kept[0].pk if kept else 0, truncated)


def log_since(job: Job, slot: int | None, cursor: int) -> LogPart:
    """Return the text that arrived after an earlier part.

    A carriage return as first character means: the text replaces the unfinished line before it.
    """
    # The earlier part has the heading of the trainer that it ends with.
    shown = LogChunk.objects.filter(job=job, pk=cursor).values_list("slot", flat=True).first()
    chunks = list(_chunks(job, slot).filter(pk__gt=cursor).order_by("id")[:MAX_CHUNKS])
    last = chunks[-1].pk if chunks else cursor
    text = _joined(chunks, with_slots=slot is None, shown=shown)
    mark = "\r" if "\r" in text.partition("\n")[0] else ""
    return LogPart(mark + parts_shown(text), last, truncated=False)


def log_matches(job: Job, slot: int | None, wanted: str) -> tuple[list[LogLine], bool]:
    """Find lines that contain a text, ignoring case; True: there may be more of them."""
    lowered = wanted.lower()
    found: list[LogLine] = []
    for line in _lines(_chunks(job, slot).order_by("slot", "offset")[:_SEARCHED_CHUNKS]):
        if lowered in line.text.lower():
            found.append(LogLine(line.slot, line.number, line.text[:MAX_LINE]))
            if len(found) == MAX_MATCHES:
                return found, True
    return found, False


def log_text(job: Job, slot: int | None) -> Iterator[str]:
    """Yield the whole log piece by piece, trainer after trainer."""
    shown: int | None = None
    line = ""
    chunks = _chunks(job, slot).order_by("slot", "offset")
    for chunk in chunks.iterator(chunk_size=100):
        if slot is None and chunk.slot != shown:
            yield parts_shown(line) + _heading(chunk.slot)
            shown, line = chunk.slot, ""
        whole, newline, line = (line + chunk.text).rpartition("\n")
        yield parts_shown(whole + newline)
    yield parts_shown(line)


def _chunks(job: Job, slot: int | None) -> QuerySet[LogChunk]:
    chunks = LogChunk.objects.filter(job=job)
    return chunks if slot is None else chunks.filter(slot=slot)


def _joined(chunks: Sequence[LogChunk], *, with_slots: bool, shown: int | None = None) -> str:
    """Join chunks in order of arrival, with a heading at every change of trainer from `shown`."""
    parts: list[str] = []
    for chunk in chunks:
        if with_slots and chunk.slot != shown:
            parts.append(_heading(chunk.slot))
            shown = chunk.slot
        parts.append(chunk.text)
    return "".join(parts)


def _heading(slot: int) -> str:
    return f"\n── trainer {slot} ──\n"


def _lines(chunks: QuerySet[LogChunk]) -> Iterator[LogLine]:
    """Split the logs into lines; a line may span chunks."""
    slot, number, rest = -1, 0, ""
    for chunk in chunks.iterator(chunk_size=100):
        if chunk.slot != slot:
            if rest:
                yield LogLine(slot, number + 1, parts_shown(rest))
            slot, number, rest = chunk.slot, 0, ""
        *whole, rest = (rest + chunk.text).split("\n")
        for text in whole:
            number += 1
            yield LogLine(slot, number, parts_shown(text))
    if rest:
        yield LogLine(slot, number + 1, parts_shown(rest))
