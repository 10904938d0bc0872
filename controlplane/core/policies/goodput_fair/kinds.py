"""Assignment of each job to one kind of accelerator.

Every kind has a price, and a job belongs where its worth most exceeds the price of its
accelerators. Jobs move a few at a time, the largest gains first, and prices follow. A job that
holds one kind moves to another only if the gain there exceeds the cost of starting there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from controlplane.core.policies.goodput_fair.counts import (
    CHANGE_LASTS_S,
    RESTART_S,
    doubt_of,
)
from controlplane.core.policies.goodput_fair.fairness_cost import FairnessCost
from controlplane.core.policies.goodput_fair.rate_tables import Counts, Floats, Options
from controlplane.core.policies.goodput_fair.shadow_prices import Market, Valuation

#: Rounds of moves in a decision.
NUM_ROUNDS = 8

#: Number of new jobs that choose at a time.
AT_A_TIME = 32

#: Least relative gain of a move over staying.
LEAST_GAIN = 0.02


def kinds_choose(
    market: Market, standing: FairnessCost, change_s: Floats, is_pinned: NDArray[np.bool_]
) -> tuple[Counts, Valuation]:
    """Choose the kind of each job (index, -1: none) and value all jobs there. Shape (M,).

    Pinned jobs stay on the kind that they hold.
    """
    options = market.options
    first = kinds = _first_kinds(options, standing)
    valuation = market.valuate(kinds, standing)
    if len(options.kinds) < 2:
        return kinds, valuation
    left = _left_after_move(options, standing, valuation, change_s, is_pinned)
    best, most = kinds, -np.inf
    for turn in range(NUM_ROUNDS + 1):
        own = np.where(kinds >= 0, left[np.arange(kinds.size), kinds], 1.0)
        value, prices = market.clear(kinds, valuation.worth * own)
        if value > most * (1.0 + 1e-9) or not np.isfinite(most):
            best, most = kinds, value
        moved = _moved(market, kinds, valuation.worth, prices, left, turn)
        if moved is None:
            break
        kinds = moved
    if np.array_equal(best, first):
        return best, valuation
    return best, market.valuate(best, standing)


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

    The part is 0 for a move that takes as long as the job lasts and for a move that is not allowed.
    """
    left = np.ones((options.held_kind.size, len(options.kinds)))
    rows = np.flatnonzero(options.held_kind >= 0)
    lasts = np.minimum(CHANGE_LASTS_S, np.maximum(valuation.ends_s[rows], 1.0))
    doubt = doubt_of(standing.since_s[rows])
    part = np.maximum(1.0 - (change_s[rows] + RESTART_S) / lasts - doubt, 0.0)
    left[rows] = np.where(is_pinned[rows], 0.0, part)[:, None]
    left[rows, options.held_kind[rows]] = 1.0
    return left


def _moved(
    market: Market,
    kinds: Counts,
    worth: Floats,
    prices: Sequence[float],
    left: Floats,
    turn: int,
) -> Counts | None:
    """Move the jobs with most to gain; None: no job gains from a move.

    On a kind where a job cannot run, or must not go, its net worth is 0.
    """
    gross = (worth[:, None] * left)[:, :, None] * market.rates
    net = (gross - np.array(prices)[:, None] * market.counts).max(axis=2)
    rows = np.flatnonzero(kinds >= 0)
    best = np.argmax(net[rows], axis=1)
    stay = net[rows, kinds[rows]]
    gain = net[rows, best] - stay
    wishes = np.flatnonzero(gain > LEAST_GAIN * np.maximum(np.abs(stay), 1e-12))
    if wishes.size == 0:
        return None
    most = max(rows.size >> (turn + 2), 1)
    chosen = wishes[np.argsort(-gain[wishes], kind="stable")[:most]]
    moved = kinds.copy()
    moved[rows[chosen]] = best[chosen]
    return moved
