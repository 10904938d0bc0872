"""Allocation policies: pure functions from a snapshot to the share of every job.

`POLICIES` is the registry used by the live cycle, the simulator and the property tests. A policy
determines how many accelerators of which kind a job holds, and why; `placement` selects them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

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
from controlplane.core.values.types import Decision, Snapshot

Policy = Callable[[Snapshot], Decision]

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "fifo": fifo,
        "gavel": gavel,
        "goodput_fair": goodput_fair,
        "optimus": optimus,
        "pollux": pollux,
        "priority": priority,
        "sia": sia,
        "slaq": slaq,
        "srtf": srtf,
        "tiresias": tiresias,
        "weighted_fair": weighted_fair,
        "weighted_fair_power_of_two": weighted_fair_power_of_two,
    }
)

#: Type of the state that a policy carries from one decision to the next; others carry none.
POLICY_STATES: Mapping[str, type] = MappingProxyType(
    {
        "gavel": GavelState,
        "goodput_fair": ContentionHistory,
        "pollux": PolluxState,
        "slaq": SlaqState,
        "tiresias": SecondQueue,
    }
)

#: Policy of a fresh installation.
DEFAULT_POLICY = "goodput_fair"


def policy_summary(name: str) -> str:
    """Return a policy's one-sentence summary: the first line of its docstring."""
    return (POLICIES[name].__doc__ or "").strip().partition("\n")[0]
