"""How many accelerators of one kind each job gets now: whole numbers, and changes that pay.

Most worth a second, where what a change costs is spread over the time for which it is made. On
small pools the best split is found exactly (a knapsack), on large ones along concave envelopes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controlplane.core.policies.goodput_fair.envelopes import envelopes_of
from controlplane.core.policies.goodput_fair.fairness_cost import SENIOR_PART
from controlplane.core.policies.goodput_fair.rate_tables import (
    PATIENCE_S,
    SMALL_POOL,
    Counts,
    Floats,
)

#: A change is made for this long at most: until the next one is worth while.
CHANGE_LASTS_S = 240.0

#: A change costs a job at least this much of its training: accelerators idle while it comes about.
LEAST_CHANGE_S = 3.0

#: To be stopped and started again later costs a job this much on top.
RESTART_S = 10.0

#: A change has to gain a job that holds something this share of what it does: measured speeds err.
LEAST_GAIN = 0.05

#: And so much more right after its last change: little has been measured since, and to and fro
#: costs twice. That fades with the time since, in seconds.
FRESH_GAIN, FRESH_S = 0.3, 60.0

#: A change that costs nearly all it could bring is still better than standing idle.
LEAST_LEFT = 0.05

#: Who has gone without for so long is to have its minimum.
OWED_S = 1800.0

#: The exact way is taken for at most this many jobs.
MOST_EXACT = 256


@dataclass(frozen=True)
class Claims:
    """The N jobs of one kind, what they hold of it, and what they could do with it.

    Attributes:
        counts, rates: points in ascending order and useful examples per second. Shape (N, G).
        held: accelerators of this kind that each holds now. Shape (N,).
        is_elsewhere: whether it holds accelerators of another kind. Shape (N,).
        is_fixed: whether its count cannot change now, as a change is under way. Shape (N,).
        is_settling: whether it has just begun and is not to be stopped yet. Shape (N,).
        least: its minimum. Shape (N,).
        worth: weight-seconds of an example. Shape (N,).
        weights: as its owner gave it. Shape (N,).
        change_s: seconds of training that a change costs it. Shape (N,).
        since_s: since when nothing has changed about it; infinite: it never had any. Shape (N,).
        ends_s: when it ends by the forecast. Shape (N,).
        work: useful examples left. Shape (N,).
        lacking_s: for how long it has gone without. Shape (N,).
        is_known: whether anything is known of its speed. Shape (N,).
        is_new: whether it never ran, and nothing is known. Shape (N,).
    """

    counts: Counts
    rates: Floats
    held: Counts
    is_elsewhere: NDArray[np.bool_]
    is_fixed: NDArray[np.bool_]
    is_settling: NDArray[np.bool_]
    least: Counts
    worth: Floats
    weights: Floats
    change_s: Floats
    since_s: Floats
    ends_s: Floats
    work: Floats
    lacking_s: Floats
    is_known: NDArray[np.bool_]
    is_new: NDArray[np.bool_]

    def values(self) -> Floats:
        """Give the worth a second of each point over that of nothing, less what it costs to change.

        Shape (N, G); -inf between nothing and the minimum. Stopping a job costs it its restart.
        """
        is_held = self.held > 0
        lost = np.where(is_held | self.is_elsewhere, self.change_s, 0.0)
        lost = lost + np.where(self.is_elsewhere, RESTART_S, 0.0)
        doubt = doubt_of(self.since_s)
        # A change takes its part of the time until the job ends with it, or until the next one.
        with np.errstate(divide="ignore"):
            until_s = lost[:, None] + self.work[:, None] / self.rates
        left = 1.0 - lost[:, None] / np.minimum(np.maximum(until_s, 1.0), CHANGE_LASTS_S)
        left = np.maximum(left - np.where(is_held, doubt, 0.0)[:, None], LEAST_LEFT)
        gain = self.worth[:, None] * self.rates
        is_same = (self.counts == self.held[:, None]) & is_held[:, None]
        values = np.where(is_same, gain, gain * left)
        holding = np.where(is_same, gain, 0.0).max(axis=1, initial=0.0)
        lasts = np.minimum(CHANGE_LASTS_S, np.maximum(self.ends_s, 1.0))
        stopping = holding * np.minimum((self.change_s + RESTART_S) / lasts + doubt, 1.0)
        values = values + stopping[:, None]
        values = np.where(self.counts < self.least[:, None], -np.inf, values)
        is_other = (self.is_fixed & is_held)[:, None] & ~is_same & (self.counts > 0)
        values = np.where(is_other, -np.inf, values)
        return np.where(self.counts == 0, 0.0, values)

    def beginners(self, capacity: int) -> NDArray[np.bool_]:
        """Say who is to keep what it holds, as nothing is known of it yet. Shape (N,).

        It may be over before a change pays, so others give way first.
        """
        is_beginning = ~self.is_known & (self.held > 0) & (self.since_s < PATIENCE_S)
        return self._first(np.where(is_beginning, self.worth, -1.0), capacity, self.held)

    def seniors(self, capacity: int) -> NDArray[np.bool_]:
        """Say who is to have its minimum now, having gone without for longest. Shape (N,)."""
        order = np.where(self.lacking_s >= OWED_S, self.lacking_s, -1.0)
        return self._first(order, capacity, self.least)

    def newcomers(self, capacity: int) -> NDArray[np.bool_]:
        """Say who is to have its minimum now because it never ran, most worth first. Shape (N,).

        Most jobs are short, and what a job is worth shows only when it runs.
        """
        return self._first(np.where(self.is_new, self.worth, -1.0), capacity, self.least)

    def _first(self, order: Floats, capacity: int, claimed: Counts) -> NDArray[np.bool_]:
        """Choose the highest until what they claim fills `SENIOR_PART`; who is below 0 has none."""
        is_first = np.zeros(self.held.size, dtype=bool)
        total = 0
        for row in np.argsort(-order, kind="stable"):
            if order[row] < 0.0 or total >= SENIOR_PART * capacity:
                break
            is_first[row] = True
            total += int(claimed[row])
        return is_first


def doubt_of(since_s: Floats) -> Floats:
    """Give what part of what a job does a change has to gain it, so long after the last one."""
    doubt: Floats = LEAST_GAIN + FRESH_GAIN * np.exp(-since_s / FRESH_S)
    return doubt


def allot(claims: Claims, capacity: int) -> Counts:
    """Give each job its count. Shape (N,).

    If that would stop jobs that have just begun, or for others of which nothing is known, they
    stay. What waits for them to give way is then not overtaken by jobs that would have to be left
    to settle in their turn: only those start that would start anyway.
    """
    values = claims.values()
    most = float(values[np.isfinite(values)].max(initial=0.0))
    is_senior = claims.seniors(capacity) | claims.newcomers(capacity)
    values = np.where(is_senior[:, None] & (claims.counts > 0), values + 1e3 * most, values)
    keeps = claims.beginners(capacity)[:, None] & (claims.counts >= claims.held[:, None])
    values = np.where(keeps, values + 1e2 * most, values)
    ideal = _allot(claims, values, capacity)
    is_kept = (claims.is_settling | claims.is_fixed) & (claims.held > 0)
    is_kept |= _kept_from_guesses(claims, ideal)
    if not (is_kept & (ideal == 0)).any():
        return ideal
    values = np.where(is_kept[:, None] & (claims.counts > 0), values + 1e6 * most, values)
    is_out = (claims.held == 0) & (ideal == 0)
    values = np.where(is_out[:, None] & (claims.counts > 0), -np.inf, values)
    return _allot(claims, values, capacity)


def _kept_from_guesses(claims: Claims, ideal: Counts) -> NDArray[np.bool_]:
    """Say who is not to be stopped, as jobs of unknown speed are to get more. Shape (N,).

    Those may be important (a higher weight) or have a claim (`OWED_S`); else they get what others
    have above their minimum.
    """
    is_guess = ~claims.is_known & (ideal > claims.held) & (claims.lacking_s < OWED_S)
    heaviest = claims.weights[is_guess].max(initial=0.0)
    is_safe: NDArray[np.bool_] = (claims.held > 0) & (claims.weights >= heaviest)
    return is_safe & is_guess.any()


def _allot(claims: Claims, values: Floats, capacity: int) -> Counts:
    if capacity <= SMALL_POOL and claims.held.size <= MOST_EXACT:
        return _allot_exactly(claims.counts, values, capacity)
    return _allot_by_envelopes(claims.counts, values, capacity)


def _allot_exactly(counts: Counts, values: Floats, capacity: int) -> Counts:
    """Solve the knapsack of all jobs by dynamic programming over the capacity."""
    best = np.zeros(capacity + 1)  # of the jobs so far with at most so many accelerators
    chosen = np.zeros((counts.shape[0], capacity + 1), dtype=np.int64)
    room = np.arange(capacity + 1)
    for row, (points, worths) in enumerate(zip(counts, values, strict=True)):
        is_first = np.concatenate([[True], points[1:] > points[:-1]]) & np.isfinite(worths)
        points, worths = points[is_first], worths[is_first]
        rest = room[:, None] - points
        total = np.where(rest >= 0, best[np.maximum(rest, 0)] + worths, -np.inf)
        pick = np.argmax(total, axis=1)
        best = total[room, pick]
        chosen[row] = points[pick]
    given = np.zeros(counts.shape[0], dtype=np.int64)
    left = capacity
    for row in range(counts.shape[0] - 1, -1, -1):
        given[row] = chosen[row, left]
        left -= int(given[row])
    return given


def _allot_by_envelopes(counts: Counts, values: Floats, capacity: int) -> Counts:
    """Take steps of the concave envelopes, steepest first, and fill up with what still fits."""
    found = envelopes_of(counts, values)
    runs = np.diff(found.counts, axis=1).astype(np.int64)
    rows, steps = np.nonzero(runs)
    run = runs[rows, steps]
    slope = (np.diff(found.values, axis=1)[rows, steps]) / run
    order = np.argsort(-slope, kind="stable")
    rows, run = rows[order], run[order]
    total = np.cumsum(run)
    num_whole = int(np.searchsorted(total, capacity, side="right"))
    given = np.bincount(rows[:num_whole], run[:num_whole], counts.shape[0]).astype(np.int64)
    left = capacity - (int(total[num_whole - 1]) if num_whole else 0)
    done: set[int] = set()
    for row, step in zip(rows[num_whole:].tolist(), run[num_whole:].tolist(), strict=True):
        if left == 0:
            break
        if row in done:
            continue
        if step <= left:
            given[row] += step
            left -= step
            continue
        done.add(row)  # its next step does not fit as a whole
        have = given[row]
        is_fitting = (counts[row] >= have) & (counts[row] <= have + left)
        best = int(np.argmax(np.where(is_fitting, values[row], -np.inf)))
        if counts[row, best] > have:
            left -= int(counts[row, best] - have)
            given[row] = counts[row, best]
    return given
