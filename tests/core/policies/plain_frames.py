"""Plain form of the frames of policies: tiers, and shares of users.

The frames in `controlplane.core.policies.common` give the same decisions in a fraction of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from controlplane.core.policies.common.fair_fill import (
    User,
    is_by_job,
    members_of,
    progressive_fill,
    user_claim,
)
from controlplane.core.policies.common.kinds import cannot_start
from controlplane.core.policies.common.parts import part_of
from controlplane.core.policies.common.quota_states import joined
from controlplane.core.policies.common.tiers import TierStates, _state_for
from controlplane.core.policies.common.user_shares import Sharing
from controlplane.core.scheduling.placement import place
from controlplane.core.scheduling.pools import (
    arrival_order,
    can_start,
    capacity_by_kind,
)
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.tiers import TIERS, Tier
from controlplane.core.values.types import AcceleratorId, Decision, Job, JobId, Share, Snapshot

Policy = Callable[[Snapshot], Decision]


def framed(policy: Policy, sharing: Sharing | None) -> Policy:
    """Return a policy in all frames, in the order of `controlplane.core.policies.framed`."""
    shared = shares_by_user(policy, sharing) if sharing else policy
    return skipping(strict_by_tier(shared))


def skipping(policy: Policy) -> Policy:
    """Return a policy that decides as if jobs that cannot start were not there."""

    def decide(snapshot: Snapshot) -> Decision:
        capacity = capacity_by_kind(snapshot)
        able = tuple(job for job in snapshot.jobs if can_start(job, capacity))
        if len(able) == len(snapshot.jobs):
            return policy(snapshot)
        decision = policy(replace(snapshot, jobs=able))
        skipped = (job for job in snapshot.jobs if job.id not in decision.reasons)
        reasons = {job.id: cannot_start(snapshot, job) for job in skipped}
        return replace(decision, reasons={**decision.reasons, **reasons})

    return decide


def strict_by_tier(policy: Policy) -> Policy:
    """Return a policy that decides tier by tier, each with what the higher ones leave."""

    def by_tier(snapshot: Snapshot) -> Decision:
        members = {tier: tuple(job for job in snapshot.jobs if job.tier is tier) for tier in TIERS}
        members = {tier: jobs for tier, jobs in members.items() if jobs}
        if len(members) <= 1:
            states = (_state_for(snapshot.carried, tier, jobs) for tier, jobs in members.items())
            return policy(replace(snapshot, carried=next(states, snapshot.carried)))
        held = {job.id: snapshot.held.get(job.id, ()) for job in snapshot.jobs}
        shares: dict[JobId, Share] = {}
        reasons: dict[JobId, Reason | str] = {}
        carried: dict[Tier, Any] = {}
        taken: frozenset[AcceleratorId] = frozenset()
        for tier, jobs in members.items():
            left = part_of(snapshot, jobs, taken)
            decision = _decided_left(policy, left, _state_for(snapshot.carried, tier, jobs))
            shares |= decision.shares
            reasons |= _completed(snapshot, left, decision, shares)
            if decision.carried is not None:
                carried[tier] = decision.carried
            shown = replace(left, held=held, kept=snapshot.kept)
            taken = taken.union(*place(shown, decision).accelerators.values())
        return Decision(shares, reasons, carried=TierStates(carried) if carried else None)

    return by_tier


def _decided_left(policy: Policy, left: Snapshot, state: Any) -> Decision:
    """Let a policy decide for the jobs whose minimum is left; the state remembers the others."""
    capacity = capacity_by_kind(left)
    able = tuple(job for job in left.jobs if can_start(job, capacity))
    if not able:
        return Decision({}, {}, carried=state)
    decision = policy(replace(left, jobs=able, carried=state))
    if len(able) == len(left.jobs):
        return decision
    unable = frozenset(job.id for job in left.jobs).difference(job.id for job in able)
    return replace(decision, carried=joined(decision.carried, state, unable))


def _completed(
    snapshot: Snapshot, left: Snapshot, decision: Decision, shares: Mapping[JobId, Share]
) -> dict[JobId, Reason | str]:
    """Return the reason of every job of a tier, with what higher tiers take of its kinds."""
    capacity = capacity_by_kind(snapshot)
    rest = Counter(capacity_by_kind(left))
    taken = {kind: total - rest[kind] for kind, total in capacity.items() if total > rest[kind]}
    reasons: dict[JobId, Reason | str] = dict(decision.reasons)
    for job in left.jobs:
        kinds = [kind for kind in taken if job.accepts(kind)]
        if not kinds:
            continue
        before, after = len(snapshot.held.get(job.id, ())), len(left.held.get(job.id, ()))
        fields = {
            "holders": _holders(snapshot, job, shares, kinds),
            "have": tuple(
                reason("tier_taken", count=taken[kind], capacity=capacity[kind], kind=kind)
                for kind in kinds
            ),
            "tier": job.tier.value,
        }
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


def _holders(
    snapshot: Snapshot, job: Job, shares: Mapping[JobId, Share], kinds: Collection[str]
) -> Reason:
    """Name the first jobs of higher tiers that are given accelerators of some kinds."""
    higher = [
        one
        for one in sorted(snapshot.jobs, key=lambda one: (one.tier.rank, one.id))
        if one.tier.rank < job.tier.rank and one.id in shares and shares[one.id].kind in kinds
    ]
    named = tuple(reason("tier_holder", job=one.id, tier=one.tier.value) for one in higher[:3])
    more = len(higher) - len(named)
    return reason(
        "tier_holders", holders=named, more=reason("tier_more", count=more) if more else None
    )


def shares_by_user(policy: Policy, sharing: Sharing) -> Policy:
    """Return a policy that shares between users first; none of its jobs is withheld from time."""

    def by_user(snapshot: Snapshot) -> Decision:
        members = members_of(arrival_order(snapshot.jobs))
        if len(members) <= 1:
            jobs = tuple(replace(job, user_factor=1.0) for job in snapshot.jobs)
            return policy(replace(snapshot, jobs=jobs))
        if is_by_job(members) and all(job.user_factor == 1.0 for job in snapshot.jobs):
            return policy(snapshot)
        if sharing is Sharing.TIME:
            return _decided(policy, snapshot, members, {})
        limits = user_limits(snapshot, members)
        withheld = _withheld(snapshot, members, limits)
        decision = _decided(policy, snapshot, members, withheld)
        usable = _usable(snapshot, decision, withheld)
        if usable:
            rest = {job_id: why for job_id, why in withheld.items() if job_id not in usable}
            decision = _decided(policy, snapshot, members, rest)
        return decision

    return by_user


def _decided(
    policy: Policy,
    snapshot: Snapshot,
    members: Mapping[User, Sequence[Job]],
    withheld: Mapping[JobId, Reason],
) -> Decision:
    """Let a policy decide on all jobs but the withheld ones, and complete its reasons."""
    claims = {user: user_claim(jobs) for user, jobs in members.items()}
    total = sum(claims.values())
    notes: dict[JobId, Reason] = {}
    parts: dict[JobId, float] = {}
    for user, jobs in members.items():
        sharing = [job for job in jobs if job.id not in withheld]
        weight = sum(job.weight for job in sharing)
        note = reason(
            "user_share",
            claim=claims[user],
            total=total,
            num_users=len(members),
            divided=reason("user_divided", number=len(sharing)) if len(sharing) > 1 else None,
        )
        notes |= {job.id: note for job in jobs}
        parts |= {job.id: claims[user] / weight for job in sharing}
    seen = tuple(replace(job, share_part=parts[job.id]) for job in snapshot.jobs if job.id in parts)
    decision = policy(replace(snapshot, jobs=seen))
    reasons = {
        job_id: reason("by_user", own=own, note=notes[job_id])
        for job_id, own in {**decision.reasons, **withheld}.items()
    }
    return replace(decision, reasons=reasons)


def user_limits(
    snapshot: Snapshot, members: Mapping[User, Sequence[Job]]
) -> dict[str, dict[User, int]]:
    """Return how many accelerators of each kind the users get if each of them is one job.

    A user demands no more than the user's jobs can use; what is left goes to the others.
    """
    capacity = capacity_by_kind(snapshot)
    kinds = _kinds(snapshot, capacity)
    users = {jobs[0].id: user for user, jobs in members.items()}
    limits: dict[str, dict[User, int]] = {}
    for kind, total in capacity.items():
        demands = []
        for jobs in members.values():
            inside = [job for job in jobs if kind in kinds[job.id]]
            most = min(sum(job.max_accelerators for job in inside), total)
            demands.append(_demand(jobs, most))
        counts = progressive_fill(demands, total)
        limits[kind] = {users[job_id]: count for job_id, count in counts.items()}
    return limits


def _demand(jobs: Sequence[Job], most: int) -> Job:
    """Return a job that stands for a user with these jobs."""
    first = jobs[0]
    return Job(first.id, first.submitted_at, user_claim(jobs), max(most, 1), 0, most)


def _kinds(snapshot: Snapshot, capacity: Mapping[str, int]) -> dict[JobId, list[str]]:
    """Return the kinds on which each job can run, whichever it holds."""
    return {
        job.id: [
            kind
            for kind, total in capacity.items()
            if job.accepts(kind) and job.min_accelerators <= total
        ]
        for job in snapshot.jobs
    }


def _withheld(
    snapshot: Snapshot,
    members: Mapping[User, Sequence[Job]],
    limits: Mapping[str, Mapping[User, int]],
) -> dict[JobId, Reason]:
    """Return the jobs whose minima exceed their users' accelerators, and the reason for each.

    A user's first job is the heaviest one, of equal ones the one that runs, then the oldest.
    """
    kinds = _kinds(snapshot, capacity_by_kind(snapshot))
    withheld: dict[JobId, Reason] = {}
    for user, jobs in members.items():
        room = {kind: counts[user] for kind, counts in limits.items()}
        order = sorted(jobs, key=lambda job: (-job.weight, not snapshot.held.get(job.id)))
        is_first = True
        for job in order:
            kind = max(kinds[job.id], key=lambda kind: room[kind], default=None)
            if kind is None:
                continue
            if is_first or job.id in snapshot.resizing or job.min_accelerators <= room[kind]:
                room[kind] -= job.min_accelerators
            else:
                withheld[job.id] = reason(
                    "user_withheld",
                    needed=job.min_accelerators,
                    kind=kind,
                    limit=limits[kind][user],
                )
            is_first = False
    return withheld


def _usable(
    snapshot: Snapshot, decision: Decision, withheld: Collection[JobId]
) -> frozenset[JobId]:
    """Return the withheld jobs whose minima fit into what a decision leaves idle."""
    free = capacity_by_kind(snapshot)
    kinds = _kinds(snapshot, free)
    for share in decision.shares.values():
        free[share.kind] -= share.count
    usable: set[JobId] = set()
    jobs = arrival_order(job for job in snapshot.jobs if job.id in withheld)
    for job in sorted(jobs, key=lambda job: (-job.weight, not snapshot.held.get(job.id))):
        kind = max(kinds[job.id], key=lambda kind: free[kind])
        if job.min_accelerators <= free[kind]:
            free[kind] -= job.min_accelerators
            usable.add(job.id)
    return frozenset(usable)
