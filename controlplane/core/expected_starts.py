"""Forecast of the starts of waiting jobs: the policy itself, played forward as running jobs end.

A play takes the decisions that the policy would take on the snapshots to come. Jobs progress at
their predicted speeds and end, no job arrives, changes take effect at once, nothing is lent, nodes
in maintenance are back at its end, and the forecast of a job's loss stays as it is. Remaining work
is an estimate, so there are two plays: one with less and one with more of it. A job whose work is
known, but not its speed, ends at once in the first play and never in the second. Their results
bound the expected start.
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
from controlplane.core.scheduling.maintenance import maintenance_ends, maintenance_over
from controlplane.core.scheduling.placement import place
from controlplane.core.scheduling.pools import can_start, capacity_by_kind
from controlplane.core.scheduling.sweeps import sweeps_split
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import AcceleratorId, Allocation, Job, JobId, Plan, Snapshot

#: Largest number of decisions of a forecast.
MOST_DECISIONS = 64

#: Factor by which work may take longer or shorter: twice the mean error of throughput models.
UNCERTAINTY = 1.2

#: Seconds that a play covers in which no job ends, in steps that grow in proportion to the time
#: passed, from `FIRST_S` on. A quarter of its decisions is kept for ends after that.
HORIZON_S, FIRST_S = 86_400.0, 30.0

#: Factor of the time until an end, for a decision before it.
_JUST_BEFORE = 1.0 - 1e-6

#: A range tells nothing whose latest end is later than this, and than so many times the earliest.
WIDE_S, WIDE_RATIO = 600.0, 10.0

#: A told range may stay while no bound has moved further beyond it than this share of the time
#: left, or than so many seconds.
_MOVE_SHARE, _MOVE_S = 0.1, 15.0


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """Seconds until the expected start of a waiting job; `str` renders the sentence."""

    earliest_s: float
    latest_s: float

    @property
    def is_wide(self) -> bool:
        """True if the range is too wide to tell anything."""
        return self.latest_s > max(WIDE_RATIO * self.earliest_s, WIDE_S)

    def after(self, passed_s: float) -> ExpectedStart:
        """Return the same range as seen later; it may have begun already."""
        return ExpectedStart(self.earliest_s - passed_s, self.latest_s - passed_s)

    def confirms(self, told: ExpectedStart) -> bool:
        """Return whether a range told before may stay: this one is in it, and half as wide or more.

        A bound may be a little outside, and the width may shrink by a few seconds in any case.
        """
        width_s, told_width_s = (one.latest_s - one.earliest_s for one in (self, told))
        early_s, late_s = (
            max(_MOVE_S, _MOVE_SHARE * bound_s) for bound_s in (self.earliest_s, self.latest_s)
        )
        return (
            self.earliest_s >= told.earliest_s - early_s
            and self.latest_s <= told.latest_s + late_s
            and width_s >= min(told_width_s / 2.0, told_width_s - 2.0 * _MOVE_S)
        )

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
    the time when the minima of all waiting jobs of its tier and higher ones would be. Ranges that
    are too wide are left out; `unknown_starts` says why.

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
        # Maintenance ends at a known time, which the bounds do not take into account.
        waiting = waiting.difference(maintenance_ends(snapshot))
        starts = _bounds(cordon_split(sweeps_split(first)[0]).open, waiting)
    else:
        less, more = (
            _play(_scaled(first, factor), POLICIES[policy_name], waiting, num_each, unknown_s)
            for factor, unknown_s in ((1.0 / UNCERTAINTY, 0.0), (UNCERTAINTY, None))
        )
        starts = {
            job_id: ExpectedStart(
                min(less[job_id].earliest_s, more[job_id].earliest_s),
                max(less[job_id].latest_s, more[job_id].latest_s),
            )
            for job_id in less.keys() & more.keys()
        }
        starts |= _not_before(maintenance_ends(snapshot), starts, snapshot.now)
    return {job_id: starts[job_id] for job_id in sorted(starts) if not starts[job_id].is_wide}


def unknown_starts(
    snapshot: Snapshot, plan: Plan, starts: Collection[JobId]
) -> dict[JobId, Reason]:
    """Return the reason for each job that waits and could start, but is not among `starts`.

    Args:
        starts: jobs of `expected_starts` for the same snapshot and plan.
    """
    assert plan.allocation is not None, "the plan of decide() is needed, with its allocation"
    missing = _waiting(snapshot, plan.allocation).difference(starts)
    if not missing:
        return {}
    first = _obeyed(snapshot, plan.allocation.accelerators, plan.carried)
    ends = _holdings(first, None)
    is_known = all(one.left_s is not None for one in ends.values()) and all(
        job.performance is not None and job.remaining_examples is not None
        for job in snapshot.jobs
        if job.id not in ends
    )
    return dict.fromkeys(missing, reason("start_too_wide" if is_known else "start_unknown"))


def _waiting(snapshot: Snapshot, allocation: Allocation) -> frozenset[JobId]:
    """Return the jobs without accelerators whose minimum some accepted kind has, or will have."""
    capacity = capacity_uncordoned(snapshot)
    ends = maintenance_ends(snapshot)
    return frozenset(
        job.id
        for job in snapshot.jobs
        if job.id not in allocation.accelerators
        and (can_start(job, capacity) or job.id in ends)
        and ((limit := snapshot.limit_of(job)) is None or job.min_accelerators <= limit)
    )


def _not_before(
    times: Mapping[JobId, float], starts: Mapping[JobId, ExpectedStart], now: float
) -> dict[JobId, ExpectedStart]:
    """Return the starts of the jobs in `times`, none earlier than its time."""
    return {
        job_id: ExpectedStart(max(found.earliest_s, at - now), max(found.latest_s, at - now))
        for job_id, at in times.items()
        if (found := starts.get(job_id)) is not None
    }


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
    snapshot: Snapshot,
    policy: Policy,
    waiting: Collection[JobId],
    num_decisions: int,
    unknown_s: float | None,
) -> dict[JobId, ExpectedStart]:
    """Play a policy forward from a snapshot, until all `waiting` jobs have started.

    A job starts at a decision, or at any time since the first event that the decision covers: the
    first end of a job after the decision before it, or else that decision. If it starts without
    that end as well (a turn, or a job that gave way to others), it does so before it, and the play
    goes on from there.

    Args:
        unknown_s: seconds that a job of known work and unknown speed takes; None: it never ends.
    """
    began_at = snapshot.now
    num_late = max(num_decisions // 4, 1)
    growth = (HORIZON_S / FIRST_S) ** (1.0 / max(num_decisions - num_late, 1))
    starts: dict[JobId, ExpectedStart] = {}
    num_left = num_decisions
    while num_left > 0 and len(starts) < len(waiting):
        holdings = _holdings(snapshot, unknown_s)
        passed_s = snapshot.now - began_at
        ends = [one.left_s for one in holdings.values() if one.left_s is not None]
        ends += [max(one.ends_at - snapshot.now, 0.0) for one in snapshot.maintenance]
        ends.sort()
        limit_s = max(passed_s, FIRST_S) * growth - passed_s
        if num_left <= num_late:
            limit_s = max([limit_s, *ends])
        first_s, last_s = _next_ends(ends, limit_s, num_left)
        before, snapshot = snapshot, _decided(policy, _later(snapshot, holdings, last_s))
        num_left -= 1
        new = [i for i in snapshot.held if i in waiting and i not in starts]
        if new and first_s > 0.0 and num_left > num_late:
            early_s = first_s * _JUST_BEFORE
            early = _decided(policy, _later(before, holdings, early_s))
            num_left -= 1
            if any(i in early.held for i in new):
                snapshot, first_s, last_s = early, 0.0, early_s
        found = ExpectedStart(passed_s + first_s, passed_s + last_s)
        starts |= {i: found for i in new if i in snapshot.held}
    return starts


def _decided(policy: Policy, snapshot: Snapshot) -> Snapshot:
    """Let a policy decide, and apply its decision."""
    split = cordon_split(sweeps_split(snapshot)[0])
    decision = policy(split.open)
    given = {**place(split.open, decision).accelerators, **split.staying}
    return _obeyed(snapshot, given, decision.carried)


def _next_ends(ends: Sequence[float], limit_s: float, num_decisions: int) -> tuple[float, float]:
    """Return the seconds until the first and the last end that the next decision covers.

    With `num_decisions` left it covers at least as large a part of the known ends, up to `limit_s`.
    Where no job ends until then, the decision is at the limit.
    """
    num_within = bisect_right(ends, limit_s)
    if num_within == 0:
        return 0.0, limit_s
    return ends[0], ends[min(-(-len(ends) // num_decisions), num_within) - 1]


def _holdings(snapshot: Snapshot, unknown_s: float | None) -> dict[JobId, _Holding]:
    """Return what each job holds; the first accelerator is of its own kind.

    Args:
        unknown_s: seconds until the end of a job of known work and unknown speed; None: unknown.
    """
    by_id = {one.id: one for one in snapshot.accelerators}
    found: dict[JobId, _Holding] = {}
    for job in snapshot.jobs:
        row = [by_id[one] for one in snapshot.held.get(job.id, ())]
        if row:
            kind = row[0].kind
            nodes = [one.node_id for one in row if one.kind == kind]
            seconds = left_s(job, kind, len(nodes), len(set(nodes)))
            if seconds is None and job.remaining_examples is not None:
                seconds = unknown_s
            found[job.id] = _Holding(kind, len(nodes), seconds)
    return found


def _later(snapshot: Snapshot, holdings: Mapping[JobId, _Holding], after_s: float) -> Snapshot:
    """Let time pass: jobs end that have no work left, others progress, maintenance ends."""
    jobs = []
    for job in snapshot.jobs:
        holding = holdings.get(job.id)
        if holding is None:
            jobs.append(job)
        elif holding.left_s is None or holding.left_s > after_s * (1.0 + 1e-9):
            jobs.append(_progressed(job, holding, after_s))
    return maintenance_over(replace(snapshot, now=snapshot.now + after_s, jobs=tuple(jobs)))


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
    # The end of another project's job does not help a job that its own project's limit holds back.
    jobs = [job for job in snapshot.jobs if job.id in waiting and snapshot.limit_of(job) is None]
    starts = dict.fromkeys(waiting, ExpectedStart(math.inf, math.inf))
    plays = _holdings(snapshot, 0.0), _holdings(snapshot, None)
    ranks = {job.id: job.tier.rank for job in snapshot.jobs}
    for tier in {job.tier for job in jobs}:
        # Lower tiers give way, and higher ones come first.
        ahead = [job for job in jobs if job.tier.rank <= tier.rank]
        less, more = (
            [one for job_id, one in holdings.items() if ranks[job_id] <= tier.rank]
            for holdings in plays
        )
        for kind, total in capacity.items():
            members = [job for job in ahead if job.accepts(kind) and job.min_accelerators <= total]
            free_first, free_last = (_free(one, kind, total) for one in (less, more))
            last = _wait_s(free_last, sum(job.min_accelerators for job in members))
            for job in members:
                if job.tier is not tier:
                    continue
                first = _wait_s(free_first, job.min_accelerators)
                before = starts[job.id]
                starts[job.id] = ExpectedStart(
                    min(first / UNCERTAINTY, before.earliest_s),
                    min(last * UNCERTAINTY, before.latest_s),
                )
    return {job_id: one for job_id, one in starts.items() if one.latest_s < math.inf}


def _free(holdings: Collection[_Holding], kind: str, total: int) -> tuple[list[float], list[int]]:
    """Return the seconds until running jobs end, and the accelerators of a kind free from then."""
    held = [one for one in holdings if one.kind == kind]
    rows = sorted((one.left_s, one.count) for one in held if one.left_s is not None)
    free = total - sum(one.count for one in held)
    counts = accumulate((count for _, count in rows), initial=free)
    return [0.0, *(seconds for seconds, _ in rows), math.inf], list(counts)


def _wait_s(free: tuple[Sequence[float], Sequence[int]], wanted: int) -> float:
    """Return the seconds until `wanted` accelerators are free, by `_free`."""
    times, counts = free
    return times[bisect_left(counts, wanted)]
