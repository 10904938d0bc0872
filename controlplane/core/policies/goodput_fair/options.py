"""What each job could be given, and how fast it would go: the tables that everything else reads.

Counts of a kind are points of a grid: every count on small pools, on large ones every count up to
`FINE_COUNTS` and then whole nodes in steps of an eighth. Rates are replaced by their concave
envelope where a method needs falling marginal rates; a minimum (gang) makes its first step long.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controlplane.core.policies.rates import packed_rates, rate, rooms_of
from controlplane.core.pools import arrival_order, capacity_by_kind, held_by_kind, held_kind
from controlplane.core.types import Job, JobId, Snapshot

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
    per_node = {kind: max(rooms_of(snapshot, kind).values()) for kind in kinds}
    grids = {kind: _grid(capacity[kind], per_node[kind]) for kind in kinds}
    width = max((grid.size for grid in grids.values()), default=0) + 3
    counts = np.zeros((len(jobs), len(kinds), width), dtype=np.int64)
    rates = np.zeros(counts.shape)
    speeds = _speeds(jobs, kinds)
    staying = snapshot.resizing | {job.id for job in jobs if is_beginning(job, snapshot.now)}
    room = {
        kind: capacity[kind] - sum(held[one][kind] for one in staying if one in held)
        for kind in kinds
    }
    held_kinds, held_counts = np.full(len(jobs), -1), np.zeros(len(jobs), dtype=np.int64)
    for row, job in enumerate(jobs):
        own = held_kind(held[job.id])
        if own is not None and job.accepts(own):
            held_kinds[row], held_counts[row] = kinds.index(own), held[job.id][own]
        most = _most(job, int(held_counts[row]), snapshot.now)
        if held_counts[row] and own is not None:
            cap = min(most, capacity[own])
            speed = packed_rates(job, own, cap, per_node[own])[min(held_counts[row], cap)]
            if _ends_soon(job, float(speed)):
                seen = max(job.most_accelerators, int(held_counts[row]), job.min_accelerators)
                most = min(most, seen)
        cannot = _cannot_now(job, room, capacity) if own is None else frozenset()
        for column, kind in enumerate(kinds):
            cap = min(most, capacity[kind])
            if not job.accepts(kind) or cap < job.min_accelerators or kind in cannot:
                continue
            at = counts[row, column]
            at[: grids[kind].size] = np.minimum(grids[kind], cap)
            at[grids[kind].size :] = cap
            at[-1] = job.min_accelerators
            if held_kinds[row] == column:
                at[-2] = min(held_counts[row], cap)
            at.sort()
            table = packed_rates(job, kind, cap, per_node[kind])
            if job.performance is None:
                table = table**UNKNOWN_POWER * _kind_speed(job, kind, kinds, speeds)
            rates[row, column] = np.where(at >= job.min_accelerators, table[at], 0.0)
    sizes = np.array([capacity[kind] for kind in kinds], dtype=np.int64)
    work = _work(jobs, counts, rates)
    return Options(jobs, kinds, sizes, counts, rates, held_kinds, held_counts, work)


def is_beginning(job: Job, now: float) -> bool:
    """Say whether a job runs and nothing is known of its speed yet: it may be short."""
    since = job.running_since
    return job.performance is None and since is not None and now - since < PATIENCE_S


def _grid(capacity: int, per_node: int) -> Counts:
    if capacity <= SMALL_POOL:
        return np.arange(capacity + 1)
    points = list(range(FINE_COUNTS + 1))
    while points[-1] < capacity:
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


@dataclass(frozen=True)
class Envelopes:
    """Concave envelopes of rows of points, from (0, 0) on. N rows, at most H vertices.

    Attributes:
        counts, values: the vertices; the last one is repeated. Shape (N, H).
    """

    counts: Floats
    values: Floats


def envelopes_of(counts: Counts, values: Floats) -> Envelopes:
    """Take the concave envelope of each row, as far as it rises. Shapes (N, G), counts ascending.

    The first point of each row is its start. From each vertex the next one is the furthest of
    those with the steepest way up.
    """
    rows, width = np.arange(counts.shape[0]), counts.shape[1]
    at = np.zeros(counts.shape[0], dtype=np.int64)
    vertices = [at]
    for _ in range(width):
        if not rows.size:
            break
        run = counts - counts[rows, at][:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = np.where(run > 0, (values - values[rows, at][:, None]) / run, 0.0)
        best = slopes.max(axis=1)
        steepest = slopes >= best[:, None] * (1.0 - 1e-9)
        furthest = width - 1 - np.argmax(steepest[:, ::-1], axis=1)
        following = np.where(best > 0.0, furthest, at)
        if np.array_equal(following, at):
            break
        at = following
        vertices.append(at)
    chosen = np.stack(vertices, axis=1)
    return Envelopes(
        np.take_along_axis(counts, chosen, axis=1).astype(float),
        np.take_along_axis(values, chosen, axis=1),
    )
