"""Number of accelerators of one kind that each job gets now: whole numbers, only paying changes.

The allotment maximises the worth per second; the cost of a change is spread over the time for which
the change is made. On small pools the optimum is found exactly (a knapsack), on large ones
approximately along concave envelopes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

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
from controlplane.core.policies.goodput_fair.resize_limits import LARGE_GAIN

#: Expected life of a change, as a part of the time since the one before: what has lasted for long
#: lasts for longer, and what has just been changed is soon changed again.
LIFE = 0.4

#: Changes' worth of time that is added to the time since the last change: a prior for its life.
LIFE_CHANGES = 4.0

#: Additional cost in seconds of stopping a job and starting it again later.
RESTART_S = 10.0

#: Least relative gain of a change for a job that holds accelerators: measured speeds err.
LEAST_GAIN = 0.1

#: A job that has lacked accelerators for this many seconds is to have its minimum; where that
#: is large, so that many others give way, only after a part of its fair time: as the minimum, less
#: one, is to `SENIOR_PART`.
OWED_S = 1800.0

#: A job that never ran is to have its minimum after so many seconds, as it may be short.
NEW_OWED_S = 30.0

#: The exact method is used for at most this many jobs.
MOST_EXACT = 256


@dataclass(frozen=True)
class Claims:
    """The N jobs of one kind, the accelerators of it that they hold, and their rates on it.

    Attributes:
        counts, rates: points in ascending order and useful examples per second. Shape (N, G).
        held: accelerators of this kind that each holds now. Shape (N,).
        is_elsewhere: whether it holds accelerators of another kind. Shape (N,).
        is_fixed: whether its count cannot change now, as a change is under way. Shape (N,).
        is_settling: whether it has just begun or ends soon, and is not to be stopped. Shape (N,).
        least: its minimum. Shape (N,).
        worth: weight-seconds of an example. Shape (N,).
        weights: weight as the job's owner set it. Shape (N,).
        change_s: seconds of training that a change costs it. Shape (N,).
        since_s: seconds since its last change; infinite: it never had one. Shape (N,).
        ends_s: forecast seconds until it ends. Shape (N,).
        work: useful examples left. Shape (N,).
        lacking_s: seconds for which it has lacked accelerators. Shape (N,).
        fair_s: completion time alone on its share. Shape (N,).
        is_known: whether anything is known of its speed. Shape (N,).
        is_new: whether it never ran and its speed is unknown. Shape (N,).
        is_trying: whether it measures its speed on what it holds (`probes`). Shape (N,).
        is_exhausted: whether it grows for large gains only (`resize_limits`). Shape (N,).
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
    fair_s: Floats
    is_known: NDArray[np.bool_]
    is_new: NDArray[np.bool_]
    is_trying: NDArray[np.bool_]
    is_exhausted: NDArray[np.bool_]

    def values(self) -> Floats:
        """Return the worth per second of each point over that of nothing, less the cost of change.

        Shape (N, G); -inf between nothing and the minimum. Stopping a job costs it its restart.
        """
        is_held = self.held > 0
        is_begun = is_held | self.is_elsewhere | np.isfinite(self.since_s)
        lost_s = np.where(is_begun, self.change_s, 0.0) + np.where(~is_held, RESTART_S, 0.0)
        lost_s = np.where(is_begun, lost_s, 0.0)  # a first start has to be made anyway
        life_s = lives_s(self.since_s, self.change_s)
        with np.errstate(divide="ignore"):
            lasts_s = np.minimum(self.work[:, None] / self.rates, life_s[:, None])
        left = part_left(lost_s[:, None], lasts_s)
        left = np.where(is_held[:, None], (1.0 - LEAST_GAIN) * left, left)
        gain = self.worth[:, None] * self.rates
        is_same = (self.counts == self.held[:, None]) & is_held[:, None]
        values = np.where(is_same, gain, gain * left)
        # A trial is worth what the job would have without it, so that it keeps nobody from growing;
        # and a trifle more, or the job would go back before it is measured.
        is_less = self.counts < self.held[:, None]
        before = np.where(is_less, values, 0.0).max(axis=1, initial=0.0)
        is_trial = is_same & self.is_trying[:, None]
        values = np.where(is_trial, np.maximum(values, before[:, None] * (1.0 + 1e-6)), values)
        holding = np.where(is_same, gain, 0.0).max(axis=1, initial=0.0)
        left = part_left(self.change_s + RESTART_S, life_s, self.ends_s)
        stopping = holding * (1.0 - (1.0 - LEAST_GAIN) * left)
        values = values + stopping[:, None]
        values = np.where(self.counts < self.least[:, None], -np.inf, values)
        values = np.where(self._excessive(is_same), -np.inf, values)
        is_other = (self.is_fixed & is_held)[:, None] & ~is_same & (self.counts > 0)
        values = np.where(is_other, -np.inf, values)
        return np.where(self.counts == 0, 0.0, values)

    def _excessive(self, is_same: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mask (N, G) of larger numbers that gain too little for a job that has had its changes.

        Args:
            is_same: mask of the present numbers. Shape (N, G).
        """
        rate = np.where(is_same, self.rates, 0.0).max(axis=1, initial=0.0)
        is_small = self.rates < LARGE_GAIN * rate[:, None]
        is_more = self.counts > np.maximum(self.held, self.least)[:, None]
        is_limited = self.is_exhausted & (self.held > 0)
        excessive: NDArray[np.bool_] = is_limited[:, None] & is_more & is_small
        return excessive

    def beginners(self, capacity: int) -> NDArray[np.bool_]:
        """Mask (N,) of jobs that keep their accelerators because their speed is still unknown.

        Such a job may be over before a change pays, so other jobs give way first.
        """
        is_beginning = ~self.is_known & (self.held > 0) & (self.since_s < PATIENCE_S)
        return self._first(np.where(is_beginning, self.worth, -1.0), capacity, self.held)

    def seniors(self, capacity: int) -> NDArray[np.bool_]:
        """Mask (N,) of jobs that get their minimum now because they lacked it longest.

        A job that has its turn keeps it until another one has lacked `OWED_S` more than it.
        """
        since_s = self.lacking_s + np.where(self.held > 0, OWED_S, 0.0)
        order = np.where(self._is_owed(capacity), since_s, -1.0)
        return self._first(order, capacity, self.least)

    def newcomers(self, capacity: int) -> NDArray[np.bool_]:
        """Mask (N,) of jobs that get their minimum now because they never ran, most worth first.

        Most jobs are short, and the worth of a job shows only when it runs.
        """
        return self._first(np.where(self.is_new, self.worth, -1.0), capacity, self.least)

    def owed(self, capacity: int) -> NDArray[np.bool_]:
        """Mask (N,) of jobs of unknown speed for which others may be stopped.

        These have lacked their minimum for `OWED_S`, or longer if it is large; or for `NEW_OWED_S`
        before their first start, as far as a part of the pool is not held by jobs of unknown speed
        already.
        """
        held = int(self.held[~self.is_known].sum())
        is_due = self.is_new & (self.lacking_s >= NEW_OWED_S)
        order = np.where(is_due, self.lacking_s, -1.0)
        return self._is_owed(capacity) | self._first(order, capacity, self.least, held)

    def _is_owed(self, capacity: int) -> NDArray[np.bool_]:
        """Mask (N,) of jobs whose turn it is, if there is room for all of these."""
        part = np.minimum((self.least - 1) / max(SENIOR_PART * capacity, 1.0), 1.0)
        is_owed: NDArray[np.bool_] = self.lacking_s >= np.maximum(OWED_S, part * self.fair_s)
        return is_owed

    def _first(
        self, order: Floats, capacity: int, claimed: Counts, total: int = 0
    ) -> NDArray[np.bool_]:
        """Choose rows by descending `order`, none below 0, until claims fill `SENIOR_PART`.

        Args:
            total: accelerators of that part that are claimed already.
        """
        is_first = np.zeros(self.held.size, dtype=bool)
        for row in np.argsort(-order, kind="stable"):
            if order[row] < 0.0 or total >= SENIOR_PART * capacity:
                break
            is_first[row] = True
            total += int(claimed[row])
        return is_first


def lives_s(since_s: Floats, change_s: Floats) -> Floats:
    """Return the expected seconds until a change is followed by another one.

    It is in proportion to the time since the last one (Lindy's law), in which `LIFE_CHANGES`
    changes are counted in advance. A change pays if it gains more than it costs in that time.
    """
    lives: Floats = np.maximum(LIFE * (since_s + LIFE_CHANGES * change_s), 1.0)
    return lives


def part_left(lost_s: Floats, lasts_s: Floats, ends_s: Floats | float = np.inf) -> Floats:
    """Return what is left of the gain of a change that costs some time and lasts for some more.

    Args:
        ends_s: seconds until the job ends without the change; nothing is left if it costs as much.
    """
    left = 1.0 / (1.0 + lost_s / np.maximum(lasts_s, 1.0))
    until_end = np.maximum(1.0 - lost_s / np.maximum(ends_s, 1.0), 0.0)
    return np.asarray(np.minimum(left, until_end))


class Wait(IntEnum):
    """Cause of a job's wait, or of the least of several."""

    GAINS = 0  # others have more to gain
    TURNS = 1  # others have more to gain, or their turn
    BEGUN = 2  # others are not stopped, as they have just begun or end soon
    UNKNOWN = 3  # others are not stopped for a job of unknown speed


def allot(claims: Claims, capacity: int) -> tuple[Counts, Counts]:
    """Compute each job's count, and the cause of its `Wait` if that is 0. Shapes (N,).

    Jobs that have just begun, and jobs that would make way for jobs of unknown speed, are not
    stopped. In that case only waiting jobs start that would start anyway: any other would have to
    be left to settle in its turn, and overtake the jobs that wait for room. A job of unknown
    speed that has run before is owed that room much later, so no accelerator is kept idle for it.
    """
    values = claims.values()
    most = float(values[np.isfinite(values)].max(initial=0.0))
    is_senior = claims.seniors(capacity) | claims.newcomers(capacity)
    values = _raised(claims, values, is_senior, 1e3 * most)
    keeps = claims.beginners(capacity)[:, None] & (claims.counts >= claims.held[:, None])
    values = np.where(keeps, values + 1e2 * most, values)
    ideal = _allot(claims, values, capacity)
    causes = np.full(claims.held.size, Wait.TURNS if is_senior.any() else Wait.GAINS)
    is_kept = (claims.is_settling | claims.is_fixed) & (claims.held > 0)
    keeping = _raised(claims, values, is_kept, 1e6 * most)
    is_kept |= _kept_from_guesses(claims, keeping, ideal, capacity)
    if not (is_kept & (ideal == 0)).any():
        return ideal, causes
    values = _raised(claims, values, is_kept, 1e6 * most)
    is_guess = ~claims.is_known & ~claims.owed(capacity)
    causes = np.where(ideal > 0, np.where(is_guess, Wait.UNKNOWN, Wait.BEGUN), causes)
    is_out = (claims.held == 0) & (ideal == 0)
    is_soon = ~is_guess | claims.is_new
    if (is_soon & (claims.held == 0) & (ideal > 0)).any():
        values = np.where(is_out[:, None] & (claims.counts > 0), -np.inf, values)
    return _allot(claims, values, capacity), causes


def _raised(claims: Claims, values: Floats, is_raised: NDArray[np.bool_], more: float) -> Floats:
    """Return the values with so much `more` for some jobs, on any number of accelerators."""
    raised: Floats = np.where(is_raised[:, None] & (claims.counts > 0), values + more, values)
    return raised


def _kept_from_guesses(
    claims: Claims, values: Floats, ideal: Counts, capacity: int
) -> NDArray[np.bool_]:
    """Mask (N,) of jobs that are not stopped so that jobs of unknown speed get more.

    None if `ideal` stops no such job. Jobs of unknown speed take accelerators above other jobs'
    minimum only, unless they have a higher weight or are owed their minimum. So those are kept that
    would not make way for jobs that wait and are of known speed, or are owed their minimum.

    Args:
        values: as in `claims`, with more for jobs that are kept anyway: others make way.
    """
    due = np.maximum(claims.held, np.where(claims.owed(capacity), claims.least, 0))
    is_guess = ~claims.is_known & (ideal > due)
    heaviest = claims.weights[is_guess].max(initial=0.0)
    is_safe: NDArray[np.bool_] = (claims.held > 0) & (claims.weights >= heaviest)
    if not (is_guess.any() and (is_safe & (ideal == 0)).any()):
        return np.zeros(is_safe.size, dtype=bool)
    is_limited = ~claims.is_known | (claims.held > 0)
    is_more = is_limited[:, None] & (claims.counts > due[:, None])
    return is_safe & (_allot(claims, np.where(is_more, -np.inf, values), capacity) > 0)


def _allot(claims: Claims, values: Floats, capacity: int) -> Counts:
    if capacity <= SMALL_POOL and claims.held.size <= MOST_EXACT:
        return _allot_exactly(claims.counts, values, capacity)
    return _allot_by_envelopes(claims.counts, values, capacity)


def _allot_exactly(counts: Counts, values: Floats, capacity: int) -> Counts:
    """Solve the knapsack of all jobs by dynamic programming over the capacity."""
    best = np.zeros(capacity + 1)  # value of the jobs so far on at most so many accelerators
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
    """Take steps of the concave envelopes, steepest first, then the counts that still fit."""
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
