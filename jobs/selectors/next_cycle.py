"""Decisions as the next cycle would make them, with the effort of a forecast after them."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Collection
from dataclasses import replace

from django.conf import settings

from controlplane.core.cycle import decide
from controlplane.core.policies import POLICY_STATES, policy_state_decode
from controlplane.core.values.types import Plan, Snapshot
from jobs.models import ClusterSetting, PolicyState
from jobs.selectors.cluster import cluster_snapshot

#: Seconds that a forecast may take, if its decisions take as long as the first one.
FORECAST_S = 0.5


def next_cycle(
    now: datetime.datetime, *, without_nodes: Collection[int] = ()
) -> tuple[Snapshot, str]:
    """Return what the next cycle decides about, and the policy in force, which decides.

    Args:
        without_nodes: as of `cluster_snapshot`.
    """
    chosen = ClusterSetting.objects.values_list("policy", flat=True).first()
    policy = chosen or settings.DEFAULT_POLICY
    snapshot = cluster_snapshot(now, without_nodes=without_nodes).snapshot
    return replace(snapshot, carried=policy_state_read(policy)), policy


def decide_timed(snapshot: Snapshot, policy: str) -> tuple[Plan, int]:
    """Return the plan of a policy, and how many such decisions a forecast may take.

    The number is a power of two or 0: forecasts do not change with every fluctuation of the time.
    """
    began = time.perf_counter()
    plan = decide(snapshot, policy)
    num_decisions = int(FORECAST_S / max(time.perf_counter() - began, 1e-6))
    return plan, 2 ** num_decisions.bit_length() // 2


logger = logging.getLogger(__name__)


def policy_state_read(policy: str) -> object | None:
    """Return the state that a policy left in its last cycle; None if there is none."""
    row = PolicyState.objects.filter(policy=policy).first()
    if row is None or policy not in POLICY_STATES:
        return None
    try:
        state = policy_state_decode(policy, row.state)
    except ValueError as error:
        logger.warning("the state of policy %s is not understood: %s", policy, error)
        return None
    return state
