"""Step times: own computing by number of virtual nodes, and the cost of the gradient exchange.

A trainer with v virtual nodes on an accelerator of kind k computes for t_k(v) seconds, nearly
a + b*v: a once per step, b for each slice. A whole step takes the slowest trainer's t_k(v) and
T_sync(n) for the exchange among n trainers. Both are measured while jobs train, so a model is
little more than its samples: exact where there are any, straight lines elsewhere.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Weight of the newest report in a sample's recent value.
RECENT_SMOOTHING = 0.3

#: Largest number of measurements that a sample counts as when a line is fitted through several.
COUNT_LIMIT = 200

#: Largest number of points kept for one kind; those with the fewest steps are dropped.
SAMPLES_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """Measured step times at one point.

    Attributes:
        count: number of timed steps.
        mean_s: their mean, in seconds.
        recent_s: a mean in which newer reports weigh more.
    """

    count: int
    mean_s: float
    recent_s: float


def sample_add(old: Sample | None, count: int, seconds: float) -> Sample:
    """Add `count` steps that took `seconds` each on average.

    Raises:
        ValueError: `count` or `seconds` is not positive, or not finite.
    """
    if count < 1 or not math.isfinite(seconds) or seconds <= 0.0:
        raise ValueError(f"a sample needs steps that took time, got {count} of {seconds} s")
    if old is None:
        return Sample(count, seconds, seconds)
    total = old.count + count
    mean_s = old.mean_s + (seconds - old.mean_s) * count / total
    recent_s = old.recent_s + RECENT_SMOOTHING * (seconds - old.recent_s)
    return Sample(total, mean_s, recent_s)


def samples_bounded(samples: Mapping[int, Sample]) -> dict[int, Sample]:
    """Keep `SAMPLES_LIMIT` samples, those with the most steps behind them."""
    ranked = sorted(samples, key=lambda point: (-samples[point].count, point))
    return {point: samples[point] for point in sorted(ranked[:SAMPLES_LIMIT])}


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds by a whole number from 1 on, never falling: t_k by virtual nodes, or T_sync.

    Attributes:
        points: measured numbers, ascending.
        values_s: the time at each of them, not descending.
        slope_s: b of the line a + b*v through all points, not negative.
    """

    points: tuple[int, ...]
    values_s: tuple[float, ...]
    slope_s: float

    def __call__(self, number: int) -> float:
        """Return the seconds for `number`.

        Measured numbers have their own value, numbers between two of them lie on a line, numbers
        outside follow the fitted slope from the nearest one (never below 0).
        """
        position = bisect_left(self.points, number)
        if position < len(self.points) and self.points[position] == number:
            return self.values_s[position]
        if position == len(self.points):
            return self.values_s[-1] + self.slope_s * (number - self.points[-1])
        if position == 0:
            return max(self.values_s[0] - self.slope_s * (self.points[0] - number), 0.0)
        low, high = self.points[position - 1], self.points[position]
        share = (number - low) / (high - low)
        return self.values_s[position - 1] * (1.0 - share) + self.values_s[position] * share

    def scaled(self, factor: float) -> StepTime:
        """Return the same shape for an accelerator that takes `factor` times as long."""
        values_s = tuple(value * factor for value in self.values_s)
        return StepTime(self.points, values_s, self.slope_s * factor)


def step_time_fit(samples: Mapping[int, Sample]) -> StepTime | None:
    """Fit t_k to samples by number of virtual nodes; None without any.

    Recent values count. Where more virtual nodes seem to take less time (noise), neighbours are
    pooled into their weighted mean. With one point alone the time is assumed to be proportional.
    """
    if not samples:
        return None
    return _fit(samples, lone_slope=True)


def sync_time_fit(samples: Mapping[int, Sample]) -> StepTime | None:
    """Fit T_sync to samples by number of trainers (from 2 on); None without any.

    With one point alone the time is assumed to be the same for every number.
    """
    met = {number: sample for number, sample in samples.items() if number > 1}
    return _fit(met, lone_slope=False) if met else None


def sync_seconds(sync: StepTime | None, num_trainers: int) -> float:
    """Return T_sync for a number of trainers; 0 for a single one, or when it is unknown."""
    return 0.0 if sync is None or num_trainers < 2 else sync(num_trainers)


def _fit(samples: Mapping[int, Sample], *, lone_slope: bool) -> StepTime:
    points = tuple(sorted(samples))
    if points[0] < 1:
        raise ValueError(f"numbers start at 1, got {points[0]}")
    weights = [float(min(samples[point].count, COUNT_LIMIT)) for point in points]
    values = _pooled([samples[point].recent_s for point in points], weights)
    slope_s = _slope(points, values, weights)
    if len(points) == 1 and lone_slope:
        slope_s = values[0] / points[0]
    return StepTime(points, tuple(values), slope_s)


def _pooled(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the nearest values that do not descend (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values, weights, strict=True):
        mean, total, length = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, before_weight, before_length = blocks.pop()
            mean = (mean * total + before * before_weight) / (total + before_weight)
            total += before_weight
            length += before_length
        blocks.append((mean, total, length))
    return [mean for mean, _, length in blocks for _ in range(length)]


def _slope(points: Sequence[int], values: Sequence[float], weights: Sequence[float]) -> float:
    """Fit a + b*v by weighted least squares of the relative errors, a and b not negative."""
    relative = [weight / value**2 for weight, value in zip(weights, values, strict=True)]
    total = sum(relative)
    middle = sum(w * point for w, point in zip(relative, points, strict=True)) / total
    height = sum(w * value for w, value in zip(relative, values, strict=True)) / total
    spread = sum(w * (point - middle) ** 2 for w, point in zip(relative, points, strict=True))
    if spread == 0.0:
        return 0.0
    rows = zip(relative, points, values, strict=True)
    slope = sum(w * (point - middle) * (value - height) for w, point, value in rows) / spread
    if height >= slope * middle:
        return max(slope, 0.0)  # values do not descend, so neither does the line
    squares = sum(w * point**2 for w, point in zip(relative, points, strict=True))
    products = sum(w * p * v for w, p, v in zip(relative, points, values, strict=True))
    return products / squares
