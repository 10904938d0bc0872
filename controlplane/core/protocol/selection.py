"""Example selection of a training job: which examples of an epoch it trains on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class SelectionMethod(StrEnum):
    """Rule by which the examples of a training step are chosen."""

    NONE = "none"
    SELECTIVE_BACKPROP = "selective_backprop"
    STALE_SELECTIVE_BACKPROP = "stale_selective_backprop"
    RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSpec:
    """Selection of examples by their losses (Selective-Backprop, arXiv 1910.00762).

    Attributes:
        beta: exponent of the chance; `RANDOM` chooses the same share, whatever the losses.
        history: number of newest losses among which a loss is ranked.
        stale_every: with the stale method, epochs from one forward pass to the next.
        start: first epoch that selects, at least 1: the first epoch trains on everything.
        end: first epoch that trains on everything again; None: no such epoch.
        loss_cap: percentage of the largest losses that are left out.
    """

    method: SelectionMethod
    beta: float = 1.0
    history: int = 1024
    stale_every: int = 3
    start: int = 1
    end: int | None = None
    loss_cap: float = 0.0

    def selects(self, epoch: int) -> bool:
        """Return whether an epoch trains on chosen examples alone."""
        is_begun = self.method is not SelectionMethod.NONE and epoch >= self.start
        return is_begun and (self.end is None or epoch < self.end)

    @property
    def needs_losses(self) -> bool:
        """Return whether examples are chosen by their losses."""
        by_losses = (SelectionMethod.SELECTIVE_BACKPROP, SelectionMethod.STALE_SELECTIVE_BACKPROP)
        return self.method in by_losses

    def forwards(self, epoch: int) -> bool:
        """Return whether an epoch that selects computes the losses of its candidates."""
        if self.method is SelectionMethod.STALE_SELECTIVE_BACKPROP:
            return (epoch - self.start) % self.stale_every == 0
        return self.method is SelectionMethod.SELECTIVE_BACKPROP

    @property
    def expected_share(self) -> float:
        """Share of the candidates that is chosen on average if losses are distinct."""
        return math.pow(1.0 - self.loss_cap / 100.0, self.beta + 1.0) / (self.beta + 1.0)
