"""Forecast of the ends of running jobs that are resized before: the policy played forward.

The policy decides whenever running jobs end, so that it is known what their accelerators will be
used for. There are two plays (`play.py`), one with less remaining work and one with more.
"""

from __future__ import annotations

import math

from controlplane.core.play import (
    MOST_DECISIONS,
    UNCERTAINTY,
    TimeRange,
    decided,
    holdings_of,
    later,
    work_scaled,
)
from controlplane.core.policies import POLICIES
from controlplane.core.policies.common.user_shares import Policy
from controlplane.core.scheduling.plan import obeyed
from controlplane.core.values.types import JobId, Plan, Snapshot

#: Ends later than this are not told: 10 years.
LATEST_S = 10 * 365 * 86_400.0

#: Of so many decisions that a forecast of starts may take, one may be taken for ends.
_STARTS_PER_END = 4

#: Relative difference of two ends that is not one.
_ROUNDING = 1e-6


def resized_ends(
    snapshot: Snapshot, plan: Plan, policy_name: str, most_decisions: int = MOST_DECISIONS
) -> dict[JobId, TimeRange]:
    """Return the expected ends of running jobs that will get other accelerators before.

    Jobs that keep those of the plan are left out, and so are those whose speed or work is unknown.
    The cost is that of at most a quarter of `most_decisions` decisions, 16 or fewer; several ends
    share a decision where these do not suffice, and after the last one nothing changes any more.

    Args:
        plan: the plan of `decide` for this snapshot and policy.
    """
    assert plan.allocation is not None, "the plan of decide() is needed, with its allocation"
    first = obeyed(snapshot, plan.allocation.accelerators, plan.carried)
    num_each = min(most_decisions, MOST_DECISIONS) // _STARTS_PER_END // 2
    kept = _ends(first)
    less, more = (
        _play(work_scaled(first, factor), POLICIES[policy_name], num_each)
        for factor in (1.0 / UNCERTAINTY, UNCERTAINTY)
    )
    ranges = {
        job_id: TimeRange(min(ends), max(ends))
        for job_id in sorted(kept.keys() & less.keys() & more.keys())
        if (ends := (less[job_id], more[job_id]))
        and not _is_same(ends, (kept[job_id] / UNCERTAINTY, kept[job_id] * UNCERTAINTY))
    }
    return {job_id: one for job_id, one in ranges.items() if one.latest_s <= LATEST_S}


def _is_same(ends: tuple[float, float], others: tuple[float, float]) -> bool:
    pairs = zip(ends, others, strict=True)
    return all(math.isclose(one, other, rel_tol=_ROUNDING) for one, other in pairs)


def _play(snapshot: Snapshot, policy: Policy, num_decisions: int) -> dict[JobId, float]:
    """Return the seconds until jobs end, as far as they end with the accelerators that they get.

    Each decision covers the same part of the ends to come but the very last one, which changes
    nothing for others, and is taken at the last that it covers.
    """
    began_at = snapshot.now
    found: dict[JobId, float] = {}
    for num_left in range(num_decisions, 0, -1):
        ends = sorted(_ends(snapshot).values())
        if len(ends) < 2:
            break
        last_s = ends[-(-(len(ends) - 1) // num_left) - 1]
        passed_s = snapshot.now - began_at
        moved = later(snapshot, holdings_of(snapshot, None), last_s)
        left = {job.id for job in moved.jobs}
        found |= {i: passed_s + s for i, s in _ends(snapshot).items() if i not in left}
        snapshot = decided(policy, moved)
    passed_s = snapshot.now - began_at
    return found | {i: passed_s + seconds for i, seconds in _ends(snapshot).items()}


def _ends(snapshot: Snapshot) -> dict[JobId, float]:
    """Return the seconds until jobs end with the accelerators that they hold, where known."""
    holdings = holdings_of(snapshot, None)
    return {i: one.left_s for i, one in holdings.items() if one.left_s is not None}
