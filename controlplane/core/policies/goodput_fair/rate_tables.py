"""What each job could be given, and how fast it would go: the tables that everything else reads.

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

from controlplane.core.policies.common.rates import packed_rates, rate, rooms_by_kind
from controlplane.core.scheduling.pools import (
    arrival_order,
    capacity_by_kind,
    held_by_kind,
    held_kind,
)
from controlplane.core.values.types import Job, JobId, Snapshot

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

#: Pools up to this size are looked at count by count.
SMALL_POOL = 128

#: On larger ones, counts up to this are.
FINE_COUNTS = 16

#: A job is given at most this many times what it ever had: speeds far beyond what was seen are
#: guesses, and growing again a moment later costs little.
GROWTH = 8

#: Whether a guess was right shows at the next decision at the earliest, so many seconds later.
GUESS_S = 60.0

#: What a job is given at most before anything is known of its speed.
FIRST_COUNT = 4

#: Until then more accelerators are taken to help by this power of their number: in between of no
#: help and full help, so that several such jobs share what there is.
UNKNOWN_POWER = 0.5

#: After so many seconds of training without a word about its speed, any count is as good.
PATIENCE_S = 300.0

#: What is left of a job that says nothing about it, in accelerator-seconds, at least.
UNKNOWN_WORK_S = 600.0

#: So many jobs are asked how fast kinds are.
MOST_ASKED = 64

#: A loss that improves by less than this share of its largest change has settled.
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
        work: useful examples left, as far as can be told. Shape (M,).
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
        """Give the row of each job."""
        return {job.id: row for row, job in enumerate(self.jobs)}

    def rate(self, row: int, kind: int, count: int) -> float:
        """Give the useful examples per second of a job on so many accelerators, interpolated."""
        return float(np.interp(count, self.counts[row, kind], self.rates[row, kind]))


def options_of(snapshot: Snapshot) -> Options:
    """Tabulate what each job of a snapshot could be given."""
    capacity = capacity_by_kind(snapshot)
    kinds = tuple(capacity)
    held = held_by_kind(snapshot)
    jobs = tuple(
        job
        for job in arrival_order(snapshot.jobs)
        if any(job.accepts(kind) and capacity[kind] >= job.min_accelerators for kind in kinds)
    )
    per_node = {kind: max(rooms.values()) for kind, rooms in rooms_by_kind(snapshot).items()}
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
    sizes = np.array([capacity[kind] for kind in kinds], dtype=np.int64)
    work = _work(jobs, counts, rates)
    return Options(jobs, kinds, sizes, counts, rates, held_kinds, held_counts, work)


def _points(grid: Counts, width: int, caps: Counts, least: Counts, held: Counts) -> Counts:
    """Give each of N jobs its counts: the grid up to its cap, its minimum and what it holds.

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
    """Say whether a job runs and nothing is known of its speed yet: it may be short."""
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
    """Tell what kinds are worth to a job of which nothing is known: as to others, on median.

    Relative to the fastest; 1 where nobody knows.
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
    """Tell what a kind is worth to a job of unknown speed: by its code, else as `others` say."""
    known = {one: job.kind_speeds.get(one, 0.0) for one in kinds if job.accepts(one)}
    if min(known.values()) > 0.0:
        return known[kind] / max(known.values())
    return others[kind]


def _cannot_now(job: Job, room: Mapping[str, int], capacity: Mapping[str, int]) -> frozenset[str]:
    """Name kinds where a job cannot start now, as jobs under change or new ones hold so much.

    None if that goes for all that it could ever run on: it waits for any of them.
    """
    able = {k for k in capacity if job.accepts(k) and capacity[k] >= job.min_accelerators}
    full = {kind for kind in able if room[kind] < job.min_accelerators}
    return frozenset(full) if full != able else frozenset()


def _ends_soon(job: Job, speed: float) -> bool:
    """Say whether a job will be over before a wrong guess of its speed could be put right."""
    if job.performance is None or job.remaining_examples is None:
        return False
    return job.remaining_examples < GUESS_S * speed


def _most(job: Job, held: int, now: float) -> int:
    """Say up to where a job may grow in this round."""
    if job.performance is None:
        is_due = job.running_since is not None and now - job.running_since > PATIENCE_S
        first = job.max_accelerators if is_due else FIRST_COUNT
        return min(max(job.min_accelerators, first, held), job.max_accelerators)
    seen = max(job.most_accelerators, held)
    if seen == 0:  # somebody knows how fast it goes before it ever ran
        return job.max_accelerators
    return min(max(GROWTH * seen, job.min_accelerators), job.max_accelerators)


def _work(jobs: tuple[Job, ...], counts: Counts, rates: Floats) -> Floats:
    """Give the useful examples that are left of each job. Shape (M,)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(counts > 0, rates / counts, 0.0)
    single = each.max(axis=(1, 2), initial=0.0)
    work = np.empty(len(jobs))
    for row, job in enumerate(jobs):
        left = job.remaining_examples if job.performance is not None else None
        if left is None and job.loss is not None and job.performance is not None:
            left = _until_settled(job)
        if left is None:  # heavy-tailed: expect as much again as it has had
            left = single[row] * max(job.attained_accelerator_s, UNKNOWN_WORK_S)
        work[row] = max(left, single[row], 1e-9)
    return work


def _until_settled(job: Job) -> float | None:
    """Give the examples after which a job's loss hardly changes any more, by its forecast."""
    assert job.loss is not None
    examples = float(max(job.global_batch_size, 1))
    before = job.loss.loss(examples)
    for _ in range(50):
        after = job.loss.loss(2.0 * examples)
        if before - after < SETTLED * job.loss.normaliser:
            return examples
        examples, before = 2.0 * examples, after
    return None
