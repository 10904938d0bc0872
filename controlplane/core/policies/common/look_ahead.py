"""Decisions made once more, for the time when jobs have left what others are to get."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps

from controlplane.core.policies.common.parts import Policy
from controlplane.core.scheduling.placement import place
from controlplane.core.scheduling.plan import obeyed, plan_between
from controlplane.core.values.explanations import Reason
from controlplane.core.values.types import Allocation, Decision, Snapshot


def seen_ahead(policy: Policy) -> Policy:
    """Return a policy that decides once more, for the time when jobs have left what others get.

    The accelerators of a group that is apart depend on what jobs hold. Without this, the next
    decision could give back what one has taken, and the one after it take that again, without end.
    """

    @wraps(policy)
    def ahead(snapshot: Snapshot) -> Decision:
        decision = policy(snapshot)
        if not _is_any_apart(decision):
            return decision
        placed = place(snapshot, decision).accelerators
        plan = plan_between(snapshot, Allocation(placed))
        if not (plan.waiting and plan.resizes):
            return decision
        held = {**snapshot.held, **{one.job_id: one.wanted for one in plan.resizes}}
        given = {job_id: row for job_id, row in held.items() if row}
        then = policy(obeyed(snapshot, given, decision.carried))
        if then.shares == decision.shares:
            return decision
        stopped = {
            job_id: why
            for job_id, why in decision.reasons.items()
            if job_id in snapshot.held and job_id not in {**decision.shares, **then.shares}
        }
        return replace(then, reasons={**then.reasons, **stopped})

    return ahead


def _is_any_apart(decision: Decision) -> bool:
    """Return whether quotas set a group apart in a decision, as the reasons of its jobs say."""
    whys = decision.reasons.values()
    return any(isinstance(why, Reason) and why.code == "quota_own" for why in whys)
