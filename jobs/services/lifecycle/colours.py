"""Colours of jobs: different for up to `NUM_COLOURS` jobs that pages show together."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable

from jobs.models import Job
from jobs.models.jobs import LIVE_JOB_STATUSES, NUM_COLOURS

#: Newest jobs that are looked at; those before them have left the charts or share colours anyway.
_NUM_NEWEST = 200


def free_colour() -> int:
    """Return a new job's colour: of the fewest live jobs, and then unseen for the longest time."""
    return free_colours(1)[0]


def free_colours(num_jobs: int) -> list[int]:
    """Return the colours of new jobs, each as `free_colour` with those before it live."""
    live = Counter(
        Job.objects.filter(status__in=LIVE_JOB_STATUSES).values_list("colour", flat=True)
    )
    newest = Job.objects.order_by("-id").values_list("colour", "ended_at")[:_NUM_NEWEST]
    ends = _latest_ends(newest)
    colours = []
    for _ in range(num_jobs):
        colours.append(_rarest(live, ends))
        live[colours[-1]] += 1
    return colours


def first_start_colour(job: Job) -> int:
    """Return a job's colour from its first start on: its own, unless charts show another job in it.

    Charts show the jobs that have started. Waiting jobs may share colours: there may be more than
    `NUM_COLOURS` of them.
    """
    started = Job.objects.exclude(pk=job.pk).filter(started_at__isnull=False)
    live = Counter(started.filter(status__in=LIVE_JOB_STATUSES).values_list("colour", flat=True))
    newest = Job.objects.order_by("-id").values_list("colour", "ended_at", "started_at")
    ends = _latest_ends((colour, end) for colour, end, start in newest[:_NUM_NEWEST] if start)
    num_ended = max(NUM_COLOURS - 1 - live.total(), 0)
    shown = {*live, *sorted(ends, key=ends.__getitem__, reverse=True)[:num_ended]}
    return _rarest(live, ends) if job.colour in shown else job.colour


def _latest_ends(jobs: Iterable[tuple[int, datetime.datetime | None]]) -> dict[int, float]:
    """Return, by colour, when the last job of it has ended."""
    ends: dict[int, float] = {}
    for colour, at in jobs:
        if at is not None:
            ends[colour] = max(ends.get(colour, 0.0), at.timestamp())
    return ends


def _rarest(live: Counter[int], ends: dict[int, float]) -> int:
    return min(range(NUM_COLOURS), key=lambda one: (live[one], ends.get(one, 0.0), one))
