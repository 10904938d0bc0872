"""Reasons for each job's allotment, with the numbers of the decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from controlplane.core.policies.common.explanations import Holders
from controlplane.core.policies.common.kinds import cannot_start
from controlplane.core.policies.goodput_fair.counts import Wait
from controlplane.core.policies.goodput_fair.fairness_cost import FAIR, FairnessCost
from controlplane.core.policies.goodput_fair.rate_tables import (
    Counts,
    Floats,
    Options,
    known_work,
)
from controlplane.core.policies.goodput_fair.resize_limits import LARGE_GAIN
from controlplane.core.policies.goodput_fair.shadow_prices import FOREVER_S, Valuation
from controlplane.core.values.explanations import MIN_REPORTED_GAIN, Reason, reason
from controlplane.core.values.types import Job, JobId, Snapshot

#: Code of the reason for each cause of a wait.
_WHY = {
    Wait.GAINS: "goodput_gains",
    Wait.TURNS: "goodput_turns",
    Wait.BEGUN: "goodput_begun",
    Wait.UNKNOWN: "goodput_unknown",
}


@dataclass(frozen=True)
class CountsDecision:
    """A decision of the policy, before the reasons are written. Arrays of shape (M,).

    Attributes:
        tries: jobs that measure their speed on more accelerators (`probes.counts_try`).
        causes: `Wait` of the jobs that are given nothing.
        moves: nodes before and after of jobs that keep their number on other nodes.
        is_exhausted: jobs that have had so many changes that only large gains count.
    """

    snapshot: Snapshot
    options: Options
    standing: FairnessCost
    valuation: Valuation
    kinds: Counts
    given: Counts
    tries: NDArray[np.bool_]
    causes: Counts
    moves: Mapping[JobId, tuple[int, int]]
    is_exhausted: NDArray[np.bool_]

    @cached_property
    def before(self) -> Counts:
        """Accelerators held of the kind given now, or of any kind if none is given."""
        is_here = (self.options.held_kind == self.kinds) | (self.given == 0)
        return np.where(is_here, self.options.held, 0)

    @cached_property
    def speeds(self) -> tuple[Floats, Floats]:
        """Return each job's rate before and after, relative to that on its fewest accelerators."""
        options = self.options
        return self._speeds(options.held_kind, options.held), self._speeds(self.kinds, self.given)

    def _speeds(self, kinds: Counts, numbers: Counts) -> Floats:
        """Return each job's rate on so many of a kind, relative to that on its fewest."""
        counts, rates = self._points(kinds)
        rows = np.arange(kinds.size)
        at = np.minimum((counts < numbers[:, None]).sum(axis=1), counts.shape[1] - 1)
        first = rates[rows, np.argmax(rates > 0.0, axis=1)]
        is_known = (kinds >= 0) & (numbers > 0) & (first > 0.0)
        speeds: Floats = np.divide(rates[rows, at], first, out=np.zeros(rows.size), where=is_known)
        return speeds

    def _points(self, kinds: Counts) -> tuple[Counts, Floats]:
        """Return each job's counts and rates on its kind in `kinds`. Shapes (M, G)."""
        rows = np.arange(kinds.size)
        return self.options.counts[rows, kinds], self.options.rates[rows, kinds]

    @cached_property
    def following(self) -> tuple[Counts, Floats]:
        """Return the next larger count of each job, and the relative speed-up there.

        The count is 0 where there is none, or where the present rate is unknown.
        """
        counts, rates = self._points(self.kinds)
        rows, most = np.arange(self.kinds.size), counts.shape[1] - 1
        here = np.minimum((counts < self.given[:, None]).sum(axis=1), most)
        after = (counts <= self.given[:, None]).sum(axis=1)
        is_known = (after <= most) & (rates[rows, here] > 0.0)
        after = np.minimum(after, most)
        ratio = np.ones(rows.size)
        np.divide(rates[rows, after], rates[rows, here], out=ratio, where=is_known)
        return np.where(is_known, counts[rows, after], 0), ratio - 1.0

    @cached_property
    def fairness(self) -> Floats:
        """Return the finish-time fairness of each job, if it ends as forecast."""
        return self.standing.fairness(self.valuation.ends_s)

    @cached_property
    def winners(self) -> list[int | None]:
        """For each kind, the row of the job with the largest increase."""
        found: list[int | None] = []
        for kind in range(len(self.options.kinds)):
            more = np.where(self.kinds == kind, self.given - self.before, 0)
            best = int(np.argmax(more)) if more.size else -1
            found.append(best if best >= 0 and more[best] > 0 else None)
        return found

    @cached_property
    def largest_holders(self) -> list[Reason | None]:
        """For each kind, the job with the most accelerators; None where none has two."""
        found: list[Reason | None] = []
        for kind in range(len(self.options.kinds)):
            given = np.where(self.kinds == kind, self.given, 0)
            row = int(np.argmax(given))
            most, job_id = int(given[row]), self.options.jobs[row].id
            found.append(reason("goodput_largest", count=most, job=job_id) if most > 1 else None)
        return found

    @cached_property
    def holders(self) -> list[Holders]:
        given: list[list[tuple[float, int]]] = [[] for _ in self.options.kinds]
        for row in np.flatnonzero(self.given > 0).tolist():
            given[self.kinds[row]].append((self.options.jobs[row].weight, int(self.given[row])))
        kinds = zip(self.options.kinds, self.options.capacity.tolist(), given, strict=True)
        return [Holders(*one) for one in kinds]

    @cached_property
    def idle(self) -> list[int]:
        """For each kind, its accelerators that no job is given."""
        return [one.capacity - one.held for one in self.holders]

    @cached_property
    def first_waiting(self) -> list[JobId | None]:
        """For each kind, the job of most worth that waits for more of it than is idle."""
        found: list[JobId | None] = []
        least = np.array([job.min_accelerators for job in self.options.jobs])
        for kind, idle in enumerate(self.idle):
            rows = np.flatnonzero((self.kinds == kind) & (self.given == 0) & (least > idle))
            best = rows[np.argmax(self.valuation.worth[rows])] if rows.size else None
            found.append(None if best is None else self.options.jobs[best].id)
        return found

    @cached_property
    def gain(self) -> Reason | None:
        """Gain in total speed of all jobs; None when negligible."""
        now, then = self.speeds
        total = float(now.sum())
        gain = float(then.sum()) / total - 1.0 if total > 0.0 else 0.0
        return reason("goodput_cluster", gain=gain) if gain >= MIN_REPORTED_GAIN else None

    def faster(self, row: int) -> Reason | None:
        """Gain of one job in speed; None when negligible."""
        now, then = self.speeds
        gain = float(then[row] / now[row]) - 1.0 if now[row] > 0.0 else 0.0
        return reason("goodput_faster", gain=gain) if gain >= MIN_REPORTED_GAIN else None

    def cause(self, row: int) -> Reason | None:
        """Name the job for which a job gives up accelerators, or its own gain from doing so."""
        kind = int(self.kinds[row])
        winner = self.winners[kind]
        if winner is None or winner == row:
            return self.faster(row) or self.gain
        job, other = self.options.jobs[row], self.options.jobs[winner]
        because = None
        if other.weight > job.weight:
            because = reason("goodput_priority")
        elif self.valuation.ends_s[winner] < self.valuation.ends_s[row]:
            because = reason("goodput_sooner")
        return reason("goodput_for_job", winner=other.id, because=because, cluster=self.gain)


def explain(outcome: CountsDecision) -> dict[JobId, Reason]:
    options = outcome.options
    known = options.index
    reasons = {
        job.id: cannot_start(outcome.snapshot, job)
        for job in outcome.snapshot.jobs
        if job.id not in known
    }
    for row, job in enumerate(options.jobs):
        is_given = outcome.given[row] > 0
        reasons[job.id] = (_holding if is_given else _waiting)(outcome, row, job)
    return reasons


def _holding(outcome: CountsDecision, row: int, job: Job) -> Reason:
    kind = int(outcome.kinds[row])
    name, given, before = outcome.options.kinds[kind], outcome.given[row], outcome.before[row]
    cause = None
    if before == 0:
        code = "goodput_tries" if outcome.tries[row] else "given"
        if outcome.options.held[row] > 0:
            is_trial = job.tried_kinds and name not in job.tried_kinds
            code = "goodput_measures" if is_trial else "goodput_moves"
    elif given < before:
        code, cause = "shrunk", outcome.cause(row)
    elif given > before and outcome.tries[row]:
        code = "goodput_tries"
    elif given > before:
        code = "grown"
        cause = outcome.faster(row) if job.performance is not None else None
    else:
        code = "keeps"
        if job.id in outcome.moves:
            old, new = outcome.moves[job.id]
            gathers = reason("goodput_gathers", before=old, nodes=new)
            code, cause = "goodput_places", gathers if new < old else reason("goodput_room")
    change = reason(
        code,
        given=int(given),
        before=int(before),
        capacity=int(outcome.options.capacity[kind]),
        kind=name,
        cause=cause,
    )
    return reason("parts", parts=(change, *_prospects(outcome, row, job)))


def _prospects(outcome: CountsDecision, row: int, job: Job) -> list[Reason]:
    """Describe the gain from a larger count, the expected end, and any unfairness."""
    parts = []
    following, more = int(outcome.following[0][row]), float(outcome.following[1][row])
    if outcome.given[row] >= job.max_accelerators:
        parts.append(reason("all_usable"))
    elif job.performance is None:
        parts.append(reason("speed_unknown"))
    elif following and more >= MIN_REPORTED_GAIN:
        is_idle = following - outcome.given[row] <= outcome.idle[int(outcome.kinds[row])]
        code = "goodput_not_yet" if is_idle else "goodput_others"
        if is_idle and outcome.is_exhausted[row] and more < LARGE_GAIN - 1.0:
            code = "goodput_changed"
        parts.append(reason(code, count=following, gain=more, changes=job.num_resizes))
    elif following:
        parts.append(reason("goodput_no_faster", count=following))
    end_s = float(outcome.valuation.ends_s[row])
    if end_s < FOREVER_S and known_work(job) is not None:
        fairness = float(outcome.fairness[row])
        late = reason("goodput_late", fairness=fairness) if fairness > FAIR else None
        parts.append(reason("goodput_end", end_s=end_s, late=late))
    return parts or [reason("goodput_rest")]


def _waiting(outcome: CountsDecision, row: int, job: Job) -> Reason:
    kind = int(outcome.kinds[row])
    holders, free = outcome.holders[kind], outcome.idle[kind]
    higher = holders.above(job.weight)
    needed = job.min_accelerators - free
    is_stopped = outcome.options.held[row] > 0
    stopped = reason("stopped", cause=outcome.cause(row)) if is_stopped else None
    first = outcome.first_waiting[kind] if needed <= 0 else None
    if first is not None:
        return reason(
            "goodput_kept",
            stopped=stopped,
            wish=job.min_accelerators,
            kind=holders.kind,
            free=free,
            capacity=holders.capacity,
            job=first,
        )
    jobs, largest = len(holders.given), outcome.largest_holders[kind]
    only = largest if jobs == 1 else None
    why = _WHY[Wait(outcome.causes[row])]
    above = "higher" if only is None else "goodput_higher_one"
    return reason(
        "goodput_waits",
        stopped=stopped,
        wish=reason("more", count=needed) if free > 0 < needed else job.min_accelerators,
        kind=holders.kind,
        held=holders.held,
        capacity=holders.capacity,
        jobs=jobs if only is None else reason("goodput_holder", job=only.fields["job"]),
        why=reason(why if only is None else f"{why}_one"),
        largest=largest if only is None else None,
        higher=reason(above, count=higher) if higher > 0 else None,
    )
