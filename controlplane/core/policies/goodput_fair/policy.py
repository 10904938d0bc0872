"""The project's own policy: least total completion time, bounded unfairness, only paying changes.

1. Tabulate each job's rate by kind and number of accelerators (`rate_tables`).
2. Determine each job's cost of a later completion: weight, ageing, finish-time fairness
   (`fairness_cost`).
3. Find the worth of an example of each job that minimises the total cost of all completion times
   (`shadow_prices`), from a forecast of how the cluster empties (`forecast`), and each job's kind
   (`kinds`).
4. Allocate accelerators for the greatest worth, less the cost of changes (`counts`).
5. Explain the decision (`explanations`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from controlplane.core.policies.common.kinds import cannot_start
from controlplane.core.policies.common.rates import rooms_by_kind
from controlplane.core.policies.goodput_fair.counts import (
    Claims,
    allot,
    lives_s,
)
from controlplane.core.policies.goodput_fair.explanations import CountsDecision, explain
from controlplane.core.policies.goodput_fair.fairness_cost import (
    START_S,
    FairnessCost,
    crowds_of,
    standing_of,
)
from controlplane.core.policies.goodput_fair.kinds import idle_kinds, kinds_choose, kinds_now
from controlplane.core.policies.goodput_fair.placement import Tenant, arrange
from controlplane.core.policies.goodput_fair.probes import (
    counts_try,
    is_probing,
    is_trying,
    starts_try,
    trials_begin,
)
from controlplane.core.policies.goodput_fair.rate_tables import (
    Counts,
    Floats,
    Options,
    is_beginning,
    options_of,
)
from controlplane.core.policies.goodput_fair.resize_limits import changes_s, is_exhausted
from controlplane.core.policies.goodput_fair.shadow_prices import Market, Valuation
from controlplane.core.values.types import Decision, Job, JobId, Share, Snapshot

#: A job is not stopped before it has run for so many times as long as its start takes.
LEAST_RUN_STARTS = 12.0

#: A job that ends within so many times as its start takes is not stopped either.
LEAST_LEFT_STARTS = 3.0


@dataclass(frozen=True)
class _Cycle:
    """The input of a decision on M jobs.

    Attributes:
        change_s: seconds of training that a change costs each job. Shape (M,).
        is_tired: jobs that have had so many changes that only large gains count. Shape (M,).
    """

    snapshot: Snapshot
    options: Options
    standing: FairnessCost
    change_s: Floats
    is_tired: NDArray[np.bool_]


def goodput_fair(snapshot: Snapshot) -> Decision:
    """Share accelerators for the least weighted completion time, with bounded unfairness."""
    crowds = crowds_of(snapshot)
    options = options_of(snapshot)
    if not options.jobs:
        reasons = {job.id: cannot_start(snapshot, job) for job in snapshot.jobs}
        return Decision({}, reasons, carried=crowds)
    standing = standing_of(snapshot, options, crowds)
    market = Market(options)
    held_kinds = [options.kinds[kind] if kind >= 0 else None for kind in options.held_kind]
    is_pinned = np.array(
        [
            _is_at_its_place(snapshot, job, kind)
            for job, kind in zip(options.jobs, held_kinds, strict=True)
        ],
        dtype=bool,
    )
    change_s, is_tired = changes_s(options.jobs), is_exhausted(options.jobs, snapshot.now)
    is_pinned |= is_tired & (options.held > 0)
    cycle = _Cycle(snapshot, options, standing, change_s, is_tired)
    now = kinds_now(market, standing)
    kinds, valuation = kinds_choose(market, standing, now, change_s, is_pinned)
    given, causes = _counts(cycle, valuation, kinds)
    # Jobs that would release their kind and receive no accelerator of the new one.
    is_stranded = (options.held_kind >= 0) & (kinds != options.held_kind) & (given == 0)
    if is_stranded.any():
        is_pinned |= is_stranded
        kinds, valuation = kinds_choose(market, standing, now, change_s, is_pinned)
        given, causes = _counts(cycle, valuation, kinds)
    kinds = kinds.copy()  # trials change it
    elsewhere = idle_kinds(options, kinds, given, causes, is_pinned)
    if not np.array_equal(elsewhere, kinds):
        kinds = elsewhere
        given, causes = _counts(cycle, valuation, kinds)
    calm = options, valuation.ends_s, standing.since_s, change_s, is_pinned, kinds, given
    trials_begin(*calm)
    tries = counts_try(*calm) | starts_try(options, snapshot.now, kinds, given)
    shares, moves = _shares(cycle, valuation, kinds, given)
    given = np.array([shares[j.id].count if j.id in shares else 0 for j in options.jobs])
    outcome = CountsDecision(
        snapshot, options, standing, valuation, kinds, given, tries, causes, moves, is_tired
    )
    return Decision(shares, explain(outcome), carried=crowds)


def _is_at_its_place(snapshot: Snapshot, job: Job, kind: str | None) -> bool:
    """Return whether a job must stay on the kind that it holds.

    That is a job under change, a job that probes that kind, or a job that has just begun and may be
    short.
    """
    if job.id in snapshot.resizing or (kind is not None and is_probing(job, kind, snapshot.now)):
        return True
    return is_beginning(job, snapshot.now)


def _counts(cycle: _Cycle, valuation: Valuation, kinds: Counts) -> tuple[Counts, Counts]:
    """Allot the accelerators of each kind to the jobs on it, with causes of waits. Shapes (M,)."""
    given, causes = np.zeros((2, kinds.size), dtype=np.int64)
    for kind, capacity in enumerate(cycle.options.capacity):
        members = np.flatnonzero(kinds == kind)
        claims = _claims(cycle, valuation, members, kind)
        given[members], causes[members] = allot(claims, int(capacity))
    return given, causes


def _shares(
    cycle: _Cycle, valuation: Valuation, kinds: Counts, given: Counts
) -> tuple[dict[JobId, Share], dict[JobId, tuple[int, int]]]:
    """Assign nodes to every job's count; count those of jobs that only move, before and after."""
    snapshot, options = cycle.snapshot, cycle.options
    node_of = {one.id: (one.node_id, one.kind) for one in snapshot.accelerators}
    shares: dict[JobId, Share] = {}
    moves: dict[JobId, tuple[int, int]] = {}
    slopes = cycle.standing.slope(valuation.ends_s)
    lives = lives_s(cycle.standing.since_s, cycle.change_s)
    if (options.held > 0).any():
        lives[options.held == 0] = np.median(lives[options.held > 0])
    rooms = rooms_by_kind(snapshot)
    for number, kind in enumerate(options.kinds):
        rows = np.flatnonzero((kinds == number) & (given > 0)).tolist()
        rows = [row for row in rows if not snapshot.excluded.get(options.jobs[row].id)]
        tenants = []
        for row in rows:
            job = options.jobs[row]
            held = (node_of[one] for one in snapshot.held.get(job.id, ()) if one in node_of)
            now = Counter(node for node, its_kind in held if its_kind == kind)
            lasts = max(min(float(lives[row]), float(valuation.ends_s[row])), 1.0)
            worth, slope = float(valuation.worth[row]), float(slopes[row])
            change_s, is_tired = float(cycle.change_s[row]), bool(cycle.is_tired[row])
            is_fixed = is_tired or _is_at_its_place(snapshot, job, None)
            tenants.append(
                Tenant(job, int(given[row]), now, worth, slope, change_s, lasts, is_fixed)
            )
        places = arrange(tenants, rooms[kind], kind)
        spare: Counter[int] = Counter()
        for i, row in enumerate(rows):
            by_node = places[i] if places is not None else {}
            if options.jobs[row].performance is None and not tenants[i].now:
                spare.update(by_node)
                by_node = _together(options.jobs[row], by_node)
                spare.subtract(by_node)
            count = sum(by_node.values()) or int(given[row])
            shares[options.jobs[row].id] = Share(kind, count, by_node=by_node)
            if places is not None and tenants[i].is_same and tenants[i].now != by_node:
                moves[options.jobs[row].id] = len(tenants[i].now), len(by_node)
        waiting = np.flatnonzero((kinds == number) & (given == 0))
        for row in waiting[np.argsort(-valuation.worth[waiting], kind="stable")].tolist():
            job = options.jobs[row]
            if spare.total() >= job.min_accelerators and not snapshot.excluded.get(job.id):
                by_node = Counter(list(spare.elements())[: job.min_accelerators])
                spare.subtract(by_node)
                shares[job.id] = Share(kind, job.min_accelerators, by_node=by_node)
    for row in np.flatnonzero(given > 0).tolist():
        job = options.jobs[row]
        shares.setdefault(job.id, Share(options.kinds[kinds[row]], int(given[row])))
    return shares, moves


def _together(job: Job, by_node: Mapping[int, int]) -> Mapping[int, int]:
    """Start a job on one node if its minimum allows, as its communication cost is unknown."""
    node = min(by_node, key=lambda node: (-by_node[node], node), default=None)
    if node is None or by_node[node] < job.min_accelerators:
        return by_node
    return {node: by_node[node]}


def _is_settling(job: Job, now: float, rate: float) -> bool:
    """Return whether a job has started so recently, or ends so soon, that stopping it does not pay.

    Args:
        rate: its useful examples per second on what it holds.
    """
    start_s = max(job.resize_s, START_S)
    if job.running_since is None or now - job.running_since < LEAST_RUN_STARTS * start_s:
        return job.running_since is not None
    left = job.remaining_examples if job.performance is not None else None
    return left is not None and 0.0 < left < LEAST_LEFT_STARTS * start_s * rate


def _claims(cycle: _Cycle, valuation: Valuation, members: Counts, kind: int) -> Claims:
    snapshot, options, standing = cycle.snapshot, cycle.options, cycle.standing
    change_s, since_s = cycle.change_s[members], standing.since_s[members]
    jobs = [options.jobs[row] for row in members]
    is_here = options.held_kind[members] == kind
    counts, rates = options.counts[members, kind], options.rates[members, kind]
    held = np.where(is_here, options.held[members], 0)
    now = np.where(counts == held[:, None], rates, 0.0).max(axis=1, initial=0.0).tolist()
    settling = [_is_settling(*one) for one in zip(jobs, repeat(snapshot.now), now)]
    return Claims(
        counts=counts,
        rates=rates,
        held=held,
        is_elsewhere=~is_here & (options.held_kind[members] >= 0),
        is_fixed=np.array([job.id in snapshot.resizing for job in jobs], dtype=bool),
        is_settling=np.array(settling, dtype=bool),
        least=np.array([job.min_accelerators for job in jobs], dtype=np.int64),
        worth=valuation.worth[members],
        weights=np.array([job.weight for job in jobs], dtype=float),
        change_s=change_s,
        since_s=since_s,
        ends_s=valuation.ends_s[members],
        work=options.work[members],
        lacking_s=standing.lacking_s[members],
        fair_s=standing.fair_s[members],
        is_known=np.array([job.performance is not None for job in jobs], dtype=bool),
        is_new=np.array(
            [job.changed_at is None and job.performance is None for job in jobs], dtype=bool
        ),
        is_trying=is_trying(jobs, options.held[members], since_s, change_s) & is_here,
        is_exhausted=cycle.is_tired[members],
    )
