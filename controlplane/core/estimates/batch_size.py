"""Changes of the number of examples of a step, where a job leaves that to the platform.

The best size on given accelerators is `AdaptiveBatchPerformance.batch_size`, the one that policies
score allocations by. A running job approaches it in bounded steps, and only for a clear gain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from controlplane.core.estimates.goodput import AdaptiveBatchPerformance, efficiency

#: Least relative gain in goodput of a change ...
CHANGE_GAIN = 0.05

#: ... least interval of changes in seconds, unless the accelerators change anyway ...
CHANGE_COOL_DOWN_S = 30.0

#: ... and reports that the noise scale must rest on.
NOISE_REPORTS = 20

#: Largest factor of one change: a model fitted to few sizes is valid only near them.
CHANGE_FACTOR = 2


def batch_bounds(
    low: int, high: int, num_virtual_nodes: int, *, at_most: int | None = None
) -> tuple[int, int] | None:
    """Return the lowest and highest size in [low, high] that split evenly over the virtual nodes.

    None if there is no such size.

    Args:
        at_most: another upper bound, as from memory or data size; None: there is none.
    """
    if at_most is not None:
        high = min(high, at_most)
    lowest = -(-low // num_virtual_nodes) * num_virtual_nodes
    highest = high // num_virtual_nodes * num_virtual_nodes
    return (lowest, highest) if 0 < lowest <= highest else None


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """Another batch size, the predicted factor of goodput, and the reason with numbers."""

    batch_size: int
    gain: float
    reason: str


def batch_size_choose(
    performance: AdaptiveBatchPerformance,
    present: int,
    kind: str,
    num_accelerators: int,
    num_nodes: int,
) -> BatchChoice | None:
    """Choose another batch size than `present`; None when none is predicted to gain `CHANGE_GAIN`.

    Args:
        kind, num_accelerators, num_nodes: the accelerators that the job is going to have.
    """
    best = performance.batch_size(kind, num_accelerators, num_nodes)
    new = _within_reach(performance, present, best)
    if best == 0 or new == present:
        return None
    steps_s = [
        performance.step_s(size, kind, num_accelerators, num_nodes) for size in (present, new)
    ]
    if not all(map(math.isfinite, steps_s)):
        return None
    phi = performance.noise_scale
    worths = efficiency([present, new], performance.submitted, phi)
    before = present / steps_s[0] * worths[0]
    after = new / steps_s[1] * worths[1]
    if after < before * (1.0 + CHANGE_GAIN):
        return None
    plural = "" if num_accelerators == 1 else "s"
    reason = (
        f"noise scale {_number(phi)}: {present} → {new} examples a step promise "
        f"{after / before:.2f}x the useful examples a second ({_number(before)} → "
        f"{_number(after)}; step {steps_s[0] * 1e3:.0f} → {steps_s[1] * 1e3:.0f} ms on "
        f"{num_accelerators} accelerator{plural}, an example is worth {worths[0]:.2f} → "
        f"{worths[1]:.2f})"
    )
    return BatchChoice(new, after / before, reason)


def _within_reach(performance: AdaptiveBatchPerformance, present: int, best: int) -> int:
    """Return the size nearest to `best` that one change may lead to."""
    multiple = performance.multiple
    low = -(-present // (CHANGE_FACTOR * multiple)) * multiple
    high = present * CHANGE_FACTOR // multiple * multiple
    return min(max(best, low, performance.low), high, performance.high)


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000.0 or math.isinf(value) else f"{value:.0f}"
