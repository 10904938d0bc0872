"""Speeds of jobs for every policy: predictions, or proportional to the count without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from controlplane.core.values.types import Job, Snapshot

Floats = NDArray[np.float64]


def rooms_by_kind(snapshot: Snapshot) -> dict[str, dict[int, int]]:
    """Count the accelerators of each kind on each node that has some; both in ascending order."""
    counts = Counter((one.kind, one.node_id) for one in snapshot.accelerators)
    rooms: dict[str, dict[int, int]] = {}
    for kind, node in sorted(counts):
        rooms.setdefault(kind, {})[node] = counts[kind, node]
    return rooms


def node_sizes(snapshot: Snapshot) -> Mapping[str, tuple[int, ...]]:
    """Return the accelerators of each kind on each node of the whole cluster, the largest first.

    A demand or speed that followed the nodes of a part, which its jobs have chosen by what they
    hold, would change with every decision that it causes.
    """
    return snapshot.node_sizes or {
        kind: tuple(sorted(rooms.values(), reverse=True))
        for kind, rooms in rooms_by_kind(snapshot).items()
    }


def largest_nodes(snapshot: Snapshot) -> dict[str, int]:
    """Return the most accelerators of each kind on one node of the whole cluster."""
    return {kind: sizes[0] for kind, sizes in node_sizes(snapshot).items()}


def rate(job: Job, kind: str, count: int, num_nodes: int) -> float:
    """Return a job's useful examples per second, or `count` where its speed is unknown."""
    if job.performance is None:
        return float(count)
    return job.performance.goodput(kind, count, num_nodes)


def packed_rates(job: Job, kind: str, most: int, per_node: int) -> Floats:
    """Return `rate` on 0..`most` accelerators packed on nodes of `per_node`. Shape (most + 1,)."""
    if job.performance is None:
        return np.arange(most + 1, dtype=float)
    return job.performance.goodputs(kind, most, per_node)


def without_still_models(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without the speed models of jobs that are 0 wherever these may run.

    Such a model tells nothing: the speed of the job is unknown. One that is positive on another
    kind of the cluster than those of a group's part stays.
    """
    sizes = node_sizes(snapshot)

    def is_still(job: Job) -> bool:
        most = job.max_accelerators
        return job.performance is not None and not any(
            packed_rates(job, kind, min(most, sum(rooms)), rooms[0])[job.min_accelerators :].any()
            for kind, rooms in sizes.items()
            if job.accepts(kind)
        )

    still = {job.id for job in snapshot.jobs if is_still(job)}
    if not still:
        return snapshot
    jobs = (replace(j, performance=None) if j.id in still else j for j in snapshot.jobs)
    return replace(snapshot, jobs=tuple(jobs))


def full_demand(job: Job, kind: str, capacity: int, per_node: int) -> int:
    """Return the fewest accelerators on which a job is fastest, within its bounds.

    0 when its minimum is more than the `capacity` of the kind.
    """
    most = min(job.max_accelerators, capacity)
    if most < job.min_accelerators:
        return 0
    speeds = packed_rates(job, kind, most, per_node)
    return job.min_accelerators + int(np.argmax(speeds[job.min_accelerators :]))


def left_s(job: Job, kind: str, count: int, num_nodes: int) -> float | None:
    """Predict the seconds until a job ends on `count` accelerators; None: unknown.

    Without predictions, its throughput as measured on the nearest count is scaled in proportion.
    """
    if job.remaining_examples is None or count == 0:
        return None
    if job.performance is not None:
        speed = job.performance.goodput(kind, count, num_nodes)
    elif job.examples_per_s:
        nearest = min(job.examples_per_s, key=lambda seen: (abs(seen - count), seen))
        speed = job.examples_per_s[nearest] * count / nearest
    else:
        return None
    return max(job.remaining_examples, 0.0) / speed if speed > 0.0 else None
