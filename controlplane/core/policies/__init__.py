"""Allocation policies: pure functions from a snapshot to the share of every job.

`POLICIES` is the registry used by the live cycle, the simulator and the property tests. A policy
determines how many accelerators of which kind a job holds, and why; `placement` selects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import wraps
from types import MappingProxyType

from controlplane.core.policies.common.kinds import cannot_start
from controlplane.core.policies.common.projects import projects_kept
from controlplane.core.policies.common.tiers import CarriedState, state_decode, strict_by_tier
from controlplane.core.policies.common.user_shares import Policy, Sharing, shares_by_user
from controlplane.core.policies.gavel.policy import GavelState, gavel
from controlplane.core.policies.goodput_fair.fairness_cost import ContentionHistory
from controlplane.core.policies.goodput_fair.policy import goodput_fair
from controlplane.core.policies.optimus import optimus
from controlplane.core.policies.pollux.policy import PolluxState, pollux
from controlplane.core.policies.queueing import fifo, priority
from controlplane.core.policies.sia.policy import sia
from controlplane.core.policies.slaq import SlaqState, slaq
from controlplane.core.policies.srtf import srtf
from controlplane.core.policies.tiresias import SecondQueue, tiresias
from controlplane.core.policies.weighted_fair import weighted_fair, weighted_fair_power_of_two
from controlplane.core.scheduling.pools import capacity_by_kind, jobs_able
from controlplane.core.values.types import Decision, Snapshot


def _skipping(policy: Policy) -> Policy:
    """Return a policy that decides as if jobs that cannot start were not there.

    A job cannot start when no kind that it accepts has its minimum in the cluster. No other job
    waits for it, and nothing is kept free for it; what it still holds is given to others.
    """

    @wraps(policy)
    def decide(snapshot: Snapshot) -> Decision:
        able = jobs_able(snapshot.jobs, capacity_by_kind(snapshot))
        if len(able) == len(snapshot.jobs):
            return policy(snapshot)
        decision = policy(replace(snapshot, jobs=able))
        skipped = (job for job in snapshot.jobs if job.id not in decision.reasons)
        reasons = {job.id: cannot_start(snapshot, job) for job in skipped}
        return replace(decision, reasons={**decision.reasons, **reasons})

    return decide


class BatchMode(StrEnum):
    """Chooser of batch sizes: the platform, or the owner of the job."""

    CHOSEN = "chosen"
    SUBMITTED = "submitted"


@dataclass(frozen=True, slots=True)
class Demand:
    """Freedom that a policy has with the jobs of a workload.

    Attributes:
        batch: chooser of batch sizes.
        is_rigid: whether a job demands exactly the accelerators that its owner requested.
    """

    batch: BatchMode
    is_rigid: bool = False


class PriorityUse(StrEnum):
    """Meaning of a job's priority to a policy."""

    ORDER = "order"  # jobs of higher priority first
    WEIGHT = "weight"  # a factor in what the policy maximises or shares
    NONE = "none"


_RIGID = Demand(BatchMode.SUBMITTED, is_rigid=True)
_ELASTIC = Demand(BatchMode.SUBMITTED)
_ADAPTIVE = Demand(BatchMode.CHOSEN)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A policy as registered, under the name of its function.

    Attributes:
        demand: the freedom that it was designed for.
        priority_use: meaning of priorities inside a tier; `kinds_assign` weighs the choice of a
            kind by them even for NONE.
        state: type of the state that it carries from one decision to the next; None: it has none.
        sharing: what it shares fairly, among users first; None: it serves jobs in an order or for a
            result of its own, whoever owns them.
    """

    decide: Policy
    demand: Demand
    priority_use: PriorityUse
    state: type[CarriedState] | None = None
    sharing: Sharing | None = None


_REGISTRY = {
    entry.decide.__name__: entry
    for entry in (
        _Entry(fifo, _RIGID, PriorityUse.NONE),
        _Entry(gavel, _RIGID, PriorityUse.WEIGHT, GavelState, Sharing.TIME),
        _Entry(
            goodput_fair, _ADAPTIVE, PriorityUse.WEIGHT, ContentionHistory, Sharing.ACCELERATORS
        ),
        _Entry(optimus, _ELASTIC, PriorityUse.NONE),
        _Entry(pollux, _ADAPTIVE, PriorityUse.WEIGHT, PolluxState, Sharing.ACCELERATORS),
        _Entry(priority, _RIGID, PriorityUse.ORDER),
        _Entry(sia, _ADAPTIVE, PriorityUse.WEIGHT, sharing=Sharing.ACCELERATORS),
        _Entry(slaq, _ELASTIC, PriorityUse.WEIGHT, SlaqState),
        _Entry(srtf, _RIGID, PriorityUse.NONE),
        _Entry(tiresias, _RIGID, PriorityUse.NONE, SecondQueue),
        _Entry(weighted_fair, _ELASTIC, PriorityUse.WEIGHT, sharing=Sharing.ACCELERATORS),
        _Entry(
            weighted_fair_power_of_two, _ELASTIC, PriorityUse.WEIGHT, sharing=Sharing.ACCELERATORS
        ),
    )
}


def framed(policy: Policy, sharing: Sharing | None, *, is_rigid: bool = False) -> Policy:
    """Return a policy in the frames of all.

    Jobs that cannot start are skipped, tiers strict, quotas of projects kept, then users share.
    """
    shared = shares_by_user(policy, sharing) if sharing else policy
    kept = projects_kept(shared, is_rigid=is_rigid)
    return _skipping(strict_by_tier(kept))


#: Name -> policy in its frames.
POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        name: framed(entry.decide, entry.sharing, is_rigid=entry.demand.is_rigid)
        for name, entry in _REGISTRY.items()
    }
)

#: Resource that each policy shares between users; other policies do not know users.
SHARING: Mapping[str, Sharing] = MappingProxyType(
    {name: entry.sharing for name, entry in _REGISTRY.items() if entry.sharing is not None}
)

#: Demand for which each policy was designed: fixed demands, elastic jobs, or chosen batch sizes.
DEMANDS: Mapping[str, Demand] = MappingProxyType(
    {name: entry.demand for name, entry in _REGISTRY.items()}
)

#: Meaning of priorities to each policy.
PRIORITY_USES: Mapping[str, PriorityUse] = MappingProxyType(
    {name: entry.priority_use for name, entry in _REGISTRY.items()}
)

#: Type of the state that a policy carries from one decision to the next; others carry none.
POLICY_STATES: Mapping[str, type[CarriedState]] = MappingProxyType(
    {name: entry.state for name, entry in _REGISTRY.items() if entry.state is not None}
)


def policy_state_decode(name: str, stored: object) -> object:
    """Decode the stored state of a policy of `POLICY_STATES`.

    Raises:
        ValueError: it is no such state.
    """
    return state_decode(POLICY_STATES[name], stored)


#: Policy of a fresh installation.
DEFAULT_POLICY = "goodput_fair"


def policy_summary(name: str) -> str:
    """Return a policy's one-sentence summary: the first line of its docstring."""
    return (POLICIES[name].__doc__ or "").strip().partition("\n")[0]
