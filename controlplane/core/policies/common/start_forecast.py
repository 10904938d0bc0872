"""Forecast of the start of waiting jobs, as far as the ends of running jobs can be predicted."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controlplane.core.policies.common.rates import left_s
from controlplane.core.values.types import Job, JobId, Share

#: Seconds until a release, and the number of accelerators that become free.
Release = tuple[float, int]

#: Accelerators that a job waits for, and the seconds for which it then holds them (None: unknown).
Request = tuple[int, float | None]


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


def releases_by_kind(
    jobs: Iterable[Job], shares: Mapping[JobId, Share], per_node: Mapping[str, int]
) -> dict[str, list[Release]]:
    """Predict the releases of each kind as jobs that hold `shares`, packed on nodes, end."""
    releases: dict[str, list[Release]] = {kind: [] for kind in per_node}
    by_id = {job.id: job for job in jobs}
    for kind, found in releases.items():
        counts = {job_id: share.count for job_id, share in shares.items() if share.kind == kind}
        ends = ends_in_s(by_id, counts, kind, per_node[kind])
        found += [(seconds, counts[job_id]) for job_id, seconds in ends.items()]
    return releases


def wishes_of(
    job: Job, demands: Mapping[str, int], per_node: Mapping[str, int]
) -> dict[str, Request]:
    """Predict for each kind how long a job would hold its demand, packed on nodes."""
    return {
        kind: (count, left_s(job, kind, count, -(-count // per_node[kind])))
        for kind, count in demands.items()
    }


def least_wish(job: Job, kind: str, per_node: int) -> tuple[JobId, int, float | None]:
    """Return a job's request for its minimum of a kind, and how long it would hold that."""
    least = job.min_accelerators
    return job.id, least, left_s(job, kind, least, -(-least // per_node))


@dataclass(slots=True)
class _ReleaseTimeline:
    """The accelerators of one kind: those free at `moment`, and those that become free later."""

    free: int
    releases: list[Release]  # in order of time
    moment: float = 0.0

    def look(self, needed: int) -> tuple[float, int] | None:
        """Return when so many are free at once, and after how many releases; None: unknown."""
        free, moment = self.free, self.moment
        for place, (released_at, number) in enumerate(self.releases):
            if free >= needed:
                return moment, place
            free += number
            moment = max(moment, released_at)
        return (moment, len(self.releases)) if free >= needed else None

    def take(self, wish: Request, moment: float, num_releases: int) -> None:
        """Assign accelerators to a job from that moment until its end, if that is finite."""
        needed, seconds = wish
        self.free += sum(number for _, number in self.releases[:num_releases]) - needed
        del self.releases[:num_releases]
        self.moment = moment
        if seconds is not None and math.isfinite(seconds):
            insort(self.releases, (moment + seconds, needed))


def starts_by_kind(
    queue: Iterable[tuple[JobId, Mapping[str, Request]]],
    free: Mapping[str, int],
    releases: Mapping[str, Iterable[Release]],
) -> dict[JobId, float]:
    """Predict when jobs of a queue start, each on the kind where it has its accelerators first.

    Jobs do not overtake on a kind: behind a job of unknown start, no start on that kind is known.

    Args:
        queue: jobs in order, with their requests by kind.
        free: accelerators of each kind that are free now.
        releases: future releases of each kind.

    Returns:
        Seconds until the start of each job for which a prediction exists.
    """
    lines = {
        kind: _ReleaseTimeline(number, sorted(releases[kind])) for kind, number in free.items()
    }
    starts: dict[JobId, float] = {}
    for job_id, wishes in queue:
        seen = {kind: lines[kind].look(wishes[kind][0]) for kind in wishes if kind in lines}
        known = {kind: found for kind, found in seen.items() if found is not None}
        if not known:
            for kind in seen:
                del lines[kind]
            continue
        first = min(known, key=lambda kind: (known[kind][0], kind))
        lines[first].take(wishes[first], *known[first])
        starts[job_id] = known[first][0]
    return starts


def starts_in_turn(
    queue: Iterable[tuple[JobId, int, float | None]], free: int, releases: Iterable[Release]
) -> dict[JobId, float]:
    """Predict when jobs of a queue for one kind start; see `starts_by_kind`.

    Args:
        queue: job, the accelerators it waits for, and for how many seconds it then holds them.
    """
    wishes = ((job_id, {"": (needed, seconds)}) for job_id, needed, seconds in queue)
    return starts_by_kind(wishes, {"": free}, {"": releases})
