"""Cost of a job's completion time: its weight per second, and more once the job fares unfairly.

Finish-time fairness (Themis, NSDI 2020) is rho = completion time / completion time alone on the
job's share of the cluster, by claims of users (`Job.share_weight`), on average over its life. A
second later costs the weight of the job as long as rho is below `FAIR`, and
(rho / FAIR)^STEEPNESS times as much above, without bound, so that no job is late for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from controlplane.core.policies.goodput_fair.rate_tables import Floats, Options
from controlplane.core.values.types import Job, JobId, Snapshot

#: Value of rho above which lateness costs more: below the bound of 1.5, as forecasts err.
FAIR = 1.2

#: Exponent of the extra cost; at rho = 1.5 a second costs 2.4 times as much.
STEEPNESS = 4.0

#: Seconds that a start from nothing takes, or as long as a change if that is more.
START_S = 10.0

#: Seconds until a job that gets nothing in this cycle is likely to be considered again.
STARVATION_HORIZON_S = 30.0

#: A job that has lacked accelerators for its fair time, or for so many seconds if that is more,
#: counts four times, after twice that nine times. In absolute time, long jobs in a crowd would
#: overtake each other every few minutes.
AGEING_S = 600.0

#: This part of every pool, or one job, goes by seniority to jobs that have lacked accelerators for
#: long.
SENIOR_PART = 0.25


@dataclass(frozen=True)
class ContentionHistory:
    """Weight of the jobs in the system over time, carried from decision to decision.

    Attributes:
        at: time of the last update.
        areas: job -> (start of its record, weight-seconds of all jobs in the system since then, on
            the scale on which the job's own claim is its weight).
    """

    at: float
    areas: Mapping[JobId, tuple[float, float]]

    def joined(self, other: ContentionHistory, jobs: Collection[JobId]) -> ContentionHistory:
        """Return the history with the records that another one has of `jobs`."""
        known = {one: other.areas[one] for one in jobs if one in other.areas}
        return replace(self, areas={**known, **self.areas})


def crowds_of(snapshot: Snapshot) -> ContentionHistory:
    """Add up the claims in the system up to now; the record of a new job starts here."""
    before = snapshot.carried if isinstance(snapshot.carried, ContentionHistory) else None
    total = sum(job.share_weight for job in snapshot.jobs)
    areas: dict[JobId, tuple[float, float]] = {}
    for job in snapshot.jobs:
        known = before.areas.get(job.id) if before is not None else None
        if before is None or known is None:
            areas[job.id] = (snapshot.now, 0.0)
        else:
            passed_s = max(snapshot.now - before.at, 0.0)
            areas[job.id] = (known[0], known[1] + total / job.share_part * passed_s)
    return ContentionHistory(snapshot.now, areas)


@dataclass(frozen=True)
class FairnessCost:
    """Fairness cost of M jobs as a function of their completion times. Arrays of shape (M,).

    Attributes:
        weights: cost of a second as long as a job is in time, aged.
        ages_s: seconds since submission; for jobs that hold nothing, by their next chance.
        fair_s: completion time alone on the job's share.
        lacking_s: seconds for which each job has lacked accelerators.
        since_s: seconds since each job's last change; infinite before the first one.
    """

    weights: Floats
    ages_s: Floats
    fair_s: Floats
    lacking_s: Floats
    since_s: Floats

    def fairness(self, ends_s: Floats) -> Floats:
        """Return the finish-time fairness of jobs that end so many seconds from now."""
        rho: Floats = (self.ages_s + ends_s) / self.fair_s
        return rho

    def slope(self, ends_s: Floats) -> Floats:
        """Return the cost of one more second for each job."""
        late = np.maximum(self.fairness(ends_s) / FAIR, 1.0)
        slope: Floats = self.weights * np.minimum(late, 1e3) ** STEEPNESS
        return slope

    def costs(self, ends_s: Floats) -> Floats:
        """Return the cost of each job's completion time."""
        late = np.clip(self.fairness(ends_s) / FAIR, 1.0, 1e3)
        extra = FAIR * self.fair_s * ((late ** (STEEPNESS + 1.0) - 1.0) / (STEEPNESS + 1.0))
        in_time = np.minimum(ends_s, FAIR * self.fair_s - self.ages_s)
        costs: Floats = self.weights * (in_time + extra)
        return costs


def standing_of(snapshot: Snapshot, options: Options, crowds: ContentionHistory) -> FairnessCost:
    """Compute the fairness cost of each job of the options."""
    jobs = options.jobs
    total = sum(job.share_weight for job in snapshot.jobs)
    now = snapshot.now
    crowd = np.array([_crowd(crowds, job, total, now) for job in jobs])
    lacking = _lacking_s(options, now)
    fair_s = _fair_s(options, crowd)
    ageing = lacking / np.maximum(fair_s, AGEING_S)
    weights = np.array([job.weight for job in jobs]) * (1.0 + ageing) ** 2
    ages = [
        max(now - job.submitted_at, 0.0)
        + (0.0 if options.held[row] else STARVATION_HORIZON_S + job.resize_s)
        for row, job in enumerate(jobs)
    ]
    changed = [job.running_since if job.changed_at is None else job.changed_at for job in jobs]
    since = np.array([np.inf if at is None else now - at for at in changed])
    return FairnessCost(weights, np.array(ages), fair_s, lacking, since)


def _lacking_s(options: Options, now: float) -> Floats:
    """Return for how long each job has lacked accelerators, at least 0. Shape (M,).

    That is the job's waiting time, or its age less the time for which the accelerator-seconds
    received would have kept its minimum busy; a minimum beyond the part of a pool that goes by
    seniority counts the more. So a job that was late to start is not stopped right away.
    """
    jobs = options.jobs
    pool = np.where(options.counts[:, :, -1] > 0, options.capacity, 0).max(axis=1)
    least = np.array([job.min_accelerators for job in jobs])
    had_s = np.array([job.attained_accelerator_s for job in jobs])
    ages_s = now - np.array([job.submitted_at for job in jobs])
    waited_s = np.array([job.waited_s(now) for job in jobs])
    lacking = ages_s - had_s / np.minimum(least, SENIOR_PART * pool)
    found: Floats = np.where(options.held > 0, lacking, np.maximum(lacking, waited_s))
    return np.maximum(found, 0.0)


def _crowd(crowds: ContentionHistory, job: Job, total: float, now: float) -> float:
    """Return the average of all claims over a job's life, relative to the job's."""
    since, area = crowds.areas[job.id]
    seen_s = now - since
    mean = area / seen_s if seen_s > 0.0 else total / job.share_part
    return max(mean / job.weight, 1.0)


def _fair_s(options: Options, crowd: Floats) -> Floats:
    """Return each job's completion time alone on 1/`crowd` of the cluster. Shape (M,).

    The job starts once and spends on each kind that kind's part of the time.
    """
    least = np.array([job.min_accelerators for job in options.jobs], dtype=float)
    sizes = np.where(options.counts[:, :, -1] > 0, options.capacity, 0).astype(float)
    total = np.maximum(sizes.sum(axis=1), 1.0)
    share = total / crowd
    speed = np.zeros(crowd.size)
    for kind in range(len(options.kinds)):
        rates = _interpolated(options, kind, np.maximum(share, least))
        speed += sizes[:, kind] / total * rates * np.minimum(share / least, 1.0)
    done = [job.done_examples if job.performance is not None else 0.0 for job in options.jobs]
    alone_s = (options.work + np.array(done)) / np.maximum(speed, 1e-12)
    starts_s = np.array([max(job.resize_s, START_S) for job in options.jobs])
    fair: Floats = np.maximum(alone_s, 1.0) + starts_s
    return fair


def _interpolated(options: Options, kind: int, wanted: Floats) -> Floats:
    """Return each job's rate on so many accelerators of a kind, or on any fewer. Shape (M,)."""
    counts = options.counts[:, kind].astype(float)
    rates = np.maximum.accumulate(options.rates[:, kind], axis=1)
    above = np.minimum((counts <= wanted[:, None]).sum(axis=1), counts.shape[1] - 1)
    rows = np.arange(wanted.size)
    below = np.maximum(above - 1, 0)
    run = counts[rows, above] - counts[rows, below]
    part = np.clip((wanted - counts[rows, below]) / np.maximum(run, 1.0), 0.0, 1.0)
    found: Floats = rates[rows, below] + part * (rates[rows, above] - rates[rows, below])
    return np.where(run > 0.0, found, rates[rows, above])
