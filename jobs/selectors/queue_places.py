"""Places in the queue: tiers and priorities with which a job comes to one of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from django.db.models import Q, QuerySet

from jobs.exceptions import ConflictError, NotFoundError
from jobs.models.jobs import LIVE_JOB_STATUSES, Job
from jobs.selectors.queue import QUEUE_ORDER
from jobs.submission import PRIORITY_RANGE

#: Most jobs that a move changes.
MOVED_LIMIT = 50


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Tier and priority of a job; the older one of two equal jobs comes first."""

    job_id: int
    tier: str
    priority: int

    @classmethod
    def of(cls, job: Job) -> Self:
        return cls(job.pk, job.tier, job.priority)

    def is_before(self, other: QueuePlace) -> bool:
        """Return whether the job comes before another of its tier."""
        return (-self.priority, self.job_id) < (-other.priority, other.job_id)


def places_moved(job_id: int, position: int) -> list[QueuePlace]:
    """Return the places that bring a job to a position of the queue, counted from 1; its own first.

    It keeps its tier if one of its new neighbours has it, and gets a priority between theirs. Where
    no number is free, the jobs above are raised or those below lowered, whichever are fewer.

    Raises:
        NotFoundError: no job of the queue has this number.
        ConflictError: there is no room without changing more than `MOVED_LIMIT` jobs.
    """
    queue = Job.objects.filter(status__in=LIVE_JOB_STATUSES)
    found = queue.filter(pk=job_id).first()
    if found is None:
        raise NotFoundError(f"There is no job {job_id} in the queue.")
    others = queue.exclude(pk=job_id).only("pk", "tier", "priority").order_by(*QUEUE_ORDER)
    job, at = QueuePlace.of(found), max(position - 1, 0)
    now_at = _num_before(others, job)
    if at == now_at:
        return [job]
    neighbours = [QueuePlace.of(job) for job in others[max(at - 1, 0) : at + 1]]
    above, below = _around(neighbours, at, others)
    near = [one.tier for one in (above, below) if one is not None]
    if near and job.tier not in near:
        job = replace(job, tier=near[-1 if at < now_at else 0])
    above, below = (
        one if one is not None and one.tier == job.tier else None for one in (above, below)
    )
    low, high = PRIORITY_RANGE
    if above is not None:
        high = above.priority - (0 if above.job_id < job_id else 1)
    if below is not None:
        low = below.priority + (0 if job_id < below.job_id else 1)
    if low <= high:
        aim = job.priority
        if above is not None and below is not None and not low <= aim <= high:
            aim = round((above.priority + below.priority) / 2)
        return [replace(job, priority=min(max(aim, low), high))]
    return _shifted(others.filter(tier=job.tier), above, job, low, high)


def _around(
    neighbours: list[QueuePlace], at: int, others: QuerySet[Job]
) -> tuple[QueuePlace | None, QueuePlace | None]:
    """Return the jobs above and below a place that begins `at`; behind the end, that of the end."""
    if at == 0:
        return None, neighbours[0] if neighbours else None
    if not neighbours:
        last = others.last()
        return (None if last is None else QueuePlace.of(last)), None
    return neighbours[0], neighbours[1] if len(neighbours) > 1 else None


def _num_before(others: QuerySet[Job], job: QueuePlace) -> int:
    same = Q(tier=job.tier)
    older = Q(priority=job.priority, pk__lt=job.job_id)
    before = Q(tier__gt=job.tier) | (same & (Q(priority__gt=job.priority) | older))
    return others.filter(before).count()


def _shifted(
    others: QuerySet[Job], above: QueuePlace | None, job: QueuePlace, low: int, high: int
) -> list[QueuePlace]:
    """Return the job with those of its tier that make room for it, upwards or downwards."""
    is_above = Q(pk=None)
    if above is not None:
        is_above = Q(priority__gt=above.priority)
        is_above |= Q(priority=above.priority, pk__lte=above.job_id)
    raised = others.filter(is_above).order_by("priority", "-pk")[:MOVED_LIMIT]
    lowered = others.exclude(is_above)[:MOVED_LIMIT]
    ways = [
        _made_room(map(QueuePlace.of, raised), replace(job, priority=low), 1),
        _made_room(map(QueuePlace.of, lowered), replace(job, priority=high), -1),
    ]
    lowest, highest = PRIORITY_RANGE
    fitting = [
        way
        for way in ways
        if len(way) <= MOVED_LIMIT and all(lowest <= one.priority <= highest for one in way)
    ]
    if not fitting:
        raise ConflictError(
            f"There is no room for job {job.job_id}: more than {MOVED_LIMIT - 1} others would have "
            f"to change, or leave the priorities from {lowest} to {highest}."
        )
    return min(fitting, key=len)


def _made_room(others: Iterable[QueuePlace], job: QueuePlace, sign: int) -> list[QueuePlace]:
    """Move others, the nearest first, out of the way of a job: up (1) or down (-1)."""
    moved = [job]
    for other in others:
        last = moved[-1]
        if other.is_before(last) if sign > 0 else last.is_before(other):
            break
        is_older_first = other.job_id < last.job_id if sign > 0 else last.job_id < other.job_id
        moved.append(replace(other, priority=last.priority + (0 if is_older_first else sign)))
    return moved
