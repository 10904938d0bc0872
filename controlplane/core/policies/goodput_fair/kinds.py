"""Which kind of accelerator each job is given.

Every kind has a price, and a job belongs where it gets most over what its accelerators cost. Jobs
move a few at a time, those with most to gain first, and prices follow. A job that holds one kind
moves to another only if that pays for starting there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controlplane.core.policies.goodput_fair.allotment import CHANGE_LASTS_S, RESTART_S
from controlplane.core.policies.goodput_fair.options import Counts, Floats, Options
from controlplane.core.policies.goodput_fair.standing import Standing
from controlplane.core.policies.goodput_fair.worth import Market, Valuation

#: Rounds of moves in a decision.
NUM_ROUNDS = 12

#: A move has to promise this much more than staying, relatively.
LEAST_GAIN = 0.02


def kinds_choose(market: Market, standing: Standing, change_s: Floats) -> tuple[Counts, Valuation]:
    """Choose the kind of each job (index, -1: none) and value all jobs there. Shape (M,)."""
    options = market.options
    kinds = _first_kinds(options, standing)
    valuation = market.valuate(kinds, standing)
    if len(options.kinds) < 2:
        return kinds, valuation
    penalty = _move_penalty(options, valuation, change_s)
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
    if np.array_equal(best, _first_kinds(options, standing)):
        return best, valuation
    return best, market.valuate(best, standing)


def _first_kinds(options: Options, standing: Standing) -> Counts:
    """Put a job where it is, or where its share of the weight would go fastest."""
    num_kinds = len(options.kinds)
    kinds = options.held_kind.copy()
    weights = [float(standing.weights[kinds == kind].sum()) for kind in range(num_kinds)]
    for row in np.flatnonzero(kinds < 0):
        speeds: list[float] = []
        for kind in range(num_kinds):
            share = options.capacity[kind] * standing.weights[row]
            share /= weights[kind] + standing.weights[row]
            count = max(share, options.jobs[row].min_accelerators)
            at = np.searchsorted(options.counts[row, kind], count, side="right") - 1
            speeds.append(float(options.rates[row, kind, : at + 1].max()))
        chosen = int(np.argmax(speeds)) if speeds and max(speeds) > 0.0 else -1
        kinds[row] = chosen
        if chosen >= 0:
            weights[chosen] += float(standing.weights[row])
    return kinds


def _move_penalty(options: Options, valuation: Valuation, change_s: Floats) -> Floats:
    """Give what it costs each job a second to be on each kind, 0 where it is. Shape (M, Q)."""
    num, num_kinds, _ = options.counts.shape
    penalty = np.zeros((num, num_kinds))
    lasts = np.minimum(CHANGE_LASTS_S, np.maximum(valuation.ends_s, 1.0))
    for row in np.flatnonzero(options.held_kind >= 0):
        own = options.held_kind[row]
        at = np.searchsorted(options.counts[row, own], options.held[row])
        rate = options.rates[row, own, min(at, options.counts.shape[2] - 1)]
        share = min((change_s[row] + RESTART_S) / lasts[row], 1.0)
        penalty[row] = valuation.worth[row] * rate * share
        penalty[row, own] = 0.0
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
