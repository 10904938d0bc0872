"""Finish-time fairness: a job's completion time relative to its fair share (Themis, Sia).

rho = completion time / completion time alone on the job's share of the cluster. The share is 1/n
of it, where n is the average number of jobs that were in the system during the job's life, each
counted by its weight relative to the job's. Above 1 a job would have been better off alone.

Alone, the job runs on the same system: it has to start once, too, and is never resized. So at best
rho is below 1 by the gain from more accelerators than its share, and the start is in both times. A
fractional share is interpolated; below the job's minimum it gets its minimum for that part of the
time. Of several kinds it gets each for that kind's part of the time, and at most all of the kind.
The batch follows the same rule as in the simulation, at true speed, packed.
"""

from __future__ import annotations

import math

import numpy as np

from controlplane.simulator.applications.step_times import Floats
from controlplane.simulator.engine.jobs import SimulatedJob
from controlplane.simulator.workloads.workloads import Cluster


def crowding(jobs: list[SimulatedJob], ended_at: dict[int, float]) -> dict[int, float]:
    """Return for each job the average over its life of the weights in the system over its own."""
    starts = np.array([job.spec.submitted_at for job in jobs])
    ends = np.array([ended_at[job.id] for job in jobs])
    weights = np.array([job.spec.weight for job in jobs])
    times = np.unique(np.concatenate([starts, ends]))
    changes = np.zeros(times.size)
    np.add.at(changes, np.searchsorted(times, starts), weights)
    np.add.at(changes, np.searchsorted(times, ends), -weights)
    # Integral of the weight in the system from the first moment to each.
    area = np.concatenate([[0.0], np.cumsum(np.cumsum(changes)[:-1] * np.diff(times))])
    lives = np.maximum(ends - starts, 1e-9)
    mean = (np.interp(ends, times, area) - np.interp(starts, times, area)) / lives
    return {job.id: max(float(mean[i] / weights[i]), 1.0) for i, job in enumerate(jobs)}


def alone_s(job: SimulatedJob, cluster: Cluster, share: float) -> float:
    """Return the seconds that a job takes alone on `share` accelerators, its start included."""
    kinds = {k: n for k, n in cluster.kinds.items() if job.accepts(k)}
    total, per_node = sum(kinds.values()), cluster.per_node
    ends = job.application.progress_ends
    seconds = job.terms.costs.start_s
    for epoch in range(len(ends) - 1):
        rate = sum(
            number / total * _rate(job, kind, per_node[kind], min(share, number), epoch)
            for kind, number in kinds.items()
        )
        if rate <= 0.0:
            return math.inf
        seconds += (ends[epoch + 1] - ends[epoch]) / rate
    return seconds


def _rate(job: SimulatedJob, kind: str, per_node: int, share: float, epoch: int) -> float:
    least, most = job.bounds
    paces: Floats = job.application.packed_paces(kind, most, per_node, job.batch_size_asked, epoch)
    # Accelerators beyond the fastest count are not used.
    paces = np.maximum.accumulate(paces[least:])
    if share < least:
        return float(paces[0]) * share / least
    return float(np.interp(min(share, most), np.arange(least, most + 1), paces))
