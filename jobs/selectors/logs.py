"""Logs of jobs by part: the newest text, the text since an earlier part, or all of it.

A log is read in order of arrival by the numbers of its chunks, or of one trainer by byte offsets.
No reader holds more than a few chunks, however long the log is, and the line that has not ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.db.models import QuerySet

from controlplane.core.protocol.plain_text import parts_shown
from jobs.models import Job, LogChunk

#: Most characters of one response to a page, and most chunks; a download has no such limit.
MAX_TEXT = 200_000
MAX_CHUNKS = 2_000
MAX_SLOTS = 1_000
#: Chunks that are read at once, of at most 64 KiB each.
_BATCH = 32


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


def log_slots(job: Job) -> list[int]:
    """List the slots of trainers that have written a log."""
    slots = LogChunk.objects.filter(job=job).order_by("slot").values_list("slot", flat=True)
    return list(slots.distinct()[:MAX_SLOTS])


def log_tail(job: Job, slot: int | None) -> LogPart:
    """Return the newest text, in order of arrival."""
    kept, is_cut = chunks_before(job, slot, None)
    text = parts_shown(_joined(kept, with_slots=slot is None))
    truncated = is_cut or len(text) > MAX_TEXT
    return LogPart(text[-MAX_TEXT:], kept[-1].pk if kept else 0, truncated)


def log_since(job: Job, slot: int | None, cursor: int) -> LogPart:
    """Return text that arrived after an earlier part; more may follow.

    A carriage return as first character means: the text replaces the unfinished line before it.
    """
    # The earlier part has the heading of the trainer that it ends with.
    shown = LogChunk.objects.filter(job=job, pk=cursor).values_list("slot", flat=True).first()
    chunks, _ = chunks_after(job, slot, cursor)
    last = chunks[-1].pk if chunks else cursor
    text = _joined(chunks, with_slots=slot is None, shown=shown)
    mark = "\r" if "\r" in text.partition("\n")[0] else ""
    return LogPart(mark + parts_shown(text), last, truncated=False)


def log_text(job: Job, slot: int | None) -> Iterator[str]:
    """Yield the whole log piece by piece, trainer after trainer."""
    shown: int | None = None
    line: list[str] = []  # joined once it ends, which job code may put off for ever
    for chunk in chunks_from(job, slot):
        if slot is None and chunk.slot != shown:
            yield parts_shown("".join(line)) + _heading(chunk.slot)
            shown, line = chunk.slot, []
        whole, newline, rest = chunk.text.rpartition("\n")
        if newline:
            yield parts_shown("".join([*line, whole, newline]))
            line = []
        line.append(rest)
    yield parts_shown("".join(line))


def chunks_before(
    job: Job, slot: int | None, end: int | None, most_bytes: int = MAX_TEXT
) -> tuple[list[LogChunk], bool]:
    """Return the newest chunks before the one of number `end`, in order of arrival.

    Returns:
        Chunks of at most `most_bytes`, or one; and whether there are older ones.
    """
    chunks = _chunks(job, slot)
    if end is not None:
        chunks = chunks.filter(pk__lt=end)
    return _of_limited_size(chunks.order_by("-id"), most_bytes)


def chunks_after(
    job: Job, slot: int | None, cursor: int, most_bytes: int = MAX_TEXT
) -> tuple[list[LogChunk], bool]:
    """Return the chunks that arrived next after the one of number `cursor`, as `chunks_before`."""
    return _of_limited_size(_chunks(job, slot).filter(pk__gt=cursor).order_by("id"), most_bytes)


def chunks_from(
    job: Job, slot: int | None, first_slot: int = 0, offset: int = 0
) -> Iterator[LogChunk]:
    """Yield chunks trainer after trainer, from the one before that with a byte of a log on."""
    slots = [number for number in log_slots(job) if slot in (None, number)]
    for number in slots:
        if number < first_slot:
            continue
        one = LogChunk.objects.filter(job=job, slot=number).order_by("offset")
        start = 0
        if number == first_slot and offset:
            start = offset_before(one, offset)
        while rows := list(one.filter(offset__gte=start)[:_BATCH]):
            yield from rows
            start = rows[-1].offset + 1


def offset_before(of_trainer: QuerySet[LogChunk], offset: int) -> int:
    """Return where the chunk begins that comes before the one with a byte of a trainer's log."""
    newest = of_trainer.filter(offset__lte=offset).order_by("-offset")
    return [*newest.values_list("offset", flat=True)[:2], 0, 0][1]


def _chunks(job: Job, slot: int | None) -> QuerySet[LogChunk]:
    """Return the chunks with text: job code can write any number of escape sequences alone."""
    chunks = LogChunk.objects.filter(job=job).exclude(text="")
    return chunks if slot is None else chunks.filter(slot=slot)


def _of_limited_size(ordered: QuerySet[LogChunk], most_bytes: int) -> tuple[list[LogChunk], bool]:
    """Read the first chunks, whose sizes are read before their texts; return them by number."""
    sizes = list(ordered.values_list("pk", "size_bytes")[: MAX_CHUNKS + 1])
    numbers: list[int] = []
    total = 0
    for number, size in sizes[:MAX_CHUNKS]:
        total += size
        if numbers and total > most_bytes:
            break
        numbers.append(number)
    chunks = LogChunk.objects.filter(pk__in=numbers).order_by("id")
    return list(chunks), len(numbers) < len(sizes)


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
