"""One scheduling decision: run a policy, lend idle accelerators, check, place, and plan."""

from __future__ import annotations

import dataclasses
from collections import Counter

from controlplane.core.policies import POLICIES
from controlplane.core.scheduling.cordons import cordon_split
from controlplane.core.scheduling.kind_lending import mix
from controlplane.core.scheduling.placement import place
from controlplane.core.scheduling.plan import plan_between
from controlplane.core.values.types import Allocation, Decision, Plan, Snapshot


def decide(snapshot: Snapshot, policy_name: str) -> Plan:
    """Return the plan that brings the cluster of `snapshot` to the desired state of a policy.

    Raises:
        ValueError: there is no policy of that name.
        AssertionError: the policy broke an invariant; no part of the plan may be applied.
    """
    if policy_name not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy_name!r}")
    split = cordon_split(snapshot)
    decision = mix(split.open, POLICIES[policy_name](split.open))
    decision_check(split.open, decision)
    placed = place(split.open, decision)
    allocation = Allocation(
        {**placed.accelerators, **split.staying}, {**placed.reasons, **split.reasons}
    )
    plan = plan_between(snapshot, allocation)
    return dataclasses.replace(
        plan,
        mixes=decision.mixes,
        carried=decision.carried,
        allocation=allocation,
    )


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
    missing = [job_id for job_id in jobs if not decision.reasons.get(job_id)]
    assert not missing, f"no reason given for jobs {missing}"


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
