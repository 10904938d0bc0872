"""What it costs that a job ends late: its weight a second, and more once it fares unfairly.

Finish-time fairness (Themis, NSDI 2020) is rho = completion time / completion time alone on the
job's share of the cluster, one n-th for n jobs, by weight, on average over its life. A second later
costs the weight of the job as long as rho is below `FAIR`, and (rho / FAIR)^STEEPNESS times as much
above, without bound: whatever else there is to do, nobody is late for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controlplane.core.policies.goodput_fair.options import Floats, Options
from controlplane.core.types import Job, JobId, Snapshot

#: From here on lateness costs more: below the bound of 1.5, as forecasts err.
FAIR = 1.2

#: How much more; at 1.5 it is 2.4 times as much.
STEEPNESS = 4.0

#: A job that has waited this long without a break counts twice, after twice that three times.
AGEING_S = 1800.0


@dataclass(frozen=True)
class Crowds:
    """How crowded it has been, carried from decision to decision.

    Attributes:
        at: when it was last added up.
        areas: job -> (since when, weight-seconds of all jobs in the system since then).
    """

    at: float
    areas: Mapping[JobId, tuple[float, float]]


def crowds_of(snapshot: Snapshot) -> Crowds:
    """Add up the weights in the system up to now; who was never counted starts here."""
    before = snapshot.carried.crowds if isinstance(snapshot.carried, Carried) else None
    total = sum(job.weight for job in snapshot.jobs)
    areas: dict[JobId, tuple[float, float]] = {}
    for job in snapshot.jobs:
        known = before.areas.get(job.id) if before is not None else None
        if before is None or known is None:
            areas[job.id] = (snapshot.now, 0.0)
        else:
            areas[job.id] = (known[0], known[1] + total * max(snapshot.now - before.at, 0.0))
    return Crowds(snapshot.now, areas)


@dataclass(frozen=True)
class Carried:
    """What one decision of this policy leaves to the next."""

    crowds: Crowds


@dataclass(frozen=True)
class Standing:
    """The cost of the ends of M jobs, a function of when they end. All of shape (M,).

    Attributes:
        weights: cost of a second in time, aged.
        ages_s: seconds since submission.
        fair_s: completion time alone on the job's share.
    """

    weights: Floats
    ages_s: Floats
    fair_s: Floats

    def fairness(self, ends_s: Floats) -> Floats:
        """Give the finish-time fairness of jobs that end so many seconds from now."""
        rho: Floats = (self.ages_s + ends_s) / self.fair_s
        return rho

    def slope(self, ends_s: Floats) -> Floats:
        """Give what another second costs each of them."""
        late = np.maximum(self.fairness(ends_s) / FAIR, 1.0)
        slope: Floats = self.weights * np.minimum(late, 1e3) ** STEEPNESS
        return slope

    def cost(self, ends_s: Floats) -> float:
        """Give what their ends cost together."""
        late = np.clip(self.fairness(ends_s) / FAIR, 1.0, 1e3)
        extra = FAIR * self.fair_s * ((late ** (STEEPNESS + 1.0) - 1.0) / (STEEPNESS + 1.0))
        in_time = np.minimum(ends_s, FAIR * self.fair_s - self.ages_s)
        return float(self.weights @ (in_time + extra))


def standing_of(snapshot: Snapshot, options: Options, crowds: Crowds) -> Standing:
    """Work out where each job of the options stands."""
    jobs = options.jobs
    total = sum(job.weight for job in snapshot.jobs)
    now = snapshot.now
    fair = [_fair_s(options, row, _crowd(crowds, job, total, now)) for row, job in enumerate(jobs)]
    weights = [
        job.weight * _ageing(job, now, options.held[row] > 0) for row, job in enumerate(jobs)
    ]
    ages = [max(now - job.submitted_at, 0.0) for job in jobs]
    return Standing(np.array(weights), np.array(ages), np.array(fair))


def _ageing(job: Job, now: float, is_held: bool) -> float:
    return 1.0 if is_held else 1.0 + job.waited_s(now) / AGEING_S


def _crowd(crowds: Crowds, job: Job, total: float, now: float) -> float:
    """Give the average weight in the system over a job's life, relative to the job's."""
    since, area = crowds.areas[job.id]
    seen_s = now - since
    mean = area / seen_s if seen_s > 0.0 else total
    return max(mean / job.weight, 1.0)


def _fair_s(options: Options, row: int, crowd: float) -> float:
    """Give how long a job would have taken in all alone on 1/`crowd` of the cluster."""
    job = options.jobs[row]
    rates = []
    for kind, capacity in enumerate(options.capacity):
        counts = options.counts[row, kind]
        speeds = np.maximum.accumulate(options.rates[row, kind])
        share = capacity / crowd
        if share < job.min_accelerators:
            least = speeds[np.searchsorted(counts, job.min_accelerators).clip(max=speeds.size - 1)]
            rates.append(float(least) * share / job.min_accelerators)
        else:
            rates.append(float(np.interp(share, counts, speeds)))
    rate = max(sum(rates), 1e-12)
    done = job.done_examples if job.performance is not None else 0.0
    return max((float(options.work[row]) + done) / rate, 1.0)
