"""Shortest remaining time first: the job that would end soonest has all it can use.

The classic policy for short mean completion times, preemptive, with a job's full demand or nothing.
It requires the remaining time of a job; jobs without a known end come last. Jobs that have an end
but were never measured come first for a minute, so that their speed can be measured. Only the order
decides which jobs run, so that two jobs of like length must not take turns: a running job counts as
shorter than it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.core.policies.common.kinds import cannot_start
from controlplane.core.policies.common.rates import (
    full_demand,
    left_s,
    node_sizes,
    without_still_models,
)
from controlplane.core.scheduling.pools import capacity_by_kind, held_by_kind, held_kind
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import Decision, Job, JobId, Share, Snapshot

#: A running job counts as this share of its remaining time, less the cost of a resize.
RUNNING_SHARE = 0.8


#: Seconds on its full demand after which a job whose speed is still unknown counts as unknown.
TRIAL_S = 60.0


@dataclass(frozen=True, slots=True)
class _Claim:
    """A job's demand of each kind that can satisfy it, and its remaining time.

    Attributes:
        demands: accelerators by kind, the kind it holds first, then the fastest.
        seconds: predicted seconds until it ends on the demand, by kind; None: unknown.
        left_s: the least of them; None: unknown.
        is_on_trial: whether it has an end and is within its minute of measurement.
        rank_s: sort key.
    """

    job: Job
    demands: Mapping[str, int]
    seconds: Mapping[str, float | None]
    left_s: float | None
    rank_s: float
    is_running: bool
    is_on_trial: bool


def srtf(snapshot: Snapshot) -> Decision:
    """Serve jobs in order of the time that they would still take, each with its full demand."""
    snapshot = without_still_models(snapshot)
    capacity = capacity_by_kind(snapshot)
    sizes = node_sizes(snapshot)
    held = held_by_kind(snapshot)
    claims = [_claim(job, capacity, sizes, held_kind(held[job.id])) for job in snapshot.jobs]
    claims.sort(
        key=lambda c: (
            c.left_s is None and not c.is_on_trial,
            c.rank_s,
            not c.is_running,
            c.job.submitted_at,
            c.job.id,
        )
    )
    free = dict(capacity)
    shares: dict[JobId, Share] = {}
    reasons: dict[JobId, Reason] = {}
    running: list[_Claim] = []
    for claim in claims:
        job = claim.job
        if not claim.demands:
            reasons[job.id] = cannot_start(snapshot, job)
            continue
        kind = next((k for k, count in claim.demands.items() if count <= free[k]), None)
        if kind is None:
            reasons[job.id] = _waiting(claim, running, free, capacity)
            continue
        count = claim.demands[kind]
        shares[job.id] = Share(kind, count)
        free[kind] -= count
        reasons[job.id] = reason(
            "srtf_holds",
            count=count,
            capacity=capacity[kind],
            kind=kind,
            end=_end(claim, kind),
            jobs=len(running),
        )
        running.append(claim)
    return Decision(shares, reasons)


def _claim(
    job: Job, capacity: Mapping[str, int], sizes: Mapping[str, tuple[int, ...]], own: str | None
) -> _Claim:
    demands = _demands(job, capacity, sizes)
    seconds = _seconds(job, demands, sizes)
    best_s = _least(seconds)
    # In a part of the cluster too, jobs are in the order that they have in the whole of it: the
    # part is what the others leave, which would change with the order.
    whole = {kind: sum(rooms) for kind, rooms in sizes.items()}
    ranked = seconds if whole == capacity else _seconds(job, _demands(job, whole, sizes), sizes)
    rank_s = _least(ranked) or 0.0
    if own is not None:
        rank_s = max(RUNNING_SHARE * rank_s - job.resize_s, 0.0)

    def preference(kind: str) -> tuple[bool, float, int, str]:
        value = seconds[kind]
        return (kind != own, float("inf") if value is None else value, -demands[kind], kind)

    ordered = {kind: demands[kind] for kind in sorted(demands, key=preference)}
    on_trial = (
        best_s is None
        and job.remaining_examples is not None
        and job.attained_accelerator_s < TRIAL_S * max(demands.values(), default=0)
    )
    return _Claim(job, ordered, seconds, best_s, rank_s, own is not None, on_trial)


def _demands(
    job: Job, capacity: Mapping[str, int], sizes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Return the full demand of a job on each kind that can satisfy it."""
    demands = {
        kind: full_demand(job, kind, total, sizes[kind][0])
        for kind, total in capacity.items()
        if job.accepts(kind)
    }
    return {kind: count for kind, count in demands.items() if count}


def _seconds(
    job: Job, demands: Mapping[str, int], sizes: Mapping[str, tuple[int, ...]]
) -> dict[str, float | None]:
    """Return the predicted remaining time of a job on demands by kind."""
    return {
        kind: left_s(job, kind, count, -(-count // sizes[kind][0]))
        for kind, count in demands.items()
    }


def _least(seconds: Mapping[str, float | None]) -> float | None:
    return min((value for value in seconds.values() if value is not None), default=None)


def _end(claim: _Claim, kind: str) -> Reason:
    """Say when a job would end on a kind."""
    if claim.is_on_trial:
        return reason("srtf_trial", trial=TRIAL_S)
    seconds = claim.seconds[kind]
    if seconds is None:
        return reason("srtf_unknown")
    return reason("srtf_end", end_s=seconds)


def _waiting(
    claim: _Claim, running: list[_Claim], free: Mapping[str, int], capacity: Mapping[str, int]
) -> Reason:
    kind, count = next(iter(claim.demands.items()))
    have = tuple(reason("left", free=free[k], capacity=capacity[k], kind=k) for k in claim.demands)
    is_known = claim.is_on_trial or claim.seconds[kind] is not None
    return reason(
        "srtf_waits",
        count=count,
        kind=kind,
        have=have,
        jobs=len(running),
        once=reason("srtf_once") if is_known else None,
        end=_end(claim, kind),
    )
