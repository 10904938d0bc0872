"""A policy played forward: what holds its accelerators, and the snapshot after time has passed.

A play takes the decisions that the policy would take on the snapshots to come. Jobs progress at
their predicted speeds and end, no job arrives, changes take effect at once, nothing is lent, nodes
in maintenance are back at its end, and the forecast of a job's loss stays as it is. Remaining work
is an estimate, so a forecast makes two plays: one with less and one with more of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from controlplane.core.policies.common.rates import left_s
from controlplane.core.policies.common.user_shares import Policy
from controlplane.core.scheduling.cordons import cordon_split
from controlplane.core.scheduling.maintenance import maintenance_over
from controlplane.core.scheduling.placement import place
from controlplane.core.scheduling.plan import obeyed
from controlplane.core.scheduling.sweeps import sweeps_split
from controlplane.core.values.types import Job, JobId, Snapshot

#: Largest number of decisions of a forecast.
MOST_DECISIONS = 64

#: Factor by which work may take longer or shorter: twice the mean error of throughput models.
UNCERTAINTY = 1.2

#: A told range may stay while no bound has moved further beyond it than this share of the time
#: left, or than so many seconds.
_MOVE_SHARE, _MOVE_S = 0.1, 15.0


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Seconds until the earliest and the latest time of what is forecast."""

    earliest_s: float
    latest_s: float

    def after(self, passed_s: float) -> Self:
        """Return the same range as seen later; it may have begun already."""
        return replace(
            self, earliest_s=self.earliest_s - passed_s, latest_s=self.latest_s - passed_s
        )

    def confirms(self, told: TimeRange) -> bool:
        """Return whether a range told before may stay: this one is in it, and half as wide or more.

        A bound may be a little outside, and the width may shrink by a few seconds in any case.
        """
        width_s, told_width_s = (one.latest_s - one.earliest_s for one in (self, told))
        early_s, late_s = (
            max(_MOVE_S, _MOVE_SHARE * bound_s) for bound_s in (self.earliest_s, self.latest_s)
        )
        return (
            self.earliest_s >= told.earliest_s - early_s
            and self.latest_s <= told.latest_s + late_s
            and width_s >= min(told_width_s / 2.0, told_width_s - 2.0 * _MOVE_S)
        )


@dataclass(frozen=True, slots=True)
class Holding:
    """Accelerators of a job, of its own kind, and the seconds until it ends with them."""

    kind: str
    count: int
    left_s: float | None


def work_scaled(snapshot: Snapshot, factor: float) -> Snapshot:
    """Multiply the remaining work of all jobs."""
    jobs = (
        job
        if job.remaining_examples is None
        else replace(job, remaining_examples=job.remaining_examples * factor)
        for job in snapshot.jobs
    )
    return replace(snapshot, jobs=tuple(jobs))


def decided(policy: Policy, snapshot: Snapshot) -> Snapshot:
    """Let a policy decide, and apply its decision."""
    split = cordon_split(sweeps_split(snapshot)[0])
    decision = policy(split.open)
    given = {**place(split.open, decision).accelerators, **split.staying}
    return obeyed(snapshot, given, decision.carried)


def holdings_of(snapshot: Snapshot, unknown_s: float | None) -> dict[JobId, Holding]:
    """Return what each job holds; the first accelerator is of its own kind.

    Args:
        unknown_s: seconds until the end of a job of known work and unknown speed; None: unknown.
    """
    by_id = {one.id: one for one in snapshot.accelerators}
    found: dict[JobId, Holding] = {}
    for job in snapshot.jobs:
        row = [by_id[one] for one in snapshot.held.get(job.id, ())]
        if row:
            kind = row[0].kind
            nodes = [one.node_id for one in row if one.kind == kind]
            seconds = left_s(job, kind, len(nodes), len(set(nodes)))
            if seconds is None and job.remaining_examples is not None:
                seconds = unknown_s
            found[job.id] = Holding(kind, len(nodes), seconds)
    return found


def later(snapshot: Snapshot, holdings: Mapping[JobId, Holding], after_s: float) -> Snapshot:
    """Let time pass: jobs end that have no work left, others progress, maintenance ends."""
    jobs = []
    for job in snapshot.jobs:
        holding = holdings.get(job.id)
        if holding is None:
            jobs.append(job)
        elif holding.left_s is None or holding.left_s > after_s * (1.0 + 1e-9):
            jobs.append(_progressed(job, holding, after_s))
    return maintenance_over(replace(snapshot, now=snapshot.now + after_s, jobs=tuple(jobs)))


def _progressed(job: Job, holding: Holding, after_s: float) -> Job:
    attained = job.attained_accelerator_s + holding.count * after_s
    if holding.left_s is None or job.remaining_examples is None:
        return replace(job, attained_accelerator_s=attained)
    done = job.remaining_examples * after_s / holding.left_s
    return replace(
        job,
        attained_accelerator_s=attained,
        remaining_examples=job.remaining_examples - done,
        done_examples=job.done_examples + done,
    )
