"""Which kind of accelerator each job is given.

Every kind has a price, and a job belongs where it gets most over what its accelerators cost. Jobs
move a few at a time, those with most to gain first, and prices follow. A job that holds one kind
moves to another only if that pays for starting there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from controlplane.core.policies.goodput_fair.allotment import CHANGE_LASTS_S, RESTART_S
from controlplane.core.policies.goodput_fair.options import Counts, Floats, Options
from controlplane.core.policies.goodput_fair.standing import Standing
from controlplane.core.policies.goodput_fair.worth import Market, Valuation

#: Rounds of moves in a decision.
NUM_ROUNDS = 8

#: So many new jobs choose at a time.
AT_A_TIME = 32

#: A move has to promise this much more than staying, relatively.
LEAST_GAIN = 0.02


def kinds_choose(
    market: Market, standing: Standing, change_s: Floats, is_pinned: NDArray[np.bool_]
) -> tuple[Counts, Valuation]:
    """Choose the kind of each job (index, -1: none) and value all jobs there. Shape (M,).

    Those that are pinned stay on the kind that they hold.
    """
    options = market.options
    first = kinds = _first_kinds(options, standing)
    valuation = market.valuate(kinds, standing)
    if len(options.kinds) < 2:
        return kinds, valuation
    penalty = _move_penalty(options, valuation, change_s)
    others = np.arange(len(options.kinds)) != options.held_kind[:, None]
    penalty[others & (is_pinned & (options.held_kind >= 0))[:, None]] = np.inf
    best, most = kinds, -np.inf
    for turn in range(NUM_ROUNDS + 1):
        value, prices = market.clear(kinds, valuation.worth)
        value -= float(penalty[np.arange(kinds.size), kinds][kinds >= 0].sum())
        if value > most * (1.0 + 1e-9) or not np.isfinite(most):
            best, most = kinds, value
        moved = _moved(market, kinds, valuation.worth, prices, penalty, turn)
        if moved is None:
            break
        kinds = moved
    if np.array_equal(best, first):
        return best, valuation
    return best, market.valuate(best, standing)


def _first_kinds(options: Options, standing: Standing) -> Counts:
    """Put a job where it is, or where its share of the weight would go fastest.

    Those that come new choose some at a time, and count where they went from then on.
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


def _move_penalty(options: Options, valuation: Valuation, change_s: Floats) -> Floats:
    """Give what it costs each job a second to be on each kind, 0 where it is. Shape (M, Q)."""
    num, num_kinds, _ = options.counts.shape
    penalty = np.zeros((num, num_kinds))
    rows = np.flatnonzero(options.held_kind >= 0)
    own = options.held_kind[rows]
    is_here = options.counts[rows, own] == options.held[rows, None]
    rate = np.where(is_here, options.rates[rows, own], 0.0).max(axis=1, initial=0.0)
    lasts = np.minimum(CHANGE_LASTS_S, np.maximum(valuation.ends_s[rows], 1.0))
    share = np.minimum((change_s[rows] + RESTART_S) / lasts, 1.0)
    penalty[rows] = (valuation.worth[rows] * rate * share)[:, None]
    penalty[rows, own] = 0.0
    return penalty


def _moved(
    market: Market,
    kinds: Counts,
    worth: Floats,
    prices: Sequence[float],
    penalty: Floats,
    turn: int,
) -> Counts | None:
    """Let those with most to gain move; None: nobody wants to."""
    gross = worth[:, None, None] * market.rates - np.array(prices)[:, None] * market.counts
    net = gross.max(axis=2) - penalty
    net[market.rates.max(axis=2) <= 0.0] = -np.inf
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
