"""Optimus: the next accelerator goes to the job whose end it brings nearest (EuroSys 2018).

Every job gets its minimum, in order of arrival, while there are accelerators. Then one accelerator
after the other goes to the job whose predicted time to the end it shortens most. Remaining work and
speeds are predictions; a job for which neither is known counts as average in time, with a speed
proportional to its count.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.core.policies.common.kinds import cannot_start, kinds_assign
from controlplane.core.policies.common.rates import (
    Floats,
    largest_nodes,
    left_s,
    packed_rates,
    without_still_models,
)
from controlplane.core.scheduling.pools import arrival_order, capacity_by_kind
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import Decision, Job, JobId, Share, Snapshot

#: Assumed seconds of a job on one accelerator while no job's time is known.
UNKNOWN_S = 3600.0


@dataclass(frozen=True, slots=True)
class _KindPool:
    """One kind of accelerator and the jobs on it, in order of arrival.

    Attributes:
        left_s: job -> predicted seconds to its end by number of accelerators; index 0 unused.
    """

    kind: str
    capacity: int
    jobs: tuple[Job, ...]
    left_s: Mapping[JobId, Floats]


def optimus(snapshot: Snapshot) -> Decision:
    """Give the next accelerator to the job whose predicted end it brings nearest."""
    snapshot = without_still_models(snapshot)
    kinds = kinds_assign(snapshot)
    shares: dict[JobId, Share] = {}
    reasons = {job.id: cannot_start(snapshot, job) for job in snapshot.jobs if job.id not in kinds}
    for kind in sorted(set(kinds.values())):
        members = [job for job in arrival_order(snapshot.jobs) if kinds.get(job.id) == kind]
        pool = _pool(snapshot, kind, members)
        counts = _fill(pool)
        # Smallest first: placement in this order leaves whole nodes to the large shares.
        in_order = sorted(counts.items(), key=lambda item: item[1])
        shares |= {job_id: Share(kind, count) for job_id, count in in_order}
        for job in pool.jobs:
            reasons[job.id] = _explain(job, pool, counts)
    return Decision(shares, reasons)


def _pool(snapshot: Snapshot, kind: str, members: Sequence[Job]) -> _KindPool:
    capacity, per_node = capacity_by_kind(snapshot)[kind], largest_nodes(snapshot)[kind]
    alone = {job.id: left_s(job, kind, 1, 1) for job in members}
    known = [seconds for seconds in alone.values() if seconds is not None]
    typical = sum(known) / len(known) if known else UNKNOWN_S
    left: dict[JobId, Floats] = {}
    for job in members:
        most = min(job.max_accelerators, capacity)
        rates = packed_rates(job, kind, most, per_node)
        work: float
        if job.performance is not None and job.remaining_examples is not None:
            work = max(job.remaining_examples, 0.0)
        else:
            seconds = alone[job.id]
            work = (typical if seconds is None else seconds) * float(rates[1])
        left[job.id] = np.divide(work, rates, out=np.full(rates.shape, np.inf), where=rates > 0.0)
    return _KindPool(kind, capacity, tuple(members), left)


def _fill(pool: _KindPool) -> dict[JobId, int]:
    """Allot the accelerators of a pool."""
    counts: dict[JobId, int] = {}
    free = pool.capacity
    for job in pool.jobs:
        if job.min_accelerators <= free:
            counts[job.id] = job.min_accelerators
            free -= job.min_accelerators
    heap: list[tuple[float, int, JobId]] = []
    for order, job in enumerate(pool.jobs):
        if job.id in counts:
            _offer(heap, order, job, counts[job.id], pool)
    while free > 0 and heap:
        _, order, job_id = heapq.heappop(heap)
        counts[job_id] += 1
        free -= 1
        _offer(heap, order, pool.jobs[order], counts[job_id], pool)
    return counts


def _offer(
    heap: list[tuple[float, int, JobId]], order: int, job: Job, count: int, pool: _KindPool
) -> None:
    """Push a job's gain from one more accelerator, if positive."""
    left = pool.left_s[job.id]
    if count + 1 >= left.size:
        return
    gain_s = float(left[count] - left[count + 1]) if np.isfinite(left[count + 1]) else 0.0
    if gain_s > 0.0:
        heapq.heappush(heap, (-gain_s, order, job.id))


def _explain(job: Job, pool: _KindPool, counts: Mapping[JobId, int]) -> Reason:
    if job.id not in counts:
        return reason(
            "optimus_waits",
            needed=job.min_accelerators,
            kind=pool.kind,
            held=sum(counts.values()),
            capacity=pool.capacity,
            jobs=len(counts),
        )
    count, left = counts[job.id], pool.left_s[job.id]
    end_s = float(left[count])
    code, gain_s = "optimus_most", None
    if left_s(job, pool.kind, count, 1) is None or not np.isfinite(end_s):
        code = "optimus_unknown"
    elif count + 1 < left.size:
        gain_s = float(left[count] - left[count + 1])
        code = "optimus_gain" if gain_s > 0.0 else "optimus_no_gain"
    return reason(
        code, count=count, capacity=pool.capacity, kind=pool.kind, end_s=end_s, gain_s=gain_s
    )
