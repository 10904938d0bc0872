"""Pollux: the placement that maximises a mean of all jobs' speed-ups (OSDI 2021).

A job's speed-up is its goodput divided by its goodput on a fair share of the accelerators. The
nodes are part of the answer, because several nodes exchange gradients more slowly than one.
Every kind of accelerator is searched separately, as Pollux models only one kind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.core.policies.common.explanations import Holders, change, gainers
from controlplane.core.policies.common.kinds import cannot_start, idle_kinds, kinds_assign
from controlplane.core.policies.common.rates import (
    left_s,
    packed_rates,
    rate,
    rooms_by_kind,
    without_still_models,
)
from controlplane.core.policies.pollux.search import (
    Counts,
    Floats,
    Problem,
    fitness,
    packed_minima,
    repair,
    search,
    settle,
    speedups_of,
)
from controlplane.core.scheduling.pools import arrival_order, capacity_by_kind
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import Decision, Job, JobId, Share, Snapshot

#: Least relative gain of the cluster's fitness for a change: a random search keeps finding slight
#: improvements.
LEAST_GAIN = 0.001


@dataclass(frozen=True, slots=True)
class Population:
    """The best allocations of the last search, by count. Shape (states, jobs, nodes)."""

    jobs: tuple[JobId, ...]
    nodes: tuple[int, ...]
    states: tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class PolluxState:
    populations: Mapping[str, Population]

    def joined(self, _other: PolluxState, _jobs: Collection[JobId]) -> PolluxState:
        """Return the state: allocations of other jobs are of no use to a population."""
        return self


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The accelerators of one kind and the jobs that share them, in order of conflict."""

    kind: str
    nodes: tuple[int, ...]
    jobs: tuple[Job, ...]
    fair: int
    problem: Problem


def pollux(snapshot: Snapshot) -> Decision:
    """Search for the places that maximise the harmonic mean of all jobs' speedups."""
    snapshot = without_still_models(snapshot)
    kinds = kinds_assign(snapshot)
    decision = _decided(snapshot, kinds)
    idle = Counter(capacity_by_kind(snapshot))
    for share in decision.shares.values():
        idle[share.kind] -= share.count
    waiting = (
        (job, kinds[job.id])
        for job in arrival_order(snapshot.jobs)
        if job.id in kinds and not (job.id in decision.shares or snapshot.held.get(job.id))
    )
    elsewhere = idle_kinds(snapshot, idle, waiting)
    return _decided(snapshot, kinds | elsewhere) if elsewhere else decision


def _decided(snapshot: Snapshot, kinds: Mapping[JobId, str]) -> Decision:
    """Search each kind for its jobs."""
    shares: dict[JobId, Share] = {}
    reasons = {job.id: cannot_start(snapshot, job) for job in snapshot.jobs if job.id not in kinds}
    carried = snapshot.carried.populations if isinstance(snapshot.carried, PolluxState) else {}
    populations: dict[str, Population] = {}
    for number, kind in enumerate(sorted(set(kinds.values()))):
        members = [job for job in snapshot.jobs if kinds.get(job.id) == kind]
        cluster = _cluster(snapshot, kind, members)
        random = np.random.default_rng([abs(snapshot.seed), int(abs(snapshot.now)), number])
        start = [packed_minima(cluster.problem)[None]]
        if kind in carried:
            start.insert(0, _adapt(carried[kind], cluster))
        states, _ = search(cluster.problem, np.concatenate(start), random)
        populations[kind] = Population(
            tuple(job.id for job in cluster.jobs), cluster.nodes, states.tolist()
        )
        chosen = _choose(cluster.problem, states[0])
        for job, row in zip(cluster.jobs, chosen, strict=True):
            if row.any():
                by_node = {
                    node: int(count)
                    for node, count in zip(cluster.nodes, row, strict=True)
                    if count
                }
                shares[job.id] = Share(kind, int(row.sum()), by_node=by_node)
        reasons |= _explain(cluster, chosen)
    return Decision(shares, reasons, carried=PolluxState(populations))


def _cluster(snapshot: Snapshot, kind: str, members: Sequence[Job]) -> _Cluster:
    rooms = rooms_by_kind(snapshot)[kind]
    jobs = sorted(
        members,
        key=lambda job: (
            job.id not in snapshot.resizing,
            job.attained_accelerator_s,
            job.submitted_at,
            job.id,
        ),
    )
    total = sum(rooms.values())
    base = _held_state(snapshot, kind, jobs, list(rooms))
    fair = math.ceil(total / len(jobs))
    most = [
        min(max(2 * job.most_accelerators, job.min_accelerators), job.max_accelerators, total)
        for job in jobs
    ]
    problem = Problem(
        base=base,
        room=np.array(list(rooms.values()), dtype=np.int16),
        least=np.array([job.min_accelerators for job in jobs], dtype=np.int16),
        most=np.array(most, dtype=np.int16),
        # One that lost accelerators while it changes is below its minimum, and not left there.
        pinned=np.array(
            [
                job.id in snapshot.resizing and not 0 < num_held < job.min_accelerators
                for job, num_held in zip(jobs, base.sum(axis=1).tolist(), strict=True)
            ]
        ),
        # The mean is greatest where speed-ups are in proportion to the square roots of the weights.
        weights=np.array([job.weight * job.share_part**2 for job in jobs], dtype=float),
        keep=np.array([keep_factor(job, snapshot.now) for job in jobs]),
        speedups=_speedups(
            jobs, kind, fair, max(rooms.values()), max(*most, int(base.sum(axis=1).max()))
        ),
    )
    return _Cluster(kind, tuple(rooms), tuple(jobs), fair, problem)


def keep_factor(job: Job, now: float) -> float:
    """Return the part of a job's speed-up that one more resize leaves: (T - R*N) / (T + R).

    T is the job's age, R the cost of a resize in seconds and N the number of its resizes: the
    relative speed over its life so far.
    """
    age_s = max(now - job.submitted_at, 1.0)
    cost_s = job.resize_s
    return max(age_s - cost_s * job.num_resizes, 0.0) / (age_s + cost_s)


def _held_state(snapshot: Snapshot, kind: str, jobs: Sequence[Job], nodes: Sequence[int]) -> Counts:
    column = {node: i for i, node in enumerate(nodes)}
    places = {one.id: column[one.node_id] for one in snapshot.accelerators if one.kind == kind}
    base = np.zeros((len(jobs), len(nodes)), dtype=np.int16)
    for row, job in enumerate(jobs):
        for held in snapshot.held.get(job.id, ()):
            if held in places:
                base[row, places[held]] += 1
    return base


def _speedups(jobs: Sequence[Job], kind: str, fair: int, per_node: int, most: int) -> Floats:
    """Tabulate speed-ups on one node and on several, the only distinction of Pollux' model.

    Several means as few nodes as can hold the count. Shape (jobs, 2, most + 1).
    """
    table = np.zeros((len(jobs), 2, most + 1))
    for row, job in enumerate(jobs):
        if job.performance is None:
            table[row] = np.arange(most + 1) / fair
            continue
        packed = packed_rates(job, kind, most, per_node)
        apart = [rate(job, kind, count, 2) for count in range(2, min(per_node, most) + 1)]
        base = rate(job, kind, fair, 1) or float(packed.max()) or 1.0
        table[row] = packed / base
        table[row, 1, 2 : 2 + len(apart)] = np.array(apart) / base
    return table


def _adapt(population: Population, cluster: _Cluster) -> Counts:
    """Carry a population over to the present jobs and nodes."""
    states = np.zeros((len(population.states), *cluster.problem.base.shape), dtype=np.int16)
    rows = {job_id: row for row, job_id in enumerate(population.jobs)}
    columns = {node: column for column, node in enumerate(population.nodes)}
    new_rows = [row for row, job in enumerate(cluster.jobs) if job.id in rows]
    new_columns = [column for column, node in enumerate(cluster.nodes) if node in columns]
    old_rows = [rows[cluster.jobs[row].id] for row in new_rows]
    old_columns = [columns[cluster.nodes[column]] for column in new_columns]
    known = np.array(population.states, dtype=np.int16)[:, old_rows][:, :, old_columns]
    for row, of_job in zip(new_rows, np.moveaxis(known, 1, 0), strict=True):
        states[:, row, new_columns] = of_job
    return states


def _choose(problem: Problem, best: Counts) -> Counts:
    """Return the best state, or the present one where the gain is negligible."""
    stay = repair(problem, problem.base[None], np.random.default_rng(0))
    values = fitness(problem, np.stack([stay[0], best]))
    if (stay[0] == problem.base).all() and values[1] <= values[0] * (1.0 + LEAST_GAIN):
        return problem.base
    return settle(problem, best)


def _explain(cluster: _Cluster, chosen: Counts) -> dict[JobId, Reason]:
    problem, kind = cluster.problem, cluster.kind
    after = chosen.sum(axis=1)
    states = np.stack([problem.base, chosen])
    speedups, values = speedups_of(problem, states), fitness(problem, states)
    given = [(job.weight, int(n)) for job, n in zip(cluster.jobs, after, strict=True) if n]
    holders = Holders(kind, int(problem.room.sum()), given)
    changes = after - problem.base.sum(axis=1)
    rows = zip(cluster.jobs, changes, strict=True)
    winner = gainers((kind, job.id, int(more)) for job, more in rows).get(kind)
    num_jobs = len(cluster.jobs)
    reasons: dict[JobId, Reason] = {}
    for row, job in enumerate(cluster.jobs):
        is_changed = bool((chosen[row] != problem.base[row]).any())
        is_cut = winner is not None and changes[row] < 0
        cause = reason("for_job", winner=winner) if is_cut else None
        if not after[row]:
            reasons[job.id] = reason(
                "pollux_waits",
                stopped=reason("stopped", cause=cause) if is_changed else None,
                holders=holders.waits(job.min_accelerators, job.weight),
                jobs=num_jobs,
                mean=float(values[1]),
            )
            continue
        parts = [_place_reason(cluster, row, chosen[row], holders.capacity, cause)]
        if job.performance is None:
            parts.append(reason("speed_unknown"))
        else:
            is_resized = is_changed and problem.base[row].any()
            before = reason("pollux_before", speedup=speedups[0, row]) if is_resized else None
            parts.append(
                reason("pollux_speed", after=speedups[1, row], fair=cluster.fair, before=before)
            )
            if is_resized:
                parts.append(
                    reason("pollux_mean", jobs=num_jobs, before=values[0], after=values[1])
                )
        ends = left_s(job, kind, int(after[row]), int(np.count_nonzero(chosen[row])))
        if ends is not None:
            parts.append(reason("done_in", end_s=ends))
        reasons[job.id] = reason("parts", parts=tuple(parts))
    return reasons


def _place_reason(
    cluster: _Cluster, row: int, chosen: Counts, capacity: int, cause: Reason | None
) -> Reason:
    """Describe the change of a job's places."""
    base = cluster.problem.base[row]
    before, after = int(base.sum()), int(chosen.sum())
    num_before, nodes = int(np.count_nonzero(base)), int(np.count_nonzero(chosen))
    kind = cluster.kind
    if before == after and (base != chosen).any():
        return reason(
            "pollux_moves", given=after, kind=kind, before=num_before, nodes=nodes, cause=cause
        )
    moved = change(kind, capacity, before, after, cause=cause)
    return reason("pollux_change", change=moved, nodes=nodes)
