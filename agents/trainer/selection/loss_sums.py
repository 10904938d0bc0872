"""Sums of the losses of chosen and of skipped examples."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from operator import add

import numpy as np


@dataclass(frozen=True)
class LossSums:
    """Sums and numbers of finite losses; a pass is summed exactly, whatever the processor."""

    chosen: float = 0.0
    num_chosen: int = 0
    skipped: float = 0.0
    num_skipped: int = 0

    @classmethod
    def of(cls, chosen: np.ndarray, skipped: np.ndarray) -> LossSums:
        """Sum the losses of one pass; those that are not known or not finite are left out."""
        chosen, skipped = chosen[np.isfinite(chosen)], skipped[np.isfinite(skipped)]
        return cls(math.fsum(chosen), len(chosen), math.fsum(skipped), len(skipped))

    def with_pass(self, other: LossSums) -> LossSums:
        """Add the sums of another pass."""
        return LossSums(*map(add, astuple(self), astuple(other)))

    def logs(self) -> dict[str, float]:
        """Return the mean losses under their names in an epoch's logs, where there are any."""
        means = {}
        if self.num_chosen:
            means["selected_loss"] = self.chosen / self.num_chosen
        if self.num_skipped:
            means["skipped_loss"] = self.skipped / self.num_skipped
        return means
