"""Tables of the counts that each job could be given and its rates on them.

Counts of a kind are points of a grid: every count on small pools, on large ones every count up to
`FINE_COUNTS` and then whole nodes in steps of an eighth, as far as any job may grow. Rates are
replaced by their concave envelope where a method needs falling marginal rates (`envelopes`); a
minimum (gang) makes its first step long.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controlplane.core.policies.common.rates import (
    largest_nodes,
    packed_rates,
    rate,
    without_still_models,
)
from controlplane.core.scheduling.pools import (
    arrival_order,
    can_start,
    capacity_by_kind,
    held_by_kind,
    held_kind,
    kinds_able,
)
from controlplane.core.values.types import Job, JobId, Snapshot

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

#: In pools up to this size every count is a point of the grid.
SMALL_POOL = 128

#: In larger pools every count up to this one is.
FINE_COUNTS = 16

#: A job is given at most this many times its largest count so far: speeds far beyond the measured
#: range are guesses, and growing again a moment later costs little.
GROWTH = 8

#: Seconds until the next decision, the earliest that can correct a wrong guess.
GUESS_S = 60.0

#: Largest count of a job before its speed is known.
FIRST_COUNT = 4

#: Assumed exponent of an unknown speed-up: between no gain and proportional gain, so that several
#: such jobs share the accelerators.
UNKNOWN_POWER = 0.5

#: After so many seconds of training without a known speed, the limit on the count is lifted.
PATIENCE_S = 300.0

#: Least work assumed left for a job that reports none, in accelerator-seconds.
UNKNOWN_WORK_S = 600.0

#: Largest number of jobs whose speeds are used to compare kinds.
MOST_ASKED = 64

#: A loss is settled when its improvement is below this share of its largest change.
SETTLED = 0.01


@dataclass(frozen=True)
class Options:
    """The jobs of a snapshot that can run at all, and their choices. M jobs, Q kinds, G points.

    Attributes:
        jobs: in order of arrival.
        kinds: in alphabetical order, with their `capacity`, shape (Q,).
        counts: accelerators of each point, ascending, repeated at the end. Shape (M, Q, G).
        rates: useful examples per second there; 0 below a minimum. Shape (M, Q, G).
        held_kind, held: index of the kind that a job holds (-1: none) and how many. Shape (M,).
        work: useful examples left, as estimated. Shape (M,).
    """

    jobs: tuple[Job, ...]
    kinds: tuple[str, ...]
    capacity: Counts
    counts: Counts
    rates: Floats
    held_kind: Counts
    held: Counts
    work: Floats

    @property
    def index(self) -> dict[JobId, int]:
        """The row of each job."""
        return {job.id: row for row, job in enumerate(self.jobs)}

    def rate(self, row: int, kind: int, count: int) -> float:
        """Return the useful examples per second of a job on so many accelerators, interpolated."""
        return float(np.interp(count, self.counts[row, kind], self.rates[row, kind]))


def options_of(snapshot: Snapshot) -> Options:
    """Tabulate the counts and rates of each job of a snapshot."""
    capacity = capacity_by_kind(snapshot)
    kinds = tuple(capacity)
    held = held_by_kind(snapshot)
    jobs = tuple(job for job in arrival_order(snapshot.jobs) if can_start(job, capacity))
    per_node = largest_nodes(snapshot)
    speeds = _speeds(jobs, kinds)
    staying = snapshot.resizing | {job.id for job in jobs if is_beginning(job, snapshot.now)}
    room = {
        kind: capacity[kind] - sum(held[one][kind] for one in staying if one in held)
        for kind in kinds
    }
    held_kinds, held_counts = np.full(len(jobs), -1), np.zeros(len(jobs), dtype=np.int64)
    caps = np.zeros((len(jobs), len(kinds)), dtype=np.int64)  # 0: it cannot be given any
    tables: list[list[Floats]] = [[] for _ in kinds]
    for row, job in enumerate(jobs):
        own, count = held_kind(held[job.id]), 0
        if own is not None and job.accepts(own):
            count = held[job.id][own]
            held_kinds[row], held_counts[row] = kinds.index(own), count
        most = _most(job, count, snapshot.now)
        if count and own is not None:
            cap = min(most, capacity[own])
            if _ends_soon(job, float(packed_rates(job, own, cap, per_node[own])[min(count, cap)])):
                most = min(most, max(job.most_accelerators, count, job.min_accelerators))
        cannot = _cannot_now(job, room, capacity) if own is None else frozenset()
        for column, kind in enumerate(kinds):
            cap = min(most, capacity[kind])
            if not job.accepts(kind) or cap < job.min_accelerators or kind in cannot:
                continue
            table = packed_rates(job, kind, cap, per_node[kind])
            if job.performance is None:
                table = table**UNKNOWN_POWER * _kind_speed(job, kind, kinds, speeds)
            caps[row, column] = cap
            tables[column].append(table)
    most_given = int(caps.max(initial=0))
    grids = [_grid(capacity[kind], per_node[kind], most_given) for kind in kinds]
    width = max((grid.size for grid in grids), default=0) + 3
    counts = np.zeros((len(jobs), len(kinds), width), dtype=np.int64)
    rates = np.zeros(counts.shape)
    least = np.array([job.min_accelerators for job in jobs], dtype=np.int64)
    for column, grid in enumerate(grids):
        rows = np.flatnonzero(caps[:, column])
        cap = caps[rows, column]
        here = np.where(held_kinds[rows] == column, held_counts[rows], cap)
        at = counts[rows, column] = _points(grid, width, cap, least[rows], here)
        rates[rows, column] = _rates(tables[column], at, least[rows])
    rows = np.flatnonzero(~rates.any(axis=(1, 2)))
    if any(jobs[row].performance is not None for row in rows):
        seen = without_still_models(snapshot)
        if seen is not snapshot:
            return options_of(seen)
    sizes = np.array([capacity[kind] for kind in kinds], dtype=np.int64)
    work = _work(jobs, counts, rates)
    return Options(jobs, kinds, sizes, counts, rates, held_kinds, held_counts, work)


def _points(grid: Counts, width: int, caps: Counts, least: Counts, held: Counts) -> Counts:
    """Return each of N jobs' counts: the grid up to its cap, its minimum and the count it holds.

    Shape (N, `width`), ascending.
    """
    at = np.repeat(caps[:, None], width, axis=1)
    at[:, : grid.size] = np.minimum(grid, caps[:, None])
    at[:, -2] = np.minimum(held, caps)
    at[:, -1] = least
    at.sort(axis=1)
    return at


def _rates(tables: Sequence[Floats], at: Counts, least: Counts) -> Floats:
    """Look up N tables of rates, each at its G points; 0 below its minimum. Shape (N, G)."""
    if not tables:
        return np.zeros(at.shape)
    sizes = np.array([table.size for table in tables])
    starts = np.cumsum(sizes) - sizes
    return np.where(at >= least[:, None], np.concatenate(tables)[starts[:, None] + at], 0.0)


def is_beginning(job: Job, now: float) -> bool:
    """Return whether a job runs and its speed is not known yet: the job may be short."""
    since = job.running_since
    return job.performance is None and since is not None and now - since < PATIENCE_S


def _grid(capacity: int, per_node: int, most: int) -> Counts:
    """List the points of a pool up to the first that is at least `most`."""
    if capacity <= SMALL_POOL:
        return np.arange(min(most, capacity) + 1)
    points = list(range(FINE_COUNTS + 1))
    while points[-1] < min(most, capacity):
        step = max(points[-1] // 8 // per_node * per_node, per_node, 1)
        points.append(min(points[-1] + step, capacity))
    return np.array(points)


def _speeds(jobs: Sequence[Job], kinds: Sequence[str]) -> dict[str, float]:
    """Return each kind's speed for a job of unknown speed: the median over jobs of known speed.

    Relative to the fastest; 1 where no speed is known.
    """
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    known = [job for job in jobs if job.performance is not None][:MOST_ASKED]
    for job in known if len(kinds) > 1 else ():
        own = [rate(job, kind, 1, 1) for kind in kinds]
        for kind, speed in zip(kinds, own, strict=True):
            if min(own) > 0.0:
                found[kind].append(speed / max(own))
    medians = {kind: statistics.median(ratios) if ratios else 1.0 for kind, ratios in found.items()}
    most = max(medians.values(), default=1.0)
    return {kind: median / most for kind, median in medians.items()}


def _kind_speed(job: Job, kind: str, kinds: Sequence[str], others: Mapping[str, float]) -> float:
    """Return a kind's relative speed for a job of unknown speed: by its code, else `others`."""
    known = {one: job.kind_speeds.get(one, 0.0) for one in kinds if job.accepts(one)}
    if min(known.values()) > 0.0:
        return known[kind] / max(known.values())
    return others[kind]


def _cannot_now(job: Job, room: Mapping[str, int], capacity: Mapping[str, int]) -> frozenset[str]:
    """Return kinds where a job cannot start now: jobs under change or new ones occupy them.

    Empty if that holds for every kind on which the job could run: the job then waits for any of
    them.
    """
    able = set(kinds_able(job, capacity))
    full = {kind for kind in able if room[kind] < job.min_accelerators}
    return frozenset(full) if full != able else frozenset()


def _ends_soon(job: Job, speed: float) -> bool:
    """Return whether a job will be over before a wrong guess of its speed can be corrected."""
    if job.performance is None or job.remaining_examples is None:
        return False
    return job.remaining_examples < GUESS_S * speed


def _most(job: Job, held: int, now: float) -> int:
    """Return the largest count that a job may have in this round."""
    if job.performance is None:
        is_due = job.running_since is not None and now - job.running_since > PATIENCE_S
        first = job.max_accelerators if is_due else FIRST_COUNT
        return min(max(job.min_accelerators, first, held), job.max_accelerators)
    seen = max(job.most_accelerators, held)
    if seen == 0:  # its speed was known before its first run
        return job.max_accelerators
    return min(max(GROWTH * seen, job.min_accelerators), job.max_accelerators)


def _work(jobs: tuple[Job, ...], counts: Counts, rates: Floats) -> Floats:
    """Return the useful examples left of each job. Shape (M,)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(counts > 0, rates / counts, 0.0)
    single = each.max(axis=(1, 2), initial=0.0)
    work = np.empty(len(jobs))
    for row, job in enumerate(jobs):
        left = known_work(job)
        if left is None:  # heavy-tailed: expect as much again as the job has had
            left = single[row] * max(job.attained_accelerator_s, UNKNOWN_WORK_S)
        work[row] = max(left, single[row], 1e-9)
    return work


def known_work(job: Job) -> float | None:
    """Return the useful examples left of a job of known speed; None: unknown.

    A job that reports none ends where its forecast loss hardly changes any more.
    """
    if job.performance is None:
        return None
    if job.remaining_examples is not None or job.loss is None:
        return job.remaining_examples
    examples = float(max(job.global_batch_size, 1))
    before = job.loss.loss(examples)
    for _ in range(50):
        after = job.loss.loss(2.0 * examples)
        if before - after < SETTLED * job.loss.normaliser:
            return examples
        examples, before = 2.0 * examples, after
    return None
