"""Worth of a useful example of each job that minimises the total cost of all completion times.

Minimise the sum of cost_j(T_j) over all ways to share the accelerators. By Pontryagin's principle
each job has one number u_j, constant over its life: at every moment the accelerators go where
u_j * rate_j rises most, which yields a price p(t) of an accelerator; and a job ends when

    u_j = min over its counts n of (cost_j'(T_j) + p(T_j) * n) / rate_j(n).

With one power law for the speed of all jobs that is heSRPT (Berg et al., SIGMETRICS 2020): without
gain from more accelerators all are alike, with proportional gain it is shortest first. Here speeds
differ, so the u_j are iterated: forecast the ends, take the prices there, repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.core.policies.goodput_fair.envelopes import Envelopes, envelopes_of
from controlplane.core.policies.goodput_fair.fairness_cost import FairnessCost
from controlplane.core.policies.goodput_fair.forecast import Fluid, Forecast
from controlplane.core.policies.goodput_fair.rate_tables import Counts, Floats, Options

#: Forecasts in a decision (the least costly one is used), fewer beyond `MANY_JOBS` jobs, whose
#: ends are less sharp.
NUM_FORECASTS, NUM_FORECASTS_OF_MANY, MANY_JOBS = 8, 4, 256

#: Seconds that stand for an end that cannot be forecast.
FOREVER_S = 1e9


@dataclass(frozen=True)
class Valuation:
    """Worths, and the forecast that results from them.

    Attributes:
        worth: weight-seconds of an example of each job. Shape (M,).
        ends_s: forecast seconds until each job ends. Shape (M,).
    """

    worth: Floats
    ends_s: Floats


class Market:
    """M jobs and the concave envelopes of their rates on each of Q kinds.

    Attributes:
        counts, rates: vertices of the envelopes. Shape (M, Q, H).
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        num, num_kinds, _ = options.counts.shape
        found = envelopes_of(
            options.counts.reshape(num * num_kinds, -1), options.rates.reshape(num * num_kinds, -1)
        )
        self.counts = found.counts.reshape(num, num_kinds, -1)
        self.rates = found.values.reshape(num, num_kinds, -1)

    def valuate(self, kinds: Counts, standing: FairnessCost) -> Valuation:
        """Compute worths for jobs on the given kinds (shape (M,); -1: the job cannot run)."""
        rows = [np.flatnonzero(kinds == kind) for kind in range(len(self.options.kinds))]
        fluids = [self._fluid(members, kind) for kind, members in enumerate(rows)]
        worth = self._first_worth(standing)
        best, least = None, np.inf
        is_many = self.options.work.size > MANY_JOBS
        for _ in range(NUM_FORECASTS_OF_MANY if is_many else NUM_FORECASTS):
            found = [
                fluid.forecast(worth[members]) for fluid, members in zip(fluids, rows, strict=True)
            ]
            valuation = _gather(worth, rows, found)
            cost = float(standing.costs(valuation.ends_s).sum())
            if best is None or cost < least * (1.0 - 1e-9):
                best, least = valuation, cost
            worth = np.sqrt(worth * self._last_worth(standing, valuation.ends_s, found))
        assert best is not None
        return best

    def clear(self, kinds: Counts, worth: Floats, kind: int) -> tuple[float, float, float]:
        """Return `Fluid.clear` of one kind, for all jobs on their `kinds`."""
        members = np.flatnonzero(kinds == kind)
        return self._fluid(members, kind).clear(worth[members])

    def _fluid(self, members: Counts, kind: int) -> Fluid:
        envelopes = Envelopes(self.counts[members, kind], self.rates[members, kind])
        return Fluid(envelopes, self.options.work[members], int(self.options.capacity[kind]))

    def _first_worth(self, standing: FairnessCost) -> Floats:
        """Initialise worths between shortest first and equal shares: 1 / root of the time left."""
        num = self.options.work.size
        first = self.counts[:, :, 1:2] if self.counts.shape[2] > 1 else np.ones((num, 1, 1))
        rate = self.rates[:, :, 1:2] if self.counts.shape[2] > 1 else np.ones((num, 1, 1))
        single = (rate / np.maximum(first, 1.0)).max(axis=(1, 2), initial=1e-12)
        left_s = self.options.work / single
        longest = float(left_s.max(initial=1.0))
        fastest = np.maximum(self.rates.max(axis=(1, 2), initial=0.0), 1e-12)
        scale = float(np.median(single / fastest)) if num else 1.0
        worth: Floats = standing.weights / single * np.sqrt(longest / left_s) * scale
        return worth

    def _last_worth(
        self, standing: FairnessCost, ends_s: Floats, forecasts: Sequence[Forecast]
    ) -> Floats:
        """Return the worth that each job has at its end by a forecast. Shape (M,)."""
        prices = np.stack([forecast.price_at(ends_s) for forecast in forecasts], axis=1)
        costs = standing.slope(ends_s)[:, None, None] + prices[:, :, None] * self.counts
        each = np.full(costs.shape, np.inf)
        np.divide(costs, self.rates, out=each, where=self.rates > 0.0)
        least: Floats = each.min(axis=(1, 2), initial=np.inf)
        return np.where(np.isfinite(least), least, 0.0)


def _gather(worth: Floats, rows: Sequence[Counts], forecasts: Sequence[Forecast]) -> Valuation:
    ends = np.full(worth.size, FOREVER_S)
    for members, forecast in zip(rows, forecasts, strict=True):
        ends[members] = np.minimum(forecast.ends_s, FOREVER_S)
    return Valuation(worth, ends)
