"""Storage of trainer logs: rendered as by a terminal, without repeats, limited in size.

Of a log that is too long its beginning and its newest part are kept; what is left out between them,
here or by the agent, is noted in the text.

While a job runs its log consists of rows, which pages follow and search. After its last trainer has
ended, the whole log is also written to `log.txt` among the job's files.
"""

from __future__ import annotations

import datetime
from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import accumulate

from django.conf import settings
from django.db.models import Exists, F, Max, OuterRef, Q, QuerySet, Sum
from django.db.models.functions import Greatest

from controlplane.core.protocol.node_messages import LogChunk as LogMessage
from controlplane.core.protocol.plain_text import plain_part
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES
from jobs.models import Allocation, Artifact, Job, LogChunk, Node
from jobs.selectors.logs import log_text
from jobs.services.lifecycle.artifacts import LOG_NAME, log_store
from jobs.services.lifecycle.transitions import job_rows_lock

#: A node that was cut off may send the rest of a log for so long after its trainer has ended.
LOG_GRACE = datetime.timedelta(days=1)
#: Rows of one trainer's log. A row counts as its share of the limit of bytes at least.
ROWS_LIMIT = 100_000
_FILED_AT_ONCE = 20
_END = Max(F("offset") + F("size_bytes"))


def log_chunks_store(node: Node, chunks: Sequence[LogMessage], now: datetime.datetime) -> set[int]:
    """Store new chunks of trainers that this node has, or had within a day; return the jobs.

    Runs in a transaction.
    """
    keys = {(chunk.job_id, chunk.slot) for chunk in chunks}
    own = set(_tenures(node, {job_id for job_id, _ in keys}, now).values_list("job_id", "slot"))
    # Followers of a log ask for later numbers: those of a job are given in the order of commits.
    job_rows_lock(Job.objects.filter(id__in={job_id for job_id, _ in keys & own}))
    kept: set[int] = set()
    for job_id, slot in sorted(keys & own):
        rows = sorted(
            (chunk for chunk in chunks if (chunk.job_id, chunk.slot) == (job_id, slot)),
            key=lambda chunk: chunk.offset,
        )
        if _store(job_id, slot, rows, now):
            kept.add(job_id)
    return kept


def logs_file(node: Node, job_ids: Collection[int], now: datetime.datetime) -> set[int]:
    """Write `log.txt` of the given jobs that have ended and released every accelerator.

    Jobs that this node has not had within a day are left out.

    Returns:
        These jobs.
    """
    own = _tenures(node, job_ids, now).values("job_id")
    return _file(_ended_with_log().filter(id__in=own), now)


def logs_file_missing(now: datetime.datetime) -> set[int]:
    """Write `log.txt` of jobs that ended within a day and have none, as after a full disk.

    Returns:
        These jobs, some at a time.
    """
    has_file = Exists(Artifact.objects.filter(job=OuterRef("pk"), name=LOG_NAME))
    recent = _ended_with_log().filter(ended_at__gt=now - LOG_GRACE, files_deleted_at=None)
    return _file(recent.exclude(has_file).order_by("id")[:_FILED_AT_ONCE], now)


def _ended_with_log() -> QuerySet[Job]:
    has_log = Exists(LogChunk.objects.filter(job=OuterRef("pk")))
    return Job.objects.filter(has_log, status__in=[*ENDED_JOB_STATUSES])


def _file(jobs: QuerySet[Job], now: datetime.datetime) -> set[int]:
    ended = [job for job in jobs if not job.allocations.filter(released_at=None).exists()]
    for job in ended:
        log_store(job, log_text(job, slot=None), now)
    return {job.pk for job in ended}


def _tenures(node: Node, job_ids: Collection[int], now: datetime.datetime) -> QuerySet[Allocation]:
    is_recent = Q(released_at=None) | Q(released_at__gt=now - LOG_GRACE)
    return Allocation.objects.filter(
        is_recent, accelerator__node=node, job_id__in=job_ids, job__files_deleted_at=None
    )


def _store(job_id: int, slot: int, chunks: Sequence[LogMessage], now: datetime.datetime) -> bool:
    stored = _of_trainer(job_id, slot).aggregate(
        end=_END, size=Sum(Greatest("size_bytes", _least_bytes()))
    )
    end, size = stored["end"] or 0, stored["size"] or 0
    # The unfinished escape sequence at the end of the newest chunk.
    newest = _of_trainer(job_id, slot).order_by("-offset")
    unfinished = newest.values_list("unfinished", flat=True).first() or ""
    rows = []
    for chunk in chunks:
        raw = chunk.text.encode(errors="replace")
        # A repeated chunk may have grown at its end: cut the stored part off its beginning.
        raw, offset = raw[max(end - chunk.offset, 0) :], max(end, chunk.offset)
        if raw:
            before = unfinished if offset == end else ""
            text, unfinished = plain_part(raw.decode(errors="replace"), before)
            if offset > end:
                text = _left_out(offset - end) + text.lstrip("\r")
            rows.append(
                LogChunk(
                    job_id=job_id,
                    slot=slot,
                    offset=offset,
                    size_bytes=len(raw),
                    text=text,
                    unfinished=unfinished,
                    at=now,
                )
            )
            end, size = offset + len(raw), size + max(len(raw), _least_bytes())
    LogChunk.objects.bulk_create(rows, ignore_conflicts=True)
    if size > settings.LOG_LIMIT_BYTES:
        _shorten(job_id, slot, size)
    return bool(rows)


def _shorten(job_id: int, slot: int, size: int) -> None:
    """Delete the oldest chunks behind the beginning of a log of `size` bytes, which is too long.

    A note takes the place of the last of them. A sixteenth more than necessary is deleted, so that
    this is seldom done.
    """
    limit, least = settings.LOG_LIMIT_BYTES, _least_bytes()
    own = _of_trainer(job_id, slot).order_by("offset")
    rows = list(own.values_list("pk", "offset", "size_bytes"))
    counted = accumulate(max(size_bytes, least) for _, _, size_bytes in rows)
    num_first = 1 + bisect_left(list(counted), limit // 4)
    begins = rows[num_first - 1][1] + rows[num_first - 1][2]
    excess = size - (limit - limit // 16)
    for number, offset, size_bytes in rows[num_first:-1]:
        excess -= max(size_bytes, least)
        if excess <= 0 or number == rows[-2][0]:
            note = _left_out(offset + size_bytes - begins)
            own.filter(pk=number).update(text=note, unfinished="")
            own.filter(offset__gte=begins, offset__lt=offset).delete()
            return


def _least_bytes() -> int:
    return settings.LOG_LIMIT_BYTES // ROWS_LIMIT


def _left_out(num_bytes: int) -> str:
    return f"\n[{num_bytes:,} bytes of this log are left out]\n"


def _of_trainer(job_id: int, slot: int) -> QuerySet[LogChunk]:
    return LogChunk.objects.filter(job_id=job_id, slot=slot)
