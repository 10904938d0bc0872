"""Colours of jobs: different for up to `NUM_COLOURS` jobs that pages show together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from jobs.models import Job
from jobs.models.jobs import LIVE_JOB_STATUSES, NUM_COLOURS

#: Newest jobs that are looked at; those before them have left the charts or share colours anyway.
_NUM_NEWEST = 200


def free_colour() -> int:
    """Return a new job's colour: of the fewest live jobs, and then unseen for the longest time."""
    return free_colours(1)[0]


def free_colours(num_jobs: int) -> list[int]:
    """Return the colours of new jobs, each as `free_colour` with those before it live."""
    return list(islice(_colours(), num_jobs))


def _colours() -> Iterator[int]:
    colours = Job.objects.filter(status__in=LIVE_JOB_STATUSES).values_list("colour", flat=True)
    num_live = Counter(colours)
    newest = Job.objects.order_by("-id").values_list("colour", "ended_at")[:_NUM_NEWEST]
    ended_at: dict[int, float] = {}
    for colour, at in newest:
        if at is not None:
            ended_at[colour] = max(ended_at.get(colour, 0.0), at.timestamp())
    while True:
        colour = min(
            range(NUM_COLOURS),
            key=lambda colour: (num_live[colour], ended_at.get(colour, 0.0), colour),
        )
        num_live[colour] += 1
        yield colour
