"""Sia: one configuration for each job by an integer program (SOSP 2023).

Each job's goodput on a configuration is divided by its goodput on its worst one, times its least
number of accelerators, which makes jobs and kinds comparable: G. What a resize costs makes every
other configuration than the present one worse by (T - N*S)/(T + S), with T the age of the job, N
its resizes and S the seconds that one costs. Then the sum over jobs of weight * G**p is minimised,
p = -0.5, where a job that is left out counts 1.1, within the accelerators of each kind.

Differences from the paper: weights, and a decision whenever it is asked for instead of every 60 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array

from controlplane.core.policies.kinds import cannot_start
from controlplane.core.policies.pollux import keep_factor
from controlplane.core.policies.rates import Floats, rooms_of
from controlplane.core.policies.sia_configurations import (
    Configuration,
    Kind,
    configurations_of,
    counts_of,
    goodputs_of,
)
from controlplane.core.pools import arrival_order, held_by_kind, held_kind
from controlplane.core.types import Decision, Job, JobId, Share, Snapshot

#: The exponent: the more negative, the fairer.
FAIRNESS_POWER = -0.5

#: What leaving a job out counts, where its worst configuration counts 1.
LEFT_OUT = 1.1

#: What is left of a configuration's goodput at least, however many resizes there were.
LEAST_KEEP = 0.01

#: The program may be off by this share of its value; and after so many seconds, which only very
#: large clusters on slow machines need, its linear relaxation is rounded instead.
GAP = 1e-4
TIME_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Choice:
    """One job on one configuration.

    Attributes:
        row: of the job in the program.
        utility: G, with what a resize costs.
        cost: weight * G**p, to be minimised.
    """

    row: int
    configuration: Configuration
    goodput: float
    utility: float
    cost: float


def sia(snapshot: Snapshot) -> Decision:
    """Choose the configurations that minimise the sum of all jobs' inverse square root goodputs."""
    kinds = {
        name: Kind(name, tuple(sorted(rooms_of(snapshot, name).values(), reverse=True)))
        for name in sorted({one.kind for one in snapshot.accelerators})
    }
    jobs = arrival_order(snapshot.jobs)
    current = _current(snapshot, kinds)
    choices = _choices(jobs, kinds, current, snapshot.now)
    capacity = {name: kind.capacity for name, kind in kinds.items()}
    chosen = choose(choices, [job.weight for job in jobs], capacity)
    shares = {
        jobs[choice.row].id: Share(choice.configuration.kind, choice.configuration.count)
        for choice in chosen
    }
    return Decision(shares, _explain(snapshot, jobs, choices, chosen, current, capacity))


def _current(snapshot: Snapshot, kinds: Mapping[str, Kind]) -> dict[JobId, Configuration]:
    """Name the configuration that each job has, by its count: places are not Sia's to choose."""
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
) -> list[Choice]:
    counts = {name: counts_of(kind) for name, kind in kinds.items()}
    choices: list[Choice] = []
    for row, job in enumerate(jobs):
        configurations = [
            one
            for name, kind in kinds.items()
            for one in configurations_of(job, kind, counts[name])
        ]
        goodputs = goodputs_of(job, configurations, kinds)
        if not (goodputs > 0.0).any():
            goodputs = np.array([float(one.count) for one in configurations])
        worst = goodputs[goodputs > 0.0].min(initial=np.inf)
        keep = max(keep_factor(job, now), LEAST_KEEP)
        own = current.get(job.id)
        for configuration, goodput in zip(configurations, goodputs, strict=True):
            if goodput <= 0.0:
                continue
            utility = job.min_accelerators * float(goodput) / worst
            if own is not None and configuration != own:
                utility *= keep
            cost = job.weight * utility**FAIRNESS_POWER
            choices.append(Choice(row, configuration, float(goodput), utility, cost))
    return choices


def choose(
    choices: Sequence[Choice], weights: Sequence[float], capacity: Mapping[str, int]
) -> list[Choice]:
    """Solve the program: at most one choice for each row, within the capacity of each kind."""
    if not choices:
        return []
    gains = np.array([choice.cost - LEFT_OUT * weights[choice.row] for choice in choices])
    matrix, limits = _constraints(choices, capacity)
    found = milp(
        gains,
        integrality=np.ones(len(choices)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, -np.inf, limits),
        options={"time_limit": TIME_LIMIT_S, "mip_rel_gap": GAP},
    )
    if found.status == 0:
        return [choices[int(i)] for i in np.nonzero(found.x > 0.5)[0]]
    return round_relaxed(choices, gains, capacity)


def _constraints(
    choices: Sequence[Choice], capacity: Mapping[str, int]
) -> tuple[csr_array, Floats]:
    """Write down one constraint for each row, then one for each kind."""
    row_numbers = {row: i for i, row in enumerate(dict.fromkeys(c.row for c in choices))}
    kind_numbers = {kind: len(row_numbers) + i for i, kind in enumerate(capacity)}
    columns = np.arange(len(choices))
    matrix = csr_array(
        (
            np.concatenate([np.ones(len(choices)), [c.configuration.count for c in choices]]),
            (
                np.concatenate(
                    [
                        [row_numbers[c.row] for c in choices],
                        [kind_numbers[c.configuration.kind] for c in choices],
                    ]
                ),
                np.concatenate([columns, columns]),
            ),
        ),
        shape=(len(row_numbers) + len(kind_numbers), len(choices)),
    )
    limits = np.array([*np.ones(len(row_numbers)), *capacity.values()], dtype=float)
    return matrix, limits


def round_relaxed(
    choices: Sequence[Choice], gains: Floats, capacity: Mapping[str, int]
) -> list[Choice]:
    """Round the linear relaxation, in which all but a few jobs have a whole choice already.

    The largest fractions first, then whatever gains most and still fits.
    """
    matrix, limits = _constraints(choices, capacity)
    found = linprog(gains, A_ub=matrix, b_ub=limits, bounds=(0, 1), method="highs")
    fractions = np.zeros(len(choices)) if found.x is None else np.round(found.x, 6)
    order = np.lexsort((np.arange(len(choices)), gains, -fractions))
    free = dict(capacity)
    chosen: dict[int, Choice] = {}
    for i in order:
        choice = choices[i]
        configuration = choice.configuration
        is_worth = fractions[i] > 0.0 or gains[i] < 0.0
        if (
            choice.row not in chosen
            and is_worth
            and configuration.count <= free[configuration.kind]
        ):
            chosen[choice.row] = choice
            free[configuration.kind] -= configuration.count
    return list(chosen.values())


def _explain(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    choices: Sequence[Choice],
    chosen: Sequence[Choice],
    current: Mapping[JobId, Configuration],
    capacity: Mapping[str, int],
) -> dict[JobId, str]:
    given = {choice.row: choice for choice in chosen}
    options: dict[int, list[Choice]] = {}
    for choice in choices:
        options.setdefault(choice.row, []).append(choice)
    used = dict.fromkeys(capacity, 0)
    for choice in chosen:
        used[choice.configuration.kind] += choice.configuration.count
    reasons: dict[JobId, str] = {}
    for row, job in enumerate(jobs):
        if row not in options:
            reasons[job.id] = cannot_start(snapshot, job)
        elif row in given:
            reasons[job.id] = _given_text(job, given[row], options[row], current, capacity)
        else:
            least = min(options[row], key=lambda choice: choice.configuration.count).configuration
            reasons[job.id] = (
                f"Waits for {least.count} of kind {least.kind}: {used[least.kind]} of "
                f"{capacity[least.kind]} are given to {len(chosen)} jobs to which they are worth "
                f"more than starting it at weight {job.weight:g}."
            )
    return reasons


def _given_text(
    job: Job,
    choice: Choice,
    options: Sequence[Choice],
    current: Mapping[JobId, Configuration],
    capacity: Mapping[str, int],
) -> str:
    configuration, own = choice.configuration, current.get(job.id)
    best = max(options, key=lambda option: (option.goodput, -option.configuration.count))
    unit = "useful examples/s" if job.performance is not None else "accelerators"
    change = "Gets"
    if own is not None and own.kind != configuration.kind:
        change = f"Moves from {own.count} {own.kind} to"
    elif own is not None and own.count != configuration.count:
        change = f"Goes {own.count}→{configuration.count}:"
    elif own is not None:
        change = "Keeps"
    return (
        f"{change} {configuration.count} of {capacity[configuration.kind]} {configuration.kind} "
        f"with {choice.goodput:.3g} {unit}; the best of its {len(options)} configurations, "
        f"{best.configuration.count} {best.configuration.kind}, would give {best.goodput:.3g}."
    )
