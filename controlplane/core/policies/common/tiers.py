"""Tiers: the frame of every policy that makes it strict between tiers.

A policy decides for the highest tier as if there were no other jobs. What it gives is placed, and
the policy decides for the next tier with the accelerators left over, and so on. Accelerators of
lower tiers are therefore free to a higher one at any decision, and a job of a higher tier that
cannot use an accelerator leaves it to them.

With jobs of one tier the policy sees its snapshot unchanged, and carries its state unchanged. With
several, each tier has a state of its own (`TierStates`). Jobs that have come to a tier from another
one, or for which too little is left at present, stay known to the tier's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Protocol, Self

from controlplane.core.policies.common.parts import Policy, part_decide, part_of
from controlplane.core.policies.common.quota_states import joined, quota_state_decode
from controlplane.core.scheduling.pools import capacity_by_kind
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.tiers import TIERS, Tier
from controlplane.core.values.types import AcceleratorId, Decision, Job, JobId, Share, Snapshot

#: Jobs of higher tiers that a reason names.
_NAMED_JOBS = 3


class CarriedState(Protocol):
    """State that a policy carries from one decision to the next."""

    def joined(self, other: Self, jobs: Collection[JobId], /) -> Self:
        """Return the state, with what `other` knows of those of `jobs` that it does not know."""


@dataclass(frozen=True, slots=True)
class TierStates:
    """State of a policy for each tier, while jobs of several tiers are in use."""

    by_tier: Mapping[Tier, Any]


def state_decode(state: type, stored: Any) -> object:
    """Decode the state of a policy, of one tier or of several.

    Raises:
        ValueError: it is not such a state.
    """
    if not (isinstance(stored, Mapping) and isinstance(stored.get("by_tier"), Mapping)):
        return quota_state_decode(state, stored)
    rows = stored["by_tier"].items()
    return TierStates({Tier(tier): quota_state_decode(state, one) for tier, one in rows})


def strict_by_tier(policy: Policy) -> Policy:
    """Return a policy that decides tier by tier, each with what the higher ones leave."""

    @wraps(policy)
    def by_tier(snapshot: Snapshot) -> Decision:
        members = {tier: tuple(job for job in snapshot.jobs if job.tier is tier) for tier in TIERS}
        members = {tier: jobs for tier, jobs in members.items() if jobs}
        if len(members) <= 1:
            states = (_state_for(snapshot.carried, tier, jobs) for tier, jobs in members.items())
            return policy(replace(snapshot, carried=next(states, snapshot.carried)))
        shares: dict[JobId, Share] = {}
        reasons: dict[JobId, Reason | str] = {}
        carried: dict[Tier, Any] = {}
        taken: frozenset[AcceleratorId] = frozenset()
        lowest = list(members)[-1]
        for tier, jobs in members.items():
            left = part_of(snapshot, jobs, taken)
            state = _state_for(snapshot.carried, tier, jobs)
            part = part_decide(policy, snapshot, left, state, joined)
            decision = part.decision
            shares |= decision.shares
            reasons |= _completed(snapshot, left, decision, shares)
            if decision.carried is not None:
                carried[tier] = decision.carried
            if tier is not lowest:
                taken |= part.taken
            given = {job_id: share.by_kind for job_id, share in decision.shares.items()}
            snapshot = replace(snapshot, projects=snapshot.without_given(given))
        return Decision(shares, reasons, carried=TierStates(carried) if carried else None)

    return by_tier


def _state_for(carried: object | None, tier: Tier, jobs: Sequence[Job]) -> Any:
    """Return the state for the jobs of a tier, from that of all tiers or of the only one."""
    if not isinstance(carried, TierStates):
        return carried
    states = dict(carried.by_tier)
    found, ids = states.pop(tier, None), frozenset(job.id for job in jobs)
    for state in states.values():
        found = joined(found, state, ids) if found is not None else state
    return found


def _completed(
    snapshot: Snapshot, left: Snapshot, decision: Decision, shares: Mapping[JobId, Share]
) -> dict[JobId, Reason | str]:
    """Return the reason of every job of a tier, with what higher tiers take of its kinds."""
    capacity = capacity_by_kind(snapshot)
    rest = Counter(capacity_by_kind(left))
    taken = {kind: total - rest[kind] for kind, total in capacity.items() if total > rest[kind]}
    reasons: dict[JobId, Reason | str] = dict(decision.reasons)
    if not taken:
        return reasons
    above = TIERS[: left.jobs[0].tier.rank]
    higher = [job for job in snapshot.jobs if job.tier in above and job.id in shares]
    higher.sort(key=lambda job: (job.tier.rank, job.id))
    known: dict[frozenset[str], dict[str, Any]] = {}
    for job in left.jobs:
        if job.accepted_kinds not in known:
            known[job.accepted_kinds] = {
                "holders": _holders(job, higher, shares),
                "have": tuple(
                    reason("tier_taken", count=count, capacity=capacity[kind], kind=kind)
                    for kind, count in taken.items()
                    if job.accepts(kind)
                ),
                "tier": job.tier.value,
            }
        fields = known[job.accepted_kinds]
        if not fields["have"]:
            continue
        before, after = len(snapshot.held.get(job.id, ())), len(left.held.get(job.id, ()))
        if job.id in reasons:
            lost = reason("tier_lost_all", accelerators=before)
            if after:
                lost = reason("tier_lost", count=before - after, before=before)
            reasons[job.id] = reason(
                "tier_shares",
                own=reasons[job.id],
                lost=lost if after < before else None,
                **fields,
            )
        else:
            stopped = reason("stopped", cause=None) if before else None
            needed = job.min_accelerators
            reasons[job.id] = reason("tier_waits", stopped=stopped, accelerators=needed, **fields)
    return reasons


def _holders(job: Job, higher: Sequence[Job], shares: Mapping[JobId, Share]) -> Reason:
    """Name the first of `higher` jobs that are given accelerators of kinds that a job accepts."""
    holding = [one for one in higher if job.accepts(shares[one.id].kind)]
    named = tuple(
        reason("tier_holder", job=one.id, tier=one.tier.value) for one in holding[:_NAMED_JOBS]
    )
    more = len(holding) - len(named)
    return reason(
        "tier_holders", holders=named, more=reason("tier_more", count=more) if more else None
    )
