"""When waiting jobs are expected to start, as far as the ends of running ones can be told."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from controlplane.core.policies.rates import left_s
from controlplane.core.types import Job, JobId


def ends_in_s(
    jobs: Mapping[JobId, Job], counts: Mapping[JobId, int], kind: str, per_node: int
) -> dict[JobId, float]:
    """Predict in how many seconds jobs end that hold `counts` of a kind, packed on nodes."""
    ends: dict[JobId, float] = {}
    for job_id, count in counts.items():
        seconds = left_s(jobs[job_id], kind, count, -(-count // per_node))
        if seconds is not None:
            ends[job_id] = seconds
    return ends


def starts_in_turn(
    queue: Sequence[tuple[JobId, int, float | None]],
    free: int,
    releases: Sequence[tuple[float, int]],
) -> dict[JobId, float]:
    """Predict when jobs of a queue start that enter in turn, each when its accelerators are there.

    Args:
        queue: job, the accelerators it waits for, and for how many seconds it then holds them
            (None: nobody knows).
        free: accelerators that nobody holds now.
        releases: in how many seconds how many accelerators become free.

    Returns:
        Seconds until the start of each job that can be told.
    """
    heap = list(releases)
    heapq.heapify(heap)
    starts: dict[JobId, float] = {}
    moment = 0.0
    for job_id, needed, seconds in queue:
        while free < needed and heap:
            released_at, number = heapq.heappop(heap)
            moment = max(moment, released_at)
            free += number
        if free < needed:
            break
        free -= needed
        starts[job_id] = moment
        if seconds is not None:
            heapq.heappush(heap, (moment + seconds, needed))
    return starts


def expected_text(seconds: float | None) -> str:
    """Say when a job is expected to start, to be appended to a sentence; empty when unknown."""
    if seconds is None:
        return ""
    if seconds < 90.0:
        return f" Expected to start in about {max(seconds, 1.0):.0f} s."
    if seconds < 5400.0:
        return f" Expected to start in about {seconds / 60.0:.0f} min."
    return f" Expected to start in about {seconds / 3600.0:.1f} h."
