"""One scheduling decision: run a policy, check what it says, place it, plan the way there."""

from __future__ import annotations

from collections import Counter

from controlplane.core.placement import place
from controlplane.core.plan import plan_between
from controlplane.core.policies import POLICIES
from controlplane.core.types import Decision, Plan, Snapshot


def decide(snapshot: Snapshot, policy_name: str) -> Plan:
    """Give the plan that brings the cluster of `snapshot` to what the policy wants.

    Raises:
        ValueError: there is no policy of that name.
        AssertionError: the policy broke an invariant; nothing must be applied.
    """
    if policy_name not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy_name!r}")
    decision = POLICIES[policy_name](snapshot)
    decision_check(snapshot, decision)
    return plan_between(snapshot, place(snapshot, decision))


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
        assert job.min_accelerators <= share.count <= job.max_accelerators, (
            f"job {job_id} is given {share.count}, outside "
            f"[{job.min_accelerators}, {job.max_accelerators}]"
        )
        assert job.accepts(share.kind), f"job {job_id} does not accept kind {share.kind}"
        used[share.kind] += share.count
    for kind, count in used.items():
        assert count <= capacity[kind], f"{count} of {capacity[kind]} {kind} are given out"
    missing = [job_id for job_id in jobs if not decision.reasons.get(job_id)]
    assert not missing, f"no reason given for jobs {missing}"
