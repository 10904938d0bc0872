"""Decisions, with the effort that a forecast of starts may take after them."""

from __future__ import annotations

import time

from controlplane.core.cycle import decide
from controlplane.core.values.types import Plan, Snapshot

#: Seconds that a forecast may take, if its decisions take as long as the first one.
FORECAST_S = 0.5


def decide_timed(snapshot: Snapshot, policy: str) -> tuple[Plan, int]:
    """Return the plan of a policy, and how many such decisions a forecast may take.

    The number is a power of two or 0: forecasts do not change with every fluctuation of the time.
    """
    began = time.perf_counter()
    plan = decide(snapshot, policy)
    num_decisions = int(FORECAST_S / max(time.perf_counter() - began, 1e-6))
    return plan, 2 ** num_decisions.bit_length() // 2
