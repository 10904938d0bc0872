"""Assignment of each job to one kind of accelerator.

Every kind has a price, and a job belongs where its worth most exceeds the price of its
accelerators. Jobs move a few at a time, the largest gains first, and prices follow. Prices alone do
not find every exchange, because a job that could go elsewhere at no loss is priced like any other.
So chains of moves are tried as well: one job moves whether there is room or not, and others follow
one by one (an ejection chain, as in local search for assignment problems). A job that holds one
kind moves to another only if the gain there exceeds the cost of starting there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from controlplane.core.policies.goodput_fair.counts import (
    LEAST_GAIN,
    RESTART_S,
    Wait,
    lives_s,
    part_left,
)
from controlplane.core.policies.goodput_fair.fairness_cost import FairnessCost
from controlplane.core.policies.goodput_fair.rate_tables import Counts, Floats, Options
from controlplane.core.policies.goodput_fair.shadow_prices import MANY_JOBS, Market, Valuation

#: Rounds of moves in a decision.
NUM_ROUNDS = 8

#: Number of new jobs that choose at a time.
AT_A_TIME = 32

#: Least relative gain of a move over staying, by prices.
LEAST_NET_GAIN = 0.02

#: Chains of moves that are applied at most, jobs that may begin one for each pair of kinds, and
#: jobs that follow.
NUM_CHAINS, NUM_STARTS, CHAIN_LENGTH = 4, 2, 6


class _Trade:
    """A state of the search: the kind of each job, and what each kind is worth and costs.

    Attributes:
        left: part of its remaining time that each job keeps on each kind. Shape (M, Q).
        value: worth per second of all jobs.
    """

    def __init__(
        self,
        market: Market,
        kinds: Counts,
        worth: Floats,
        left: Floats,
        cleared: Mapping[int, tuple[float, float, float]] | None = None,
    ) -> None:
        self.market, self.kinds, self._worth, self._left = market, kinds, worth, left
        num_kinds = left.shape[1]
        own = worth * np.where(kinds >= 0, left[np.arange(kinds.size), kinds], 1.0)
        known = cleared or {}
        self._cleared = {
            kind: known[kind] if kind in known else market.clear(kinds, own, kind)
            for kind in range(num_kinds)
        }
        values, coming, staying = np.array([self._cleared[kind] for kind in range(num_kinds)]).T
        self.value = float(values.sum())
        self._coming, self._staying = coming, staying

    def with_moves(self, rows: Counts, to: Counts) -> _Trade:
        """Return the state after jobs have moved."""
        kinds = self.kinds.copy()
        kinds[rows] = to
        changed = {*self.kinds[rows].tolist(), *to.tolist()}
        kept = {kind: found for kind, found in self._cleared.items() if kind not in changed}
        return _Trade(self.market, kinds, self._worth, self._left, kept)

    def moved(self, most: int, is_free: NDArray[np.bool_] | None = None) -> _Trade | None:
        """Move the jobs with most to gain; None: no job gains from a move."""
        is_there = self.kinds[:, None] == np.arange(self._left.shape[1])
        net = self._net(np.where(is_there, self._staying, self._coming))
        rows, best, gain = self._wishes(net)
        if is_free is not None:
            gain = np.where(is_free[rows], gain, 0.0)
        wishes = np.flatnonzero(gain > 0.0)
        if wishes.size == 0:
            return None
        chosen = wishes[np.argsort(-gain[wishes], kind="stable")[:most]]
        return self.with_moves(rows[chosen], best[chosen])

    def starts(self) -> list[tuple[int, int]]:
        """List first moves of chains, for each pair of kinds those that promise most.

        They promise what they would gain if the job on the kind with most to gain made room.
        """
        net = self._net(np.broadcast_to(self._staying, self._left.shape))
        found: list[tuple[int, int]] = []
        for own in range(self._left.shape[1]):
            rows = np.flatnonzero(self.kinds == own)
            for kind in range(self._left.shape[1]):
                gain = net[rows, kind] - net[rows, own] if kind != own else np.zeros(rows.size)
                order = np.argsort(-gain, kind="stable")[:NUM_STARTS]
                found += [(int(rows[at]), kind) for at in order if gain[at] > 0.0]
        return found

    def _net(self, prices: Floats) -> Floats:
        """Return each job's worth on each kind, less the price of its accelerators. Shape (M, Q).

        On a kind where a job cannot run, or must not go, it is 0.
        """
        gross = (self._worth[:, None] * self._left)[:, :, None] * self.market.rates
        net: Floats = (gross - prices[:, :, None] * self.market.counts).max(axis=2)
        return net

    def _wishes(self, net: Floats) -> tuple[Counts, Counts, Floats]:
        """Return jobs, the kind on which each is worth most, and its gain; 0: too little."""
        rows = np.flatnonzero(self.kinds >= 0)
        best = np.argmax(net[rows], axis=1)
        stay = net[rows, self.kinds[rows]]
        gain = net[rows, best] - stay
        return rows, best, np.where(gain > LEAST_NET_GAIN * np.maximum(stay, 1e-12), gain, 0.0)


def kinds_now(market: Market, standing: FairnessCost) -> tuple[Counts, Valuation]:
    """Return the kind of each job if no job moves (index, -1: none), and value all jobs there."""
    kinds = _first_kinds(market.options, standing)
    return kinds, market.valuate(kinds, standing)


def kinds_choose(
    market: Market,
    standing: FairnessCost,
    now: tuple[Counts, Valuation],
    change_s: Floats,
    is_pinned: NDArray[np.bool_],
) -> tuple[Counts, Valuation]:
    """Choose the kind of each job, from `kinds_now` on, and value all jobs there. Shape (M,).

    Pinned jobs stay on the kind that they hold. Others stay, too, if the forecast after their moves
    does not cost less: worths and prices hold for small changes, and of two equal jobs the one that
    is on the slower kind would always seem to gain more.
    """
    options = market.options
    kinds, valuation = now
    if len(options.kinds) < 2:
        return now
    left = _left_after_move(options, standing, valuation, change_s, is_pinned)
    trade = _Trade(market, kinds, valuation.worth, left)
    best = trade
    for turn in range(NUM_ROUNDS):
        # A quarter of all jobs move, then ever fewer.
        moved = trade.moved(max(int((kinds >= 0).sum()) >> (turn + 2), 1))
        if moved is None:
            break
        trade = moved
        if trade.value > best.value * (1.0 + 1e-9):
            best = trade
    if kinds.size <= MANY_JOBS:  # of many jobs no single one matters to prices
        best = _chained(best)
    if np.array_equal(best.kinds, kinds):
        return now
    after = market.valuate(best.kinds, standing)
    is_leaving = (options.held_kind >= 0) & (best.kinds != options.held_kind)
    saved = standing.costs(valuation.ends_s) - standing.costs(after.ends_s)
    moves = standing.slope(valuation.ends_s) * (change_s + RESTART_S)
    if not is_leaving.any() or saved.sum() > moves[is_leaving].sum():
        return best.kinds, after
    stay = np.where(is_leaving, options.held_kind, best.kinds)
    if np.array_equal(stay, kinds):
        return now
    return stay, market.valuate(stay, standing)


def idle_kinds(
    options: Options,
    kinds: Counts,
    given: Counts,
    causes: Counts,
    is_pinned: NDArray[np.bool_],
) -> Counts:
    """Return the kinds with jobs that get nothing moved to where their minimum is idle. Shape (M,).

    Prices do not know who is not stopped, so a kind may have no room for a job that belongs there
    by its worth. A kind is left to a job that waits there for others that are not stopped yet, but
    not to one of unknown speed that has run before: others are stopped for it much later.
    """
    num_kinds = len(options.kinds)
    waiting = np.flatnonzero((kinds >= 0) & (given == 0) & ~is_pinned)
    if num_kinds < 2 or waiting.size == 0:
        return kinds
    idle = options.capacity - np.bincount(kinds[given > 0], given[given > 0], num_kinds)
    is_new = np.array([job.changed_at is None for job in options.jobs])
    is_soon = (causes == Wait.BEGUN) | ((causes == Wait.UNKNOWN) & is_new)
    idle[kinds[waiting[is_soon[waiting]]]] = 0
    found = kinds.copy()
    for row in waiting.tolist():
        least = options.jobs[row].min_accelerators
        rates = [options.rate(row, kind, least) for kind in range(num_kinds)]
        open_kinds = [kind for kind in range(num_kinds) if idle[kind] >= least and rates[kind] > 0]
        if open_kinds:
            found[row] = max(open_kinds, key=lambda kind: rates[kind])
            idle[found[row]] -= least
    return found


def _chained(best: _Trade) -> _Trade:
    """Apply chains of moves as long as they raise the worth of all, less the cost of moves."""
    for _ in range(NUM_CHAINS):
        found = max(
            (_chain(best, row, kind) for row, kind in best.starts()),
            key=lambda trade: trade.value,
            default=best,
        )
        if found.value <= best.value * (1.0 + 1e-9):
            break
        best = found
    return best


def _chain(trade: _Trade, row: int, kind: int) -> _Trade:
    """Move one job and let others follow, each at most once; return the best state on the way."""
    is_free = np.ones(trade.kinds.size, dtype=bool)
    trade = best = trade.with_moves(np.array([row]), np.array([kind]))
    is_free[row] = False
    for _ in range(CHAIN_LENGTH):
        moved = trade.moved(1, is_free)
        if moved is None:
            break
        is_free &= moved.kinds == trade.kinds
        trade = moved
        if trade.value > best.value:
            best = trade
    return best


def _first_kinds(options: Options, standing: FairnessCost) -> Counts:
    """Leave a job on its kind, or choose that where its share by weight would be fastest.

    New jobs choose some at a time; later ones take the choices of earlier ones into account.
    """
    num_kinds = len(options.kinds)
    kinds = options.held_kind.copy()
    weights = np.array([standing.weights[kinds == kind].sum() for kind in range(num_kinds)])
    least = np.array([job.min_accelerators for job in options.jobs])
    fresh = np.flatnonzero(kinds < 0)
    for first in range(0, fresh.size, AT_A_TIME):
        rows = fresh[first : first + AT_A_TIME]
        own = standing.weights[rows, None]
        share = np.maximum(options.capacity * own / (weights + own), least[rows, None])
        is_within = options.counts[rows] <= share[:, :, None]
        speeds = np.where(is_within, options.rates[rows], 0.0).max(axis=2)
        kinds[rows] = np.where(speeds.max(axis=1) > 0.0, np.argmax(speeds, axis=1), -1)
        for kind in range(num_kinds):
            weights[kind] += standing.weights[rows[kinds[rows] == kind]].sum()
    return kinds


def _left_after_move(
    options: Options,
    standing: FairnessCost,
    valuation: Valuation,
    change_s: Floats,
    is_pinned: NDArray[np.bool_],
) -> Floats:
    """Return the part of its remaining time that each job keeps on each kind; 1 on its own. (M, Q).

    The part is 0 for a move that is not allowed.
    """
    left = np.ones((options.held_kind.size, len(options.kinds)))
    rows = np.flatnonzero(options.held_kind >= 0)
    lives = lives_s(standing.since_s[rows], change_s[rows])
    ends_s = valuation.ends_s[rows]
    part = (1.0 - LEAST_GAIN) * part_left(change_s[rows] + RESTART_S, lives, ends_s)
    left[rows] = np.where(is_pinned[rows], 0.0, part)[:, None]
    left[rows, options.held_kind[rows]] = 1.0
    return left
