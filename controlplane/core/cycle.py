"""One scheduling decision: run a policy, lend idle accelerators, check, place, and plan."""

from __future__ import annotations

import dataclasses
import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.core.policies import POLICIES
from controlplane.core.scheduling.cordons import cordon_split
from controlplane.core.scheduling.kind_lending import mix
from controlplane.core.scheduling.maintenance import maintenance_reasons
from controlplane.core.scheduling.placement import place
from controlplane.core.scheduling.plan import plan_between
from controlplane.core.scheduling.sweeps import sweeps_split
from controlplane.core.values.explanations import Reason
from controlplane.core.values.types import Allocation, Decision, JobId, Plan, Snapshot


def decide(snapshot: Snapshot, policy_name: str) -> Plan:
    """Return the plan that brings the cluster of `snapshot` to the desired state of a policy.

    Raises:
        ValueError: there is no policy of that name.
        AssertionError: the policy broke an invariant; no part of the plan may be applied.
    """
    if policy_name not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy_name!r}")
    with _collector_paused():
        admitted, held_back = sweeps_split(snapshot)
        split = cordon_split(admitted)
        decision = mix(split.open, POLICIES[policy_name](split.open))
        decision_check(split.open, decision)
        placed = place(split.open, decision)
        given = {**placed.accelerators, **split.staying}
        reasons: dict[JobId, Reason | str] = {**placed.reasons, **split.reasons}
        reasons |= maintenance_reasons(admitted, given, reasons)
        allocation = Allocation(given, {**reasons, **held_back})
        plan = plan_between(snapshot, allocation)
    return dataclasses.replace(
        plan,
        mixes=decision.mixes,
        carried=decision.carried,
        allocation=allocation,
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the collector of reference cycles, of which a decision makes none.

    With thousands of jobs it would search the values of the decision for cycles again and again.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def decision_check(snapshot: Snapshot, decision: Decision) -> None:
    """Check capacity, bounds, kinds and explanations of a policy's decision.

    Raises:
        AssertionError: naming the job or kind and the rule that is broken.
    """
    jobs = {job.id: job for job in snapshot.jobs}
    capacity = Counter(accelerator.kind for accelerator in snapshot.accelerators)
    used: Counter[str] = Counter()
    for job_id, share in decision.shares.items():
        assert job_id in jobs, f"share for job {job_id}, which is not in the snapshot"
        job = jobs[job_id]
        assert job.min_accelerators <= share.count <= share.total <= job.max_accelerators, (
            f"job {job_id} is given {share.count} and {share.total} in all, outside "
            f"[{job.min_accelerators}, {job.max_accelerators}]"
        )
        assert job.allow_mixed_kinds or not share.extra, f"job {job_id} does not mix kinds"
        assert share.kind not in share.extra, f"job {job_id} has its own kind as an extra one"
        assert not share.by_node or sum(share.by_node.values()) == share.count, (
            f"job {job_id} is given {share.count}, but {sum(share.by_node.values())} by node"
        )
        for kind, count in share.by_kind.items():
            assert job.accepts(kind), f"job {job_id} does not accept kind {kind}"
            assert count > 0, f"job {job_id} is given {count} of kind {kind}"
            used[kind] += count
    for kind, count in used.items():
        assert count <= capacity[kind], f"{count} of {capacity[kind]} {kind} are given out"
    _places_check(snapshot, decision)
    _limits_check(snapshot, decision)
    missing = [job_id for job_id in jobs if not decision.reasons.get(job_id)]
    assert not missing, f"no reason given for jobs {missing}"


def _limits_check(snapshot: Snapshot, decision: Decision) -> None:
    """Check the limits of projects, and of users in them."""
    given = {job_id: share.by_kind for job_id, share in decision.shares.items()}
    for project, quota in snapshot.without_given(given).items():
        used = sum(quota.outside.values())
        before = snapshot.projects[project]
        assert quota.limit is None or used <= max(quota.limit, sum(before.outside.values())), (
            f"project {project} is given {used}, its limit is {quota.limit}"
        )
        for kind, limit in quota.limit_by_kind.items():
            count = quota.outside_by_kind.get(kind, 0)
            assert count <= max(limit, before.outside_by_kind.get(kind, 0)), (
                f"project {project} is given {count} {kind}, its limit is {limit}"
            )
        for user, count in quota.outside.items():
            assert quota.user_limit is None or count <= max(
                quota.user_limit, before.outside.get(user, 0)
            ), f"user {user} is given {count} in project {project}, of {quota.user_limit}"


def _places_check(snapshot: Snapshot, decision: Decision) -> None:
    """Check places chosen by a policy: no node gives more accelerators than it has."""
    used: Counter[tuple[int, str]] = Counter()
    for job_id, share in decision.shares.items():
        for node, count in share.by_node.items():
            assert count > 0, f"job {job_id} is given {count} on node {node}"
            used[node, share.kind] += count
    if not used:
        return
    room = Counter((accelerator.node_id, accelerator.kind) for accelerator in snapshot.accelerators)
    for (node, kind), count in used.items():
        assert count <= room[node, kind], (
            f"{count} of {room[node, kind]} {kind} on node {node} are given out"
        )
