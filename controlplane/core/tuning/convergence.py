"""How fast a trial's training loss falls, and whether that can be told from its noise.

The rules are MLtuner's (arXiv 1803.07445, section 4.1). A trial of T steps is summarised by K means
over T/K steps each, with the loss at its start before them. Only additions, multiplications,
divisions and comparisons of float64 are used, so that all processors agree on the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from controlplane.core.protocol.tuning import NUM_POINTS

#: A loss above this multiple of the start loss has diverged.
DIVERGED_RATIO = 10.0
#: A rise between two points above this share of the total change hides the change.
NOISE_RATIO = 0.1
#: Points from which a trial's best possible speed is judged before its end.
EARLY_POINTS = 3


class Verdict(StrEnum):
    """Course of a trial's losses."""

    CONVERGING = "converging"
    UNSTABLE = "unstable"  # the noise hides the change, or the loss does not fall
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True)
class Convergence:
    """Verdict on a trial, and the fall of its loss per step, less its noise; at least 0."""

    verdict: Verdict
    speed: float


def convergence(start_loss: float, points: Sequence[float], num_steps: int) -> Convergence:
    """Judge a trial of `num_steps` steps by its points.

    With y the start loss followed by the points: noise = max(0, max(y[i+1] - y[i])), and
    speed = max(0, y[first] - y[last] - noise) / num_steps.
    """
    if is_diverged(start_loss, points):
        return Convergence(Verdict.DIVERGED, 0.0)
    fall = start_loss - points[-1]
    noise = _noise(start_loss, points)
    if fall <= 0.0 or noise > NOISE_RATIO * fall:
        return Convergence(Verdict.UNSTABLE, max(0.0, fall - noise) / num_steps)
    return Convergence(Verdict.CONVERGING, (fall - noise) / num_steps)


def is_diverged(start_loss: float, points: Sequence[float]) -> bool:
    """Return whether a point is not finite, or the last one is far above the start loss."""
    if not all(math.isfinite(point) for point in points):
        return True
    # Losses may be negative: the ratio is one of distances from zero only for a positive start.
    return start_loss > 0.0 and bool(points) and points[-1] > DIVERGED_RATIO * start_loss


def cannot_win(
    start_loss: float, points: Sequence[float], num_steps: int, best_speed: float
) -> bool:
    """Return whether a trial of `num_steps`, of which `points` are over, stays below a speed.

    The rest is assumed to fall as fast as the trial's fastest part so far, without more noise: a
    bound for a loss that falls ever more slowly.
    """
    if not EARLY_POINTS <= len(points) < NUM_POINTS:
        return False
    values = (start_loss, *points)
    fastest = max(0.0, max(values[i] - values[i + 1] for i in range(len(points))))
    fall = start_loss - points[-1] + (NUM_POINTS - len(points)) * fastest
    return (fall - _noise(start_loss, points)) / num_steps < best_speed


def _noise(start_loss: float, points: Sequence[float]) -> float:
    values = (start_loss, *points)
    return max(0.0, max(values[i + 1] - values[i] for i in range(len(points))))
