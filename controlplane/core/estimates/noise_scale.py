"""The gradient noise scale, from the gradients of a step's virtual nodes (Pollux, OSDI 2021).

A batch of M examples is split over n virtual nodes; node i has the share w_i of the examples and
the mean gradient g_i. With G the true gradient and S the summed variance of one example's gradient,

    E |g_i|² = |G|² + S / (w_i·M)          E |mean|² = |G|² + S / M,    mean = Σ w_i·g_i

so E Σ w_i·|g_i|² = |G|² + n·S / M, for equal and for uneven slices, and both unknowns follow. For
equal slices these are Pollux's formulas (its `scale` is 1: the variance is that of a gradient of
the whole batch).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Weight of the past in the moving averages, per report.
SMOOTHING = 0.95


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """Gradient statistics of steps; both numbers are unbiased, so either may be < 0.

    Attributes:
        sqr: estimate of |G|², the squared length of the true gradient.
        var: summed variance of the gradient of one batch.
    """

    sqr: float
    var: float

    def at_batch_size(self, old: int, new: int) -> GradientNoise:
        """Convert the variance to batches of `new` examples, from `old`: it falls as 1 / size."""
        return GradientNoise(self.sqr, self.var * old / new)


def gradient_noise(
    mean_of_squares: float, num_slices: float, square_of_mean: float
) -> GradientNoise | None:
    """Estimate from one step.

    Args:
        mean_of_squares: Σ w_i·|g_i|² over the virtual nodes with examples.
        num_slices: n, the number of these virtual nodes.
        square_of_mean: |Σ w_i·g_i|².

    Returns:
        None for fewer than two slices, and where a gradient was not finite.
    """
    if num_slices < 2 or not math.isfinite(mean_of_squares) or not math.isfinite(square_of_mean):
        return None
    sqr = (num_slices * square_of_mean - mean_of_squares) / (num_slices - 1)
    var = (mean_of_squares - square_of_mean) / (num_slices - 1)
    return GradientNoise(sqr, var)


@dataclass(frozen=True, slots=True)
class NoiseAverage:
    """Moving averages of both numbers from zero, with the weight needed to remove the start bias.

    Attributes:
        sqr, var: decayed sums, each value with weight 1 - `SMOOTHING` when it comes.
        weight: sum of all weights so far, 0 before the first value, towards 1.
    """

    sqr: float = 0.0
    var: float = 0.0
    weight: float = 0.0

    def with_value(self, noise: GradientNoise) -> NoiseAverage:
        """Return the averages with one more report."""
        fresh = 1.0 - SMOOTHING
        return NoiseAverage(
            sqr=SMOOTHING * self.sqr + fresh * noise.sqr,
            var=SMOOTHING * self.var + fresh * noise.var,
            weight=SMOOTHING * self.weight + fresh,
        )

    def mean(self) -> GradientNoise | None:
        """Return the averages without the bias of the start; None before the first value."""
        if self.weight <= 0.0:
            return None
        return GradientNoise(self.sqr / self.weight, self.var / self.weight)


def noise_scale(noise: GradientNoise, batch_size: int) -> float:
    """Return phi = M0·var / sqr in examples, M0 the batch size that `var` refers to.

    Infinite where noise hides the gradient (`sqr` is not positive), 0 where there is no noise.

    Raises:
        ValueError: the batch size is not positive.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    variance = max(noise.var, 0.0)
    if variance == 0.0:
        return 0.0
    return batch_size * variance / noise.sqr if noise.sqr > 0.0 else math.inf


def adascale_gain(noise: GradientNoise, scale: float) -> float:
    """Return AdaScale's gain r = (var + sqr) / (var / S + sqr) for batches `scale` times as large.

    `noise.var` is for the original batch size. Between 1 (no noise) and S (all noise) for S >= 1.

    Raises:
        ValueError: the scale is not positive.
    """
    if not scale > 0.0:
        raise ValueError(f"scale must be positive, got {scale}")
    variance, square = max(noise.var, 0.0), max(noise.sqr, 0.0)
    if variance + square == 0.0:
        return 1.0
    return (variance + square) / (variance / scale + square)
