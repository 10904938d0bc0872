"""Forecast of the starts of waiting jobs: the policy itself, played forward as running jobs end.

A play takes the decisions that the policy would take on the snapshots to come. Jobs progress at
their predicted speeds and end, no job arrives, changes take effect at once, nothing is lent, and
the forecast of a job's loss stays as it is. Remaining work is an estimate, so there are two plays:
one with less and one with more of it. Their results bound the expected start.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from controlplane.core.policies import POLICIES
from controlplane.core.policies.common.rates import left_s
from controlplane.core.policies.common.user_shares import Policy
from controlplane.core.scheduling.cordons import capacity_uncordoned, cordon_split
from controlplane.core.scheduling.placement import place
from controlplane.core.scheduling.pools import can_start, capacity_by_kind
from controlplane.core.values.explanations import reason
from controlplane.core.values.types import AcceleratorId, Allocation, Job, JobId, Plan, Snapshot

#: Largest number of decisions of a forecast.
MOST_DECISIONS = 64

#: Factor by which work may take longer or shorter: twice the mean error of throughput models.
UNCERTAINTY = 1.2

#: Seconds that a play covers in which no job ends, in steps that grow in proportion to the time
#: passed, from `FIRST_S` on. A quarter of its decisions is kept for ends after that.
HORIZON_S, FIRST_S = 86_400.0, 30.0

#: A range tells nothing whose latest end is later than this, and than so many times the earliest.
WIDE_S, WIDE_RATIO = 600.0, 10.0


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """Seconds until the expected start of a waiting job; `str` renders the sentence."""

    earliest_s: float
    latest_s: float

    @property
    def is_wide(self) -> bool:
        """True if the range is too wide to tell anything."""
        return self.latest_s > max(WIDE_RATIO * self.earliest_s, WIDE_S)

    def __str__(self) -> str:
        return str(reason("expected_start", start_s=(self.earliest_s, self.latest_s)))


@dataclass(frozen=True, slots=True)
class _Holding:
    """Accelerators of a job, of its own kind, and the seconds until it ends with them."""

    kind: str
    count: int
    left_s: float | None


def expected_starts(
    snapshot: Snapshot, plan: Plan, policy_name: str, most_decisions: int = MOST_DECISIONS
) -> dict[JobId, ExpectedStart]:
    """Return the expected starts of the jobs that get nothing, as far as they can be predicted.

    The cost is that of at most `most_decisions` decisions, 64 or fewer. With fewer, the ends of
    several jobs share a decision, which widens the ranges. With less than two, the policy is not
    played: a job then starts between the time when its minimum would be free if it came first, and
    the time when the minima of all waiting jobs would be. Ranges that are too wide are left out.

    Args:
        plan: the plan of `decide` for this snapshot and policy.

    Raises:
        ValueError: the plan has no allocation.
    """
    if plan.allocation is None:
        raise ValueError("the plan of decide() is needed, with its allocation")
    waiting = _waiting(snapshot, plan.allocation)
    if not waiting:
        return {}
    first = _obeyed(snapshot, plan.allocation.accelerators, plan.carried)
    num_each = min(most_decisions, MOST_DECISIONS) // 2
    if num_each == 0:
        starts = _bounds(cordon_split(first).open, waiting)
    else:
        less, more = (
            _play(_scaled(first, factor), POLICIES[policy_name], waiting, num_each)
            for factor in (1.0 / UNCERTAINTY, UNCERTAINTY)
        )
        starts = {
            job_id: ExpectedStart(
                min(less[job_id].earliest_s, more[job_id].earliest_s),
                max(less[job_id].latest_s, more[job_id].latest_s),
            )
            for job_id in less.keys() & more.keys()
        }
    return {job_id: starts[job_id] for job_id in sorted(starts) if not starts[job_id].is_wide}


def _waiting(snapshot: Snapshot, allocation: Allocation) -> frozenset[JobId]:
    """Return the jobs without accelerators whose minimum some accepted kind has."""
    capacity = capacity_uncordoned(snapshot)
    return frozenset(
        job.id
        for job in snapshot.jobs
        if job.id not in allocation.accelerators and can_start(job, capacity)
    )


def _scaled(snapshot: Snapshot, factor: float) -> Snapshot:
    """Multiply the remaining work of all jobs."""
    jobs = (
        job
        if job.remaining_examples is None
        else replace(job, remaining_examples=job.remaining_examples * factor)
        for job in snapshot.jobs
    )
    return replace(snapshot, jobs=tuple(jobs))


def _play(
    snapshot: Snapshot, policy: Policy, waiting: Collection[JobId], num_decisions: int
) -> dict[JobId, ExpectedStart]:
    """Play a policy forward from a snapshot, until all `waiting` jobs have started.

    A job starts at a decision, or at any time since the first event that the decision covers: the
    first end of a job after the decision before it, or else that decision.
    """
    began_at = snapshot.now
    num_late = max(num_decisions // 4, 1)
    growth = (HORIZON_S / FIRST_S) ** (1.0 / max(num_decisions - num_late, 1))
    starts: dict[JobId, ExpectedStart] = {}
    for num_left in range(num_decisions, 0, -1):
        holdings = _holdings(snapshot)
        passed_s = snapshot.now - began_at
        ends = sorted(one.left_s for one in holdings.values() if one.left_s is not None)
        limit_s = max(passed_s, FIRST_S) * growth - passed_s
        if num_left <= num_late:
            limit_s = max([limit_s, *ends])
        first_s, last_s = _next_ends(ends, limit_s, num_left)
        snapshot = _later(snapshot, holdings, last_s)
        split = cordon_split(snapshot)
        decision = policy(split.open)
        given = {**place(split.open, decision).accelerators, **split.staying}
        snapshot = _obeyed(snapshot, given, decision.carried)
        found = ExpectedStart(passed_s + first_s, passed_s + last_s)
        for job_id in given:
            if job_id in waiting:
                starts.setdefault(job_id, found)
        if len(starts) == len(waiting):
            break
    return starts


def _next_ends(ends: Sequence[float], limit_s: float, num_decisions: int) -> tuple[float, float]:
    """Return the seconds until the first and the last end that the next decision covers.

    With `num_decisions` left it covers at least as large a part of the known ends, up to `limit_s`.
    Where no job ends until then, the decision is at the limit.
    """
    num_within = bisect_right(ends, limit_s)
    if num_within == 0:
        return 0.0, limit_s
    return ends[0], ends[min(-(-len(ends) // num_decisions), num_within) - 1]


def _holdings(snapshot: Snapshot) -> dict[JobId, _Holding]:
    """Return what each job holds; the first accelerator is of its own kind."""
    by_id = {one.id: one for one in snapshot.accelerators}
    found: dict[JobId, _Holding] = {}
    for job in snapshot.jobs:
        row = [by_id[one] for one in snapshot.held.get(job.id, ())]
        if row:
            kind = row[0].kind
            nodes = [one.node_id for one in row if one.kind == kind]
            seconds = left_s(job, kind, len(nodes), len(set(nodes)))
            found[job.id] = _Holding(kind, len(nodes), seconds)
    return found


def _later(snapshot: Snapshot, holdings: Mapping[JobId, _Holding], after_s: float) -> Snapshot:
    """Let time pass: jobs end that have no work left, and the others progress."""
    jobs = []
    for job in snapshot.jobs:
        holding = holdings.get(job.id)
        if holding is None:
            jobs.append(job)
        elif holding.left_s is None or holding.left_s > after_s * (1.0 + 1e-9):
            jobs.append(_progressed(job, holding, after_s))
    return replace(snapshot, now=snapshot.now + after_s, jobs=tuple(jobs))


def _progressed(job: Job, holding: _Holding, after_s: float) -> Job:
    attained = job.attained_accelerator_s + holding.count * after_s
    if holding.left_s is None or job.remaining_examples is None:
        return replace(job, attained_accelerator_s=attained)
    done = job.remaining_examples * after_s / holding.left_s
    return replace(
        job,
        attained_accelerator_s=attained,
        remaining_examples=job.remaining_examples - done,
        done_examples=job.done_examples + done,
    )


def _obeyed(
    snapshot: Snapshot, given: Mapping[JobId, tuple[AcceleratorId, ...]], carried: object | None
) -> Snapshot:
    """Give every job its accelerators at once."""
    jobs = (
        _changed(job, snapshot.held.get(job.id, ()), given.get(job.id, ()), snapshot.now)
        for job in snapshot.jobs
    )
    return replace(
        snapshot,
        jobs=tuple(jobs),
        held=given,
        kept={},
        releasing=frozenset(),
        resizing=frozenset(),
        carried=carried,
    )


def _changed(
    job: Job, held: tuple[AcceleratorId, ...], given: tuple[AcceleratorId, ...], now: float
) -> Job:
    if set(held) == set(given):
        return job
    return replace(
        job,
        num_resizes=job.num_resizes + bool(held),
        changed_at=now,
        running_since=(job.running_since if held else now) if given else None,
        pending_since=None if given else now,
        most_accelerators=max(job.most_accelerators, len(given)),
    )


def _bounds(snapshot: Snapshot, waiting: Collection[JobId]) -> dict[JobId, ExpectedStart]:
    """Bound the starts of waiting jobs by the ends of running ones, without the policy."""
    capacity = capacity_by_kind(snapshot)
    jobs = [job for job in snapshot.jobs if job.id in waiting]
    releases: dict[str, list[tuple[float, int]]] = {kind: [] for kind in capacity}
    free = dict(capacity)
    for holding in _holdings(snapshot).values():
        free[holding.kind] -= holding.count
        if holding.left_s is not None:
            releases[holding.kind].append((holding.left_s, holding.count))
    starts = dict.fromkeys(waiting, ExpectedStart(math.inf, math.inf))
    for kind, rows in releases.items():
        members = [
            job for job in jobs if job.accepts(kind) and job.min_accelerators <= capacity[kind]
        ]
        times = [0.0, *(seconds for seconds, _ in sorted(rows)), math.inf]
        totals = list(accumulate((count for _, count in sorted(rows)), initial=free[kind]))
        last = times[bisect_left(totals, sum(job.min_accelerators for job in members))]
        for job in members:
            first = times[bisect_left(totals, job.min_accelerators)]
            before = starts[job.id]
            starts[job.id] = ExpectedStart(
                min(first / UNCERTAINTY, before.earliest_s),
                min(last * UNCERTAINTY, before.latest_s),
            )
    return {job_id: one for job_id, one in starts.items() if one.latest_s < math.inf}
