"""State that policies carry from cycle to cycle."""

from __future__ import annotations

import logging

from controlplane.core.policies import POLICY_STATES, policy_state_decode
from jobs.models import PolicyState

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
