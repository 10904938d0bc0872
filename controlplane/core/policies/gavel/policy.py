"""Gavel: equal shares of the time on accelerators of several kinds (OSDI 2020).

A linear program yields each job's share of the time on each kind. Rounds of six minutes realise
it: the accelerators of a round go to the jobs that are furthest behind, that is, with the highest
(computed share) / (received share). Jobs have their full demand or nothing.

Difference from the paper: accelerators that become free within a round go at once to waiting jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.core.policies.common.kinds import cannot_start
from controlplane.core.policies.common.rates import (
    full_demand,
    largest_nodes,
    packed_rates,
    without_still_models,
)
from controlplane.core.policies.gavel.program import Floats, time_fractions
from controlplane.core.scheduling.pools import arrival_order, capacity_by_kind
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import Decision, Job, JobId, Share, Snapshot

ROUND_S = 360.0

#: Initial seconds received by every job on every kind, so that no priority is infinite.
_HEAD_START_S = 1.0


@dataclass(frozen=True, slots=True)
class GavelState:
    """State carried between decisions.

    Attributes:
        round_began_at: start of the present round.
        seen_at: time up to which `received_s` counts.
        received_s: job -> kind -> seconds that the job ran there.
        given: job -> share, since `seen_at`.
    """

    round_began_at: float
    seen_at: float
    received_s: Mapping[JobId, Mapping[str, float]]
    given: Mapping[JobId, Share]

    def joined(self, other: GavelState, jobs: Collection[JobId]) -> GavelState:
        """Return the state with the seconds and shares that another one has of `jobs`."""
        known = {one: other.received_s[one] for one in jobs if one in other.received_s}
        given = {one: other.given[one] for one in jobs if one in other.given}
        return replace(self, received_s={**known, **self.received_s}, given={**given, **self.given})


@dataclass(frozen=True, slots=True)
class _Wish:
    job: Job
    kind: str
    count: int
    fraction: float
    received: float

    @property
    def priority(self) -> float:
        return self.fraction / self.received


def gavel(snapshot: Snapshot) -> Decision:
    """Give each round to the jobs that are furthest behind their share of the time."""
    snapshot = without_still_models(snapshot)
    capacity = capacity_by_kind(snapshot)
    jobs = arrival_order(snapshot.jobs)
    demands, throughputs = _demands(snapshot, jobs, list(capacity))
    able = [i for i in range(len(jobs)) if throughputs[i].any()]
    reasons = {
        jobs[i].id: cannot_start(snapshot, jobs[i]) for i in range(len(jobs)) if i not in set(able)
    }
    if not able:
        return Decision({}, reasons)
    jobs = [jobs[i] for i in able]
    demands, throughputs = demands[able], throughputs[able]
    fractions = time_fractions(
        throughputs,
        demands,
        np.array([job.share_weight for job in jobs], dtype=float),
        np.array(list(capacity.values()), dtype=float),
    )
    carried = snapshot.carried if isinstance(snapshot.carried, GavelState) else None
    received_s = _received(snapshot, jobs, capacity, carried)
    wishes = [
        _Wish(
            job,
            kind,
            int(demands[row, column]),
            float(fractions[row, column]),
            _received_fraction(job, kind, received_s, snapshot.now),
        )
        for row, job in enumerate(jobs)
        for column, kind in enumerate(capacity)
        if throughputs[row, column] > 0.0
    ]
    kept: dict[JobId, Share] = {}
    began_at = snapshot.now
    if carried is not None and snapshot.now - carried.round_began_at < ROUND_S:
        began_at = carried.round_began_at
        kept = _kept(wishes, carried.given, capacity)
    shares = _round(wishes, capacity, kept)
    rest = GavelState(began_at, snapshot.now, received_s, shares)
    left_s = began_at + ROUND_S - snapshot.now
    reasons |= _explain(jobs, wishes, shares, capacity, left_s)
    return Decision(shares, reasons, carried=rest)


def _demands(
    snapshot: Snapshot, jobs: Sequence[Job], kinds: Sequence[str]
) -> tuple[Floats, Floats]:
    """Return the full demand of each job on each kind and its throughput with it."""
    demands = np.zeros((len(jobs), len(kinds)))
    throughputs = np.zeros((len(jobs), len(kinds)))
    capacity, sizes = capacity_by_kind(snapshot), largest_nodes(snapshot)
    for column, kind in enumerate(kinds):
        total, per_node = capacity[kind], sizes[kind]
        for row, job in enumerate(jobs):
            count = full_demand(job, kind, total, per_node) if job.accepts(kind) else 0
            if count:
                demands[row, column] = count
                throughputs[row, column] = packed_rates(job, kind, count, per_node)[count]
    return demands, throughputs


def _received(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    kinds: Iterable[str],
    carried: GavelState | None,
) -> dict[JobId, dict[str, float]]:
    """Return the seconds that each job has had on each kind so far.

    Without a carried state, the attained accelerator time counts on every kind.
    """
    if carried is None:
        return {
            job.id: dict.fromkeys(kinds, job.attained_accelerator_s / job.max_accelerators)
            for job in jobs
        }
    received = {job.id: dict(carried.received_s.get(job.id, {})) for job in jobs}
    passed_s = max(snapshot.now - carried.seen_at, 0.0)
    for job_id, share in carried.given.items():
        if job_id in received and snapshot.held.get(job_id):
            by_kind = received[job_id]
            by_kind[share.kind] = by_kind.get(share.kind, 0.0) + passed_s
    return received


def _received_fraction(
    job: Job, kind: str, received_s: Mapping[JobId, Mapping[str, float]], now: float
) -> float:
    age_s = max(now - job.submitted_at, 0.0) + _HEAD_START_S
    return (received_s[job.id].get(kind, 0.0) + _HEAD_START_S) / age_s


def _kept(
    wishes: Sequence[_Wish], given: Mapping[JobId, Share], capacity: Mapping[str, int]
) -> dict[JobId, Share]:
    """Return the shares that jobs hold until the end of the round, as far as still possible."""
    free = dict(capacity)
    kept: dict[JobId, Share] = {}
    for job, kind in ((wish.job, wish.kind) for wish in wishes):
        share = given.get(job.id)
        if (
            share is not None
            and share.kind == kind
            and job.min_accelerators <= share.count <= job.max_accelerators
            and share.count <= free[kind]
        ):
            kept[job.id] = share
            free[kind] -= share.count
    return kept


def _round(
    wishes: Sequence[_Wish], capacity: Mapping[str, int], kept: Mapping[JobId, Share]
) -> dict[JobId, Share]:
    shares = dict(kept)
    free = dict(capacity)
    for share in shares.values():
        free[share.kind] -= share.count
    order = sorted(
        wishes,
        key=lambda w: (-w.priority, -w.fraction, w.job.submitted_at, w.job.id, w.kind),
    )
    for wish in order:
        if wish.job.id not in shares and wish.count <= free[wish.kind]:
            shares[wish.job.id] = Share(wish.kind, wish.count)
            free[wish.kind] -= wish.count
    return shares


def _explain(
    jobs: Sequence[Job],
    wishes: Sequence[_Wish],
    shares: Mapping[JobId, Share],
    capacity: Mapping[str, int],
    left_s: float,
) -> dict[JobId, Reason]:
    used = dict.fromkeys(capacity, 0)
    for share in shares.values():
        used[share.kind] += share.count
    by_job: dict[JobId, list[_Wish]] = {}
    for wish in wishes:
        by_job.setdefault(wish.job.id, []).append(wish)
    reasons: dict[JobId, Reason] = {}
    for job in jobs:
        own = max(by_job[job.id], key=lambda wish: (wish.priority, wish.kind))
        plans = tuple(
            reason("gavel_plan", fraction=wish.fraction, count=wish.count, kind=wish.kind)
            for wish in by_job[job.id]
            if wish.fraction > 0.0 or wish is own
        )
        if job.id in shares:
            share = shares[job.id]
            had = next(wish for wish in by_job[job.id] if wish.kind == share.kind)
            reasons[job.id] = reason(
                "gavel_holds",
                count=share.count,
                capacity=capacity[share.kind],
                kind=share.kind,
                left=left_s,
                plans=plans,
                received=had.received,
            )
        else:
            reasons[job.id] = reason(
                "gavel_waits",
                count=own.count,
                kind=own.kind,
                used=used[own.kind],
                capacity=capacity[own.kind],
                plans=plans,
                received=own.received,
                left=left_s,
            )
    return reasons
