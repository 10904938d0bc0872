"""Shares of users first, then of their jobs: the frame of every policy that shares fairly.

The claim of a user is the weight of the user's heaviest job, times the user's factor, however many
jobs there are. Two steps make a policy follow it:

* A user's accelerators of a kind are counted as if each user were one job. Where the minima of the
  user's jobs exceed them, the least important jobs are withheld from the policy, never the first
  one. What the others leave idle goes to withheld jobs again, and a running one is not stopped for
  jobs that do not start.
* The claim is divided among the remaining jobs in proportion to their weights: `Job.share_part`.

With one user, or with one job and the factor 1 for each, the policy sees its snapshot unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import wraps

from controlplane.core.policies.common.fair_fill import (
    User,
    UserDemand,
    demands_fill,
    is_by_job,
    members_of,
    user_claim,
)
from controlplane.core.scheduling.pools import arrival_order, capacity_by_kind, kinds_able
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import Decision, Job, JobId, Snapshot

Policy = Callable[[Snapshot], Decision]


class Sharing(StrEnum):
    """Resource that a policy shares; any number of jobs gets a part of time."""

    ACCELERATORS = "accelerators"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class _Crowd:
    """The jobs of a snapshot by user, and what users may claim.

    Attributes:
        members: user -> jobs in order of arrival.
        claims: user -> claim.
        capacity: kind -> accelerators.
        kinds: job -> kinds on which it can run.
    """

    members: Mapping[User, Sequence[Job]]
    claims: Mapping[User, float]
    capacity: Mapping[str, int]
    kinds: Mapping[JobId, tuple[str, ...]]


def shares_by_user(policy: Policy, sharing: Sharing) -> Policy:
    """Return a policy that shares between users first; none of its jobs is withheld from time."""

    @wraps(policy)
    def by_user(snapshot: Snapshot) -> Decision:
        members = members_of(arrival_order(snapshot.jobs))
        if len(members) <= 1:
            return policy(replace(snapshot, jobs=tuple(map(_unweighted, snapshot.jobs))))
        if is_by_job(members) and all(job.user_factor == 1.0 for job in snapshot.jobs):
            return policy(snapshot)
        claims = {user: user_claim(jobs) for user, jobs in members.items()}
        if sharing is Sharing.TIME:
            return _decided(policy, snapshot, _Crowd(members, claims, {}, {}), {})
        capacity = capacity_by_kind(snapshot)
        crowd = _Crowd(members, claims, capacity, _kinds(snapshot.jobs, capacity))
        limits = user_limits(crowd)
        withheld = _withheld(snapshot, crowd, limits)
        decision = _decided(policy, snapshot, crowd, withheld)
        back = _usable(snapshot, crowd, decision, withheld)
        back |= _stopped_in_vain(snapshot, crowd, limits, decision, withheld)
        while back:
            withheld = {job_id: why for job_id, why in withheld.items() if job_id not in back}
            decision = _decided(policy, snapshot, crowd, withheld)
            back = _usable(snapshot, crowd, decision, withheld)
        return decision

    return by_user


def _unweighted(job: Job) -> Job:
    """Return a job without its user's factor, which means nothing to the only user."""
    return job if job.user_factor == 1.0 else replace(job, user_factor=1.0)


def _decided(
    policy: Policy, snapshot: Snapshot, crowd: _Crowd, withheld: Mapping[JobId, Reason]
) -> Decision:
    """Let a policy decide on all jobs but the withheld ones, and complete its reasons."""
    total = sum(crowd.claims.values())
    notes: dict[JobId, Reason] = {}
    parts: dict[JobId, float] = {}
    for user, jobs in crowd.members.items():
        sharing = [job for job in jobs if job.id not in withheld] if withheld else jobs
        weight = sum(job.weight for job in sharing)
        note = reason(
            "user_share",
            claim=crowd.claims[user],
            total=total,
            num_users=len(crowd.members),
            divided=reason("user_divided", number=len(sharing)) if len(sharing) > 1 else None,
        )
        notes |= dict.fromkeys([job.id for job in jobs], note)
        if sharing:
            parts |= dict.fromkeys([job.id for job in sharing], crowd.claims[user] / weight)
    seen = tuple(
        [
            job if job.share_part == part else job.with_share_part(part)
            for job in snapshot.jobs
            if (part := parts.get(job.id)) is not None
        ]
    )
    decision = policy(replace(snapshot, jobs=seen))
    reasons = {
        job_id: Reason("by_user", {"own": own, "note": notes[job_id]})
        for job_id, own in {**decision.reasons, **withheld}.items()
    }
    return replace(decision, reasons=reasons)


def user_limits(crowd: _Crowd) -> dict[str, dict[User, int]]:
    """Return how many accelerators of each kind the users get if each of them is one job.

    A user demands no more than the user's jobs can use; what is left goes to the others.
    """
    most = {kind: dict.fromkeys(crowd.members, 0) for kind in crowd.capacity}
    for user, jobs in crowd.members.items():
        sums: dict[tuple[str, ...], int] = {}
        for job in jobs:
            kinds = crowd.kinds[job.id]
            sums[kinds] = sums.get(kinds, 0) + job.max_accelerators
        for kinds, number in sums.items():
            for kind in kinds:
                most[kind][user] += number
    limits: dict[str, dict[User, int]] = {}
    for kind, total in crowd.capacity.items():
        demands = [
            UserDemand(claim, min(most[kind][user], total), crowd.members[user][0])
            for user, claim in crowd.claims.items()
        ]
        limits[kind] = dict(zip(crowd.claims, demands_fill(demands, total), strict=True))
    return limits


def _kinds(jobs: Sequence[Job], capacity: Mapping[str, int]) -> dict[JobId, tuple[str, ...]]:
    """Return the kinds on which each job can run, whichever it holds.

    A policy may move a running job: counted on its own kind alone, it could be withheld for an
    equal one that waits for several kinds, and the two would take turns.
    """
    known: dict[tuple[frozenset[str], int], tuple[str, ...]] = {}
    kinds: dict[JobId, tuple[str, ...]] = {}
    for job in jobs:
        key = (job.accepted_kinds, job.min_accelerators)
        if key not in known:
            known[key] = tuple(kinds_able(job, capacity))
        kinds[job.id] = known[key]
    return kinds


def _withheld(
    snapshot: Snapshot, crowd: _Crowd, limits: Mapping[str, Mapping[User, int]]
) -> dict[JobId, Reason]:
    """Return the jobs whose minima exceed their users' accelerators, and the reason for each.

    A user's first job is the heaviest one, of equal ones the one that runs, then the oldest.
    """
    withheld: dict[JobId, Reason] = {}
    for user, jobs in crowd.members.items():
        room = {kind: counts[user] for kind, counts in limits.items()}
        is_first = True
        for job in _user_order(snapshot, jobs):
            kind = _roomiest(crowd.kinds[job.id], room)
            if kind is None:
                continue
            if is_first or job.min_accelerators <= room[kind] or job.id in snapshot.resizing:
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
    snapshot: Snapshot, crowd: _Crowd, decision: Decision, withheld: Collection[JobId]
) -> frozenset[JobId]:
    """Return the withheld jobs whose minima fit into what a decision leaves idle."""
    if not withheld:
        return frozenset()
    free = dict(crowd.capacity)
    for share in decision.shares.values():
        free[share.kind] -= share.count
    usable: set[JobId] = set()
    jobs = arrival_order(job for job in snapshot.jobs if job.id in withheld)
    for job in _user_order(snapshot, jobs):
        kind = _roomiest(crowd.kinds[job.id], free)
        assert kind is not None, "a withheld job has a kind"
        if job.min_accelerators <= free[kind]:
            free[kind] -= job.min_accelerators
            usable.add(job.id)
    return frozenset(usable)


def _stopped_in_vain(
    snapshot: Snapshot,
    crowd: _Crowd,
    limits: Mapping[str, Mapping[User, int]],
    decision: Decision,
    withheld: Collection[JobId],
) -> frozenset[JobId]:
    """Return the running jobs that would not be withheld if they waited.

    Stopped, such a job could be given its accelerators again: it is withheld for jobs which a
    decision does not start.
    """
    running = {job_id for job_id in withheld if snapshot.held.get(job_id)}
    if not running:
        return frozenset()
    held = {job_id: row for job_id, row in snapshot.held.items() if job_id not in running}
    members = {
        user: [job for job in jobs if job.id in decision.shares or job.id in withheld]
        for user, jobs in crowd.members.items()
    }
    still = _withheld(replace(snapshot, held=held), replace(crowd, members=members), limits)
    return frozenset(running.difference(still))


def _user_order(snapshot: Snapshot, jobs: Sequence[Job]) -> list[Job]:
    """Sort jobs in order of arrival by weight, highest first, of equal ones those that run."""
    held = snapshot.held
    return sorted(jobs, key=lambda job: (-job.weight, not held.get(job.id)))


def _roomiest(kinds: Sequence[str], room: Mapping[str, int]) -> str | None:
    """Return the kind with the most room, the first of equal ones."""
    if len(kinds) == 1:
        return kinds[0]
    return max(kinds, key=room.__getitem__, default=None)
