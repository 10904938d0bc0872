"""Forecast of how the jobs of one kind finish if no further job arrives.

The model is a fluid: counts may be fractions, resizes cost nothing. In every stage, from one end of
a job to the next, accelerators go where they add most worth, `worth` * marginal rate. The price of
a stage is the worth that the last accelerator adds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.core.policies.goodput_fair.envelopes import Envelopes
from controlplane.core.policies.goodput_fair.rate_tables import Counts, Floats

#: A forecast has at most this many stages; with more jobs, several end in each.
MOST_STAGES = 48


@dataclass(frozen=True)
class Forecast:
    """Forecast of N jobs of one kind.

    Attributes:
        ends_s: seconds until each job ends; infinite: never. Shape (N,).
        stages_s, prices: when each stage begins, and its price (weight per accelerator).
    """

    ends_s: Floats
    stages_s: Floats
    prices: Floats

    def price_at(self, after_s: Floats) -> Floats:
        """Return the price just before the given times (seconds from now)."""
        if self.prices.size == 0:
            return np.zeros_like(after_s)
        stage = np.searchsorted(self.stages_s, after_s, side="left") - 1
        price: Floats = self.prices[np.clip(stage, 0, self.prices.size - 1)]
        return price


class Fluid:
    """The segments of the envelopes of N jobs, ready to be forecast with different worths."""

    def __init__(self, envelopes: Envelopes, work: Floats, capacity: int) -> None:
        runs = np.diff(envelopes.counts, axis=1)
        is_step = runs > 0
        self._rows = np.nonzero(is_step)[0]
        self._runs = runs[is_step]
        self._slopes = np.diff(envelopes.values, axis=1)[is_step] / self._runs
        self._work, self._capacity = work, float(capacity)
        self._most_served = capacity + 1

    def clear(self, worth: Floats) -> tuple[float, float, float]:
        """Return the worth per second of all jobs now, and two prices of an accelerator.

        Another job would displace the last accelerator's gain, the first price; a job that leaves
        makes room for the best gain that is not served, the second and lower one.
        """
        gain = worth[self._rows] * self._slopes
        order = _best_first(gain, self._most_served)
        gain, runs = gain[order], self._runs[order]
        given, is_more = self._given(runs)
        last, total = given.size - 1, float(given @ gain[: given.size])
        if not is_more and runs.sum() < self._capacity:
            return total, 0.0, 0.0
        is_cut = is_more and given[last] < runs[last]
        following = float(gain[last + 1]) if is_more and not is_cut else 0.0
        return total, float(gain[last]), float(gain[last]) if is_cut else following

    def _given(self, runs: Floats) -> tuple[Floats, bool]:
        """Serve segments in order, and return whether they exceed the capacity.

        Returns the amount of each segment, up to the last one served. As a segment is at least one
        accelerator, the first `capacity` + 1 segments suffice.
        """
        total = runs[: self._most_served].cumsum()
        num_whole = int(total.searchsorted(self._capacity))
        given = runs[: num_whole + 1].copy()
        if num_whole == total.size:
            return given, False
        given[-1] -= total[num_whole] - self._capacity
        return given, bool(total[-1] > self._capacity)

    def forecast(self, worth: Floats) -> Forecast:
        """Forecast with accelerators allotted by `worth`: (N,), weight-seconds per example."""
        gain = worth[self._rows] * self._slopes
        order = np.argsort(-gain, kind="stable")
        gain, rows = gain[order], self._rows[order]
        runs, slopes = self._runs[order], self._slopes[order]
        num = self._work.size
        left = self._work.copy()
        ends = np.full(num, np.inf)
        takes = np.empty(num)
        is_alive = np.zeros(num, dtype=bool)
        is_alive[rows] = True
        num_alive = int(np.count_nonzero(is_alive))
        stages: list[float] = []
        prices: list[float] = []
        now = 0.0
        for stages_left in range(MOST_STAGES, 0, -1):
            given, is_full = self._given(runs)
            served = slice(given.size)
            speed = np.bincount(rows[served], given * slopes[served], num)
            stages.append(now)
            prices.append(float(gain[given.size - 1]) if is_full else 0.0)
            is_running = speed > 0.0
            num_running = int(np.count_nonzero(is_running))
            if num_running == 0:
                break
            takes.fill(np.inf)
            np.divide(left, speed, out=takes, where=is_running)
            last = min(-(-num_alive // stages_left), num_running) - 1
            takes_last = float(np.partition(takes, last)[last])
            is_ending = is_running & (takes <= takes_last * (1.0 + 1e-9))
            np.add(takes, now, out=ends, where=is_ending)
            is_alive ^= is_ending
            num_alive -= int(np.count_nonzero(is_ending))
            if num_alive == 0:
                break
            left -= speed * takes_last
            now += takes_last
            on = np.flatnonzero(is_alive[rows])
            gain, rows, runs, slopes = gain[on], rows[on], runs[on], slopes[on]
        return Forecast(ends, np.array(stages), np.array(prices))


def _best_first(gain: Floats, most: int) -> Counts:
    """Return the indices of at least the `most` highest, descending; ties keep their order."""
    if gain.size <= most:
        return np.argsort(-gain, kind="stable")
    best = np.flatnonzero(gain >= np.partition(gain, -most)[-most])
    return best[np.argsort(-gain[best], kind="stable")]
