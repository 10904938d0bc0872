"""When a tuned job searches again: at a plateau of its objective (MLtuner, arXiv 1803.07445)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

#: Epochs without a better objective after which the job searches again, and gives up tuning.
RETUNE_EPOCHS = 4
DONE_EPOCHS = 5


@dataclass(frozen=True, slots=True)
class Plateau:
    """The objective's best value so far, and the epochs since; `is_done` ends all tuning."""

    best: float | None = None
    epochs: int = 0
    is_done: bool = False

    @property
    def is_due(self) -> bool:
        """Return whether the job should search again before its next epoch."""
        return not self.is_done and self.epochs == RETUNE_EPOCHS

    def after_epoch(self, value: float, *, higher_is_better: bool) -> Plateau:
        """Return the state after an epoch whose objective is `value`; nan is never better."""
        is_better = math.isfinite(value) and (
            self.best is None or (value > self.best if higher_is_better else value < self.best)
        )
        if is_better:
            return replace(self, best=value, epochs=0)
        epochs = self.epochs + 1
        return replace(self, epochs=epochs, is_done=self.is_done or epochs >= DONE_EPOCHS)

    def after_search(self, *, has_winner: bool) -> Plateau:
        """Return the state after a search: without a trial that converges, tuning is over."""
        return replace(self, is_done=self.is_done or not has_winner)
