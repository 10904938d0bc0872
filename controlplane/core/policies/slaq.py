"""SLAQ: accelerators go where they lower losses most in the next seconds (SoCC 2017, section 4).

The gain of a job from a accelerators in an epoch of T seconds is

    (loss(0) - loss(goodput(a) * T)) / largest change of its loss so far

in useful examples, times its weight. Every running job has its minimum, a job with too little
history its fair share; the rest goes out one accelerator at a time to the largest gain per
accelerator, O(C log J). Differences from the paper, with reasons:

* the speed on a accelerators is the fitted one instead of a times that on one;
* changes cost a resize, so an epoch's shares are kept until it ends (only accelerators that become
  free are reassigned), and then changed only where the gain makes up for the pauses;
* where not even the minima fit, the jobs with most to gain for them run; a running job stays for a
  minute, and then until another one would gain twice as much. Waiting counts, so that no job waits
  forever.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from controlplane.core.estimates.loss_prediction import NoForecast
from controlplane.core.policies.common.fair_fill import progressive_fill
from controlplane.core.policies.common.kinds import cannot_start, kinds_assign
from controlplane.core.policies.common.loss_gains import EPOCH_S, Gains, gains_of
from controlplane.core.policies.common.rates import largest_nodes
from controlplane.core.scheduling.pools import arrival_order, capacity_by_kind, held_by_kind
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import Decision, Job, JobId, Share, Snapshot

#: Seconds after its start within which a job is not stopped for others ...
STAY_S = 60.0

#: ... and the factor by which another job's gain must be larger afterwards.
STAY = 2.0

#: Seconds of waiting that count like a gain twice as large.
AGEING_S = 600.0


#: Gain for each accelerator (negated), count per weight, age, id, and the count that is claimed.
_Claim = tuple[float, float, float, JobId, int]


@dataclass(frozen=True, slots=True)
class SlaqState:
    """The last decision, and the time until which it is kept."""

    until: float
    counts: Mapping[JobId, tuple[str, int]]

    def joined(self, _other: SlaqState, _jobs: Collection[JobId]) -> SlaqState:
        """Return the state: shares of another epoch are not kept."""
        return self


@dataclass(frozen=True, slots=True)
class _Pool:
    kind: str
    capacity: int
    per_node: int
    now: float
    jobs: tuple[Job, ...]  # running ones first, in order of arrival each
    held: Mapping[JobId, int]
    kept: Mapping[JobId, int]  # shares of the epoch under way


def slaq(snapshot: Snapshot) -> Decision:
    """Give accelerators to the jobs whose loss they lower most in the next seconds."""
    kinds = kinds_assign(snapshot)
    capacity = capacity_by_kind(snapshot)
    per_node, held = largest_nodes(snapshot), held_by_kind(snapshot)
    carried = snapshot.carried if isinstance(snapshot.carried, SlaqState) else SlaqState(0.0, {})
    going_on = 0.0 < carried.until - snapshot.now <= EPOCH_S
    shares: dict[JobId, Share] = {}
    reasons = {job.id: cannot_start(snapshot, job) for job in snapshot.jobs if job.id not in kinds}
    for kind, total in capacity.items():
        members = [job for job in arrival_order(snapshot.jobs) if kinds.get(job.id) == kind]
        pool = _Pool(
            kind=kind,
            capacity=total,
            per_node=per_node[kind],
            now=snapshot.now,
            jobs=tuple(members),
            held={job.id: held[job.id][kind] for job in members if held[job.id][kind]},
            kept={
                job_id: count
                for job_id, (given, count) in (carried.counts if going_on else {}).items()
                if given == kind
            },
        )
        counts, gains = _pool_share(pool)
        shares |= {job_id: Share(kind, count) for job_id, count in counts.items()}
        reasons |= _explain(pool, counts, gains)
    until = carried.until if going_on else snapshot.now + EPOCH_S
    chosen = {job_id: (share.kind, share.count) for job_id, share in shares.items()}
    return Decision(shares, reasons, carried=SlaqState(until, chosen))


def _pool_share(pool: _Pool) -> tuple[dict[JobId, int], dict[JobId, Gains]]:
    """Share one kind among its jobs, and return each job's gains."""
    gains = {job.id: gains_of(job, pool.kind, pool.capacity, pool.per_node) for job in pool.jobs}
    inside = _admitted(pool, gains)
    # Gains count here, whoever owns the jobs.
    fair = progressive_fill(
        [replace(job, user=None, user_factor=1.0) for job in inside], pool.capacity
    )
    floors = {
        job.id: job.min_accelerators if gains[job.id].is_known else fair[job.id] for job in inside
    }
    anew = _spread(inside, floors, gains, pool.capacity)
    kept = _floors(inside, pool.kept, floors)
    if pool.kept and sum(kept.values()) <= pool.capacity:
        return _spread(inside, kept, gains, pool.capacity), gains
    stay = _floors(inside, pool.held, floors)
    if pool.held and sum(stay.values()) <= pool.capacity:
        stay = _spread(inside, stay, gains, pool.capacity)
        if _total(stay, pool, gains) >= _total(anew, pool, gains):
            return stay, gains
    return anew, gains


def _floors(
    jobs: Iterable[Job], had: Mapping[JobId, int], floors: Mapping[JobId, int]
) -> dict[JobId, int]:
    """Return for every job its former count, or its floor where that is more."""
    return {
        job.id: max(min(had.get(job.id, 0), job.max_accelerators), floors[job.id]) for job in jobs
    }


def _admitted(pool: _Pool, gains: Mapping[JobId, Gains]) -> list[Job]:
    """Choose the jobs that run: all, if their minima fit."""
    if sum(job.min_accelerators for job in pool.jobs) <= pool.capacity:
        return list(pool.jobs)

    def rank(job: Job) -> tuple[bool, float, float, JobId]:
        """Order by gain per accelerator of the minimum; without history that is the largest."""
        gain = gains[job.id].gain(0) if gains[job.id].is_known else job.weight
        is_new = False
        if job.id in pool.held:
            is_new = job.running_since is None or pool.now - job.running_since < STAY_S
            gain *= STAY
        else:
            gain *= 1.0 + job.waited_s(pool.now) / AGEING_S
        return not is_new, -gain / job.min_accelerators, job.submitted_at, job.id

    free, inside = pool.capacity, []
    for job in sorted(pool.jobs, key=rank):
        if job.min_accelerators <= free:
            free -= job.min_accelerators
            inside.append(job)
    return arrival_order(inside)


def _spread(
    jobs: Iterable[Job],
    floors: Mapping[JobId, int],
    gains: Mapping[JobId, Gains],
    capacity: int,
) -> dict[JobId, int]:
    """Give every job its floor, and the rest where an accelerator gains most.

    When no loss is expected to fall any more, the rest goes to the lowest count per weight.
    """
    counts = dict(floors)
    free = capacity - sum(counts.values())
    heap: list[_Claim] = []
    for job in jobs:
        _offer(heap, gains[job.id], counts[job.id])
    while free > 0 and heap:
        *_, job_id, count = heapq.heappop(heap)
        if count - counts[job_id] > free:
            continue
        free -= count - counts[job_id]
        counts[job_id] = count
        _offer(heap, gains[job_id], count)
    return counts


def _offer(heap: list[_Claim], gains: Gains, count: int) -> None:
    """Push the next larger count that is faster, by its gain per accelerator."""
    place = gains.place(count)
    if place + 1 == len(gains.counts):
        return
    job, then = gains.job, gains.counts[place + 1]
    gain = max(gains.gain(place + 1) - gains.gain(place), 0.0) if gains.is_known else 0.0
    claim = (-gain / (then - count), then / job.weight, job.submitted_at, job.id, then)
    heapq.heappush(heap, claim)


def _total(counts: Mapping[JobId, int], pool: _Pool, gains: Mapping[JobId, Gains]) -> float:
    """Sum the gains of all jobs in an epoch; a job that is resized loses the pause."""
    total = 0.0
    for job_id, count in counts.items():
        row = gains[job_id]
        if row.is_known:
            is_changed = pool.held.get(job_id, count) != count
            seconds = max(EPOCH_S - row.job.resize_s, 0.0) if is_changed else EPOCH_S
            total += row.gain(row.place(count), seconds)
    return total


def _explain(
    pool: _Pool, counts: Mapping[JobId, int], gains: Mapping[JobId, Gains]
) -> dict[JobId, Reason]:
    given = sum(counts.values())
    reasons: dict[JobId, Reason] = {}
    for job in pool.jobs:
        if job.id in counts:
            reasons[job.id] = _explain_share(pool, gains[job.id], counts[job.id], len(counts))
        else:
            reasons[job.id] = reason(
                "slaq_waits",
                needed=job.min_accelerators,
                kind=pool.kind,
                held=given,
                capacity=pool.capacity,
                jobs=len(counts),
                waited_s=job.waited_s(pool.now),
            )
    return reasons


def _explain_share(pool: _Pool, row: Gains, count: int, num_running: int) -> Reason:
    gets = {"count": count, "capacity": pool.capacity, "kind": pool.kind}
    if not row.is_known:
        reports = row.job.loss.num_points if row.job.loss is not None else 0
        return reason("slaq_fair", **gets, jobs=num_running, reports=reports)
    if isinstance(row.job.loss, NoForecast):
        return reason("slaq_nonfinite", **gets)
    place = row.place(count)
    fall = row.fall(place)
    fewer = reason("slaq_least")
    if place > 0:
        fewer = reason("slaq_fewer", count=row.counts[place - 1], fall=row.fall(place - 1))
    part = fall / row.normaliser
    return reason("slaq_gain", **gets, fall=fall, epoch=EPOCH_S, part=part, fewer=fewer)
