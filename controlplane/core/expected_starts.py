"""Forecast of the starts of waiting jobs: the policy itself, played forward as running jobs end.

There are two plays (`play.py`), one with less remaining work and one with more. A job whose work is
known, but not its speed, ends at once in the first and never in the second. Their results bound the
expected start.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from controlplane.core.play import (
    MOST_DECISIONS,
    UNCERTAINTY,
    Holding,
    TimeRange,
    decided,
    holdings_of,
    later,
    work_scaled,
)
from controlplane.core.policies import DEMANDS, POLICIES
from controlplane.core.policies.common.rates import full_demand, largest_nodes
from controlplane.core.policies.common.user_shares import Policy
from controlplane.core.scheduling.cordons import capacity_uncordoned, cordon_split
from controlplane.core.scheduling.maintenance import maintenance_ends, maintenance_over
from controlplane.core.scheduling.plan import obeyed
from controlplane.core.scheduling.pools import (
    arrival_order,
    can_start_ever,
    capacity_by_kind,
    urgency_order,
)
from controlplane.core.scheduling.sweeps import sweeps_split
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.tiers import Tier
from controlplane.core.values.types import Allocation, Job, JobId, Plan, Snapshot

#: Seconds that a play covers in which no job ends, in steps that grow in proportion to the time
#: passed, from `FIRST_S` on. A quarter of its decisions is kept for ends after that.
HORIZON_S, FIRST_S = 86_400.0, 30.0

#: Factor of the time until an end, for a decision before it.
_JUST_BEFORE = 1.0 - 1e-6

#: Orders of policies under which a job waits for all that are ahead, whatever their kinds.
QUEUES = {"fifo": arrival_order, "priority": urgency_order}

#: A range tells nothing whose latest end is later than this, and than so many times the earliest.
WIDE_S, WIDE_RATIO = 600.0, 10.0


@dataclass(frozen=True, slots=True)
class ExpectedStart(TimeRange):
    """Seconds until the expected start of a waiting job; `str` renders the sentence."""

    @property
    def is_wide(self) -> bool:
        """True if the range is too wide to tell anything."""
        return self.latest_s > max(WIDE_RATIO * self.earliest_s, WIDE_S)

    def __str__(self) -> str:
        return str(reason("expected_start", start_s=(self.earliest_s, self.latest_s)))


def expected_starts(
    snapshot: Snapshot, plan: Plan, policy_name: str, most_decisions: int = MOST_DECISIONS
) -> dict[JobId, ExpectedStart]:
    """Return the expected starts of the jobs that get nothing, as far as they can be predicted.

    The cost is that of at most `most_decisions` decisions, 64 or fewer. With fewer, the ends of
    several jobs share a decision, which widens the ranges. With less than two, the policy is not
    played: a job then starts between the time when its minimum would be free if it came first, and
    the time when the minima of all waiting jobs of its tier and higher ones would be; under a
    policy of full demands, these instead of minima. Ranges that are too wide are left out;
    `unknown_starts` says why.

    Args:
        plan: the plan of `decide` for this snapshot and policy.
    """
    assert plan.allocation is not None, "the plan of decide() is needed, with its allocation"
    waiting = _waiting(snapshot, plan.allocation)
    if not waiting:
        return {}
    first = obeyed(snapshot, plan.allocation.accelerators, plan.carried)
    num_each = min(most_decisions, MOST_DECISIONS) // 2
    if num_each == 0:
        # Maintenance ends at a known time, which the bounds do not take into account.
        waiting = waiting.difference(maintenance_ends(snapshot))
        opened = cordon_split(sweeps_split(first)[0]).open
        starts = _bounds(opened, waiting, is_rigid=DEMANDS[policy_name].is_rigid)
        if policy_name in QUEUES:
            # A job that its project's limit holds back keeps nobody waiting.
            rows = (job for job in opened.jobs if not _is_limited(opened, job))
            ahead = [job for job in QUEUES[policy_name](rows) if job.id in starts]
            starts = _in_order(ahead, starts)
        starts = {job_id: one for job_id, one in starts.items() if one.latest_s < math.inf}
    else:
        less, more = (
            _play(work_scaled(first, factor), POLICIES[policy_name], waiting, num_each, unknown_s)
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
    first = obeyed(snapshot, plan.allocation.accelerators, plan.carried)
    ends = holdings_of(first, None)
    is_known = all(one.left_s is not None for one in ends.values()) and all(
        job.performance is not None and job.remaining_examples is not None
        for job in snapshot.jobs
        if job.id not in ends
    )
    return dict.fromkeys(missing, reason("start_too_wide" if is_known else "start_unknown"))


def _waiting(snapshot: Snapshot, allocation: Allocation) -> frozenset[JobId]:
    """Return the jobs without accelerators whose minimum some accepted kind has, or will have.

    Jobs of a paused sweep wait for nobody's end.
    """
    paused = {number for number, sweep in snapshot.sweeps.items() if sweep.is_paused}
    capacity = capacity_uncordoned(maintenance_over(replace(snapshot, now=math.inf)))
    return frozenset(
        job.id
        for job in snapshot.jobs
        if job.id not in allocation.accelerators
        and job.sweep not in paused
        and can_start_ever(snapshot, job, capacity)
    )


def _is_limited(snapshot: Snapshot, job: Job) -> bool:
    """Return whether a limit of its project may hold a job back."""
    quota = None if job.project is None else snapshot.projects.get(job.project)
    kinds = () if quota is None else quota.limit_by_kind
    return snapshot.limit_of(job) is not None or any(map(job.accepts, kinds))


def _not_before(
    times: Mapping[JobId, float], starts: Mapping[JobId, ExpectedStart], now: float
) -> dict[JobId, ExpectedStart]:
    """Return the starts of the jobs in `times`, none earlier than its time."""
    return {
        job_id: ExpectedStart(max(found.earliest_s, at - now), max(found.latest_s, at - now))
        for job_id, at in times.items()
        if (found := starts.get(job_id)) is not None
    }


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
        holdings = holdings_of(snapshot, unknown_s)
        passed_s = snapshot.now - began_at
        ends = [one.left_s for one in holdings.values() if one.left_s is not None]
        ends += [max(one.ends_at - snapshot.now, 0.0) for one in snapshot.maintenance]
        ends.sort()
        limit_s = max(passed_s, FIRST_S) * growth - passed_s
        if num_left <= num_late:
            limit_s = max([limit_s, *ends])
        first_s, last_s = _next_ends(ends, limit_s, num_left)
        before, snapshot = snapshot, decided(policy, later(snapshot, holdings, last_s))
        num_left -= 1
        new = [i for i in snapshot.held if i in waiting and i not in starts]
        if new and first_s > 0.0 and num_left > num_late:
            early_s = first_s * _JUST_BEFORE
            early = decided(policy, later(before, holdings, early_s))
            num_left -= 1
            if any(i in early.held for i in new):
                snapshot, first_s, last_s = early, 0.0, early_s
        found = ExpectedStart(passed_s + first_s, passed_s + last_s)
        starts |= {i: found for i in new if i in snapshot.held}
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


def _bounds(
    snapshot: Snapshot, waiting: Collection[JobId], *, is_rigid: bool
) -> dict[JobId, ExpectedStart]:
    """Bound the starts of waiting jobs by the ends of running ones, without the policy.

    Args:
        is_rigid: whether jobs wait for all the accelerators that they can use: at least those on
            which they are fastest.
    """
    capacity, per_node = capacity_by_kind(snapshot), largest_nodes(snapshot)
    # The end of another project's job does not help a job that its own project's limit holds back.
    jobs = [job for job in snapshot.jobs if job.id in waiting and not _is_limited(snapshot, job)]
    starts = dict.fromkeys(waiting, ExpectedStart(math.inf, math.inf))
    plays = holdings_of(snapshot, 0.0), holdings_of(snapshot, None)
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
            least = {job.id: job.min_accelerators for job in members}
            most = least
            if is_rigid:
                least = {job.id: full_demand(job, kind, total, per_node[kind]) for job in members}
                most = {job.id: min(job.max_accelerators, total) for job in members}
            last = _wait_s(free_last, sum(most.values()))
            for job in members:
                if job.tier is not tier:
                    continue
                first = _wait_s(free_first, least[job.id])
                before = starts[job.id]
                starts[job.id] = ExpectedStart(
                    min(first / UNCERTAINTY, before.earliest_s),
                    min(last * UNCERTAINTY, before.latest_s),
                )
    # The policy keeps a job waiting for more than accelerators that are free now.
    return {job_id: one for job_id, one in starts.items() if one.latest_s > 0.0}


def _in_order(
    queue: Iterable[Job], starts: Mapping[JobId, ExpectedStart]
) -> dict[JobId, ExpectedStart]:
    """Return the starts of the jobs of a queue, no latest one before that of a job ahead."""
    found: dict[JobId, ExpectedStart] = {}
    last: dict[Tier, float] = {}
    for job in queue:
        last[job.tier] = max(last.get(job.tier, 0.0), starts[job.id].latest_s)
        found[job.id] = replace(starts[job.id], latest_s=last[job.tier])
    return found


def _free(holdings: Collection[Holding], kind: str, total: int) -> tuple[list[float], list[int]]:
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
