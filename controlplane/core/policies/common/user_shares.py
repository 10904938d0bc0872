"""Shares of users first, then of their jobs: the frame of every policy that shares fairly.

The claim of a user is the weight of the user's heaviest job, times the user's factor, however many
jobs there are. Two steps make a policy follow it:

* A user's accelerators of a kind are counted as if each user were one job. Where the minima of the
  user's jobs exceed them, the least important jobs are withheld from the policy, never the first
  one. What the others leave idle goes to withheld jobs again.
* The claim is divided among the remaining jobs in proportion to their weights: `Job.share_part`.

With one user, or with one job and the factor 1 for each, the policy sees its snapshot unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import wraps

from controlplane.core.policies.common.fair_fill import (
    User,
    is_by_job,
    members_of,
    progressive_fill,
    user_claim,
)
from controlplane.core.scheduling.pools import (
    arrival_order,
    capacity_by_kind,
    held_by_kind,
    held_kind,
)
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import Decision, Job, JobId, Snapshot

Policy = Callable[[Snapshot], Decision]


class Sharing(StrEnum):
    """Resource that a policy shares; any number of jobs gets a part of time."""

    ACCELERATORS = "accelerators"
    TIME = "time"


def shares_by_user(policy: Policy, sharing: Sharing) -> Policy:
    """Return a policy that shares between users first; none of its jobs is withheld from time."""

    @wraps(policy)
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
    """Return the kinds on which each job can run: the one that it holds, or all accepted ones."""
    held = {job_id: held_kind(counts) for job_id, counts in held_by_kind(snapshot).items()}
    return {
        job.id: [
            kind
            for kind, total in capacity.items()
            if job.accepts(kind) and held[job.id] in (None, kind) and job.min_accelerators <= total
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
