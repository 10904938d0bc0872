"""The rule of Selective-Backprop: which candidates are chosen, given their losses.

A choice is a function of (seed, epoch, example index) and of the losses alone. Processes, the
number of trainers and the order of calls do not matter.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

#: Distinguishes these draws from the shuffles and from the random numbers of steps.
SELECTION_DRAWS = 0x53454C45
_MANTISSA_BITS = 53


def draws_of_epoch(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """Draw one number in [0, 1) per example index: float64 [num_examples].

    Philox is counter-based, and its raw stream is fixed between NumPy versions.
    """
    sequence = np.random.SeedSequence(entropy=(seed % 2**64, SELECTION_DRAWS, epoch))
    words = np.random.Philox(sequence).random_raw(num_examples)
    shift = np.uint64(64 - _MANTISSA_BITS)
    drawn: np.ndarray = (words >> shift).astype(np.float64) * 2.0**-_MANTISSA_BITS
    return drawn


def ranked_losses(losses: np.ndarray) -> np.ndarray:
    """Convert losses to float32 with one representation each, so that equal losses have equal bits.

    NaN, which has no rank, counts as infinite. Zeros lose their sign, and numbers below the
    smallest normal one become zero: both depend on how many trainers a loss was gathered from.
    """
    values = np.asarray(losses).astype(np.float32)
    values[np.isnan(values)] = np.inf
    values[np.abs(values) < np.finfo(np.float32).tiny] = 0.0
    return values


def mean_loss(losses: np.ndarray) -> float:
    """Return the mean of losses, whether chosen or not; infinite if one of them is not finite.

    The sum is rounded once, so the mean does not depend on the processor. Examples of weight 0,
    whose losses are minus infinite, count as 0, as in training.
    """
    values = ranked_losses(losses)
    values[np.isneginf(values)] = 0.0
    return math.fsum(values) / len(values) if np.isfinite(values).all() else math.inf


def history_with(history: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Append `losses` to a history of fixed length (NaN: no loss yet); the oldest drop out."""
    joined: np.ndarray = np.concatenate([history, losses])[-len(history) :]
    return joined


def chances(
    history: np.ndarray, losses: np.ndarray, beta: float, loss_cap: float = 0.0
) -> np.ndarray:
    """Return the chance of each loss to be chosen: (share of the history strictly below)^beta.

    Losses of which `1 - loss_cap / 100` of the history or more lie below have no chance. Infinite
    losses are always chosen, so that the job's rule for non-finite losses sees them; so is
    everything while all losses of the history are equal, which ranks nothing.

    Args:
        history: float32 [R], NaN where there is no loss yet; at least one loss.
        losses: float32 [n] without NaN.
        loss_cap: percentage of the largest losses that are left out.

    Returns:
        float64 [n].
    """
    known = np.sort(history[~np.isnan(history)])
    assert len(known), "the candidates' losses are in the history"
    if known[0] == known[-1]:
        return np.ones(len(losses))
    below = np.searchsorted(known, losses, side="left")
    found: np.ndarray = _chances_by_rank(len(known), beta, loss_cap)[below]
    return np.where(np.isinf(losses), 1.0, found)


def is_chosen(draws: np.ndarray, chance: np.ndarray | float) -> np.ndarray:
    """Return which examples are chosen, given their draws: bool [n]."""
    chosen: np.ndarray = draws < chance
    return chosen


@lru_cache(maxsize=256)
def _chances_by_rank(num_losses: int, beta: float, loss_cap: float) -> np.ndarray:
    """Tabulate the chance by the number of smaller losses, 0 to `num_losses`.

    Computed by the C library: NumPy's own power differs in the last bit between processors.
    """
    most = num_losses * (1.0 - loss_cap / 100.0) if loss_cap else math.inf
    table = np.array(
        [
            math.pow(rank / num_losses, beta) if rank < most else 0.0
            for rank in range(num_losses + 1)
        ]
    )
    table.setflags(write=False)
    return table
