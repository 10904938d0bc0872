"""Sia: one configuration for each job by an integer program (SOSP 2023).

Each job's goodput on a configuration is divided by its goodput on its worst one and multiplied by
its minimum number of accelerators, which makes jobs and kinds comparable: G. The cost of a resize
multiplies every configuration other than the present one by (T - N*S)/(T + S), with T the age of
the job, N its number of resizes and S the seconds that one costs. Then the sum over jobs of
weight * G**p is minimised, p = -0.5, where a job that is left out counts 1.5, within the
accelerators of each kind.

Differences from the paper: weights; a decision on demand instead of every 60 s; and 1.5 instead of
1.1 for a job that is left out. With anything below 2 - 2**-0.5 = 1.29 a second accelerator for one
job is worth more than a first one for another, and short jobs wait for hours: 1.1 gives longer mean
completion times, too. For the same reason part of the 1.5 counts at the heaviest weight, whatever
the job's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from controlplane.core.policies.common.kinds import cannot_start
from controlplane.core.policies.common.rates import node_sizes, without_still_models
from controlplane.core.policies.pollux.policy import keep_factor
from controlplane.core.policies.sia.configurations import (
    Configuration,
    Kind,
    configurations_of,
    counts_of,
    goodputs_of,
)
from controlplane.core.policies.sia.explanations import (
    ProgramDecision,
    held_reason,
    waiting_reason,
)
from controlplane.core.policies.sia.program import (
    FAIRNESS_POWER,
    JobAssignment,
    choose,
    claim_weight,
)
from controlplane.core.scheduling.pools import (
    arrival_order,
    capacity_by_kind,
    held_by_kind,
    held_kind,
)
from controlplane.core.values.explanations import Reason
from controlplane.core.values.types import Decision, Job, JobId, Share, Snapshot

#: Least part of a configuration's goodput that resizes leave, however many there were.
LEAST_KEEP = 0.01

#: Largest such part, so that no job moves without gain where resizes are free.
MOST_KEEP = 0.99


def sia(snapshot: Snapshot) -> Decision:
    """Choose the configurations that minimise the sum of all jobs' inverse square root goodputs."""
    snapshot = without_still_models(snapshot)
    sizes, capacity = node_sizes(snapshot), capacity_by_kind(snapshot)
    kinds = {name: Kind(name, sizes[name], total) for name, total in capacity.items()}
    jobs = arrival_order(snapshot.jobs)
    current = _current(snapshot, kinds)
    choices = _choices(jobs, kinds, current, snapshot.now)
    chosen = choose(choices, [claim_weight(job) for job in jobs], capacity)
    shares = {
        jobs[choice.row].id: Share(choice.configuration.kind, choice.configuration.count)
        for choice in chosen
    }
    reasons = _explain(snapshot, jobs, kinds, choices, chosen, current)
    return Decision(shares, reasons)


def _current(snapshot: Snapshot, kinds: Mapping[str, Kind]) -> dict[JobId, Configuration]:
    """Return each job's configuration by its count, as Sia does not choose nodes."""
    current: dict[JobId, Configuration] = {}
    for job_id, counts in held_by_kind(snapshot).items():
        name = held_kind(counts)
        if name is not None:
            count = counts[name]
            current[job_id] = Configuration(name, count, -(-count // kinds[name].per_node))
    return current


def _choices(
    jobs: Sequence[Job],
    kinds: dict[str, Kind],
    current: Mapping[JobId, Configuration],
    now: float,
) -> list[JobAssignment]:
    counts = {name: counts_of(kind) for name, kind in kinds.items()}
    choices: list[JobAssignment] = []
    for row, job in enumerate(jobs):
        configurations = [
            one
            for name, kind in kinds.items()
            for one in configurations_of(job, kind, counts[name])
        ]
        own = current.get(job.id)
        if own is not None and own not in configurations and _may_stay(job, own):
            configurations.append(own)
        goodputs = goodputs_of(job, configurations, kinds)
        worst = goodputs[goodputs > 0.0].min(initial=np.inf)
        keep = min(max(keep_factor(job, now), LEAST_KEEP), MOST_KEEP)
        for configuration, goodput in zip(configurations, goodputs, strict=True):
            if goodput <= 0.0:
                continue
            utility = job.min_accelerators * float(goodput) / worst
            if own is not None and configuration != own:
                utility *= keep
            cost = claim_weight(job) * utility**FAIRNESS_POWER
            is_held = configuration == own
            choices.append(
                JobAssignment(row, configuration, float(goodput), utility, cost, is_held)
            )
    return choices


def _may_stay(job: Job, own: Configuration) -> bool:
    """Return whether what a job holds, of whatever count, is within its bounds."""
    is_within = job.min_accelerators <= own.count <= job.max_accelerators
    return is_within and job.accepts(own.kind)


def _explain(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    kinds: Mapping[str, Kind],
    choices: Sequence[JobAssignment],
    chosen: Sequence[JobAssignment],
    current: Mapping[JobId, Configuration],
) -> dict[JobId, Reason]:
    options: dict[int, list[JobAssignment]] = {}
    for choice in choices:
        options.setdefault(choice.row, []).append(choice)
    outcome = ProgramDecision(jobs, kinds, options, {one.row: one for one in chosen}, current)
    reasons: dict[JobId, Reason] = {}
    for row, job in enumerate(jobs):
        if row not in options:
            reasons[job.id] = cannot_start(snapshot, job)
        elif row in outcome.given:
            reasons[job.id] = held_reason(outcome, row)
        else:
            reasons[job.id] = waiting_reason(outcome, row)
    return reasons
