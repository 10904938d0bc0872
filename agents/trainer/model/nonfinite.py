"""The rule when a job's loss counts as not finite. Pure, and the same on every trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from controlplane.core.protocol.codec import decode
from controlplane.core.protocol.nonfinite import Nonfinite

#: Consecutive steps with a non-finite loss that a loss scale may skip. Halving Keras's initial
#: scale, 2^15, at each reaches 1 after 15 steps; no scale helps if 20 have not.
SKIPPED_LIMIT = 20


@dataclass(frozen=True, slots=True)
class LossTrack:
    """The state of the rule for losses that are not finite, over all steps so far.

    Attributes:
        last_finite, last_finite_step: the newest finite loss and its step, from 1.
        run: the run of non-finite losses since then; None if there are none.
        skips_left: number of further steps of the run that the loss scale may skip.
        odd_epoch: newest epoch with a step whose loss is not finite, skipped or not.
    """

    last_finite: float | None = None
    last_finite_step: int | None = None
    run: Nonfinite | None = None
    skips_left: int = SKIPPED_LIMIT
    odd_epoch: int | None = None

    def after(self, loss: float, step: int, epoch: int, *, is_skipped: bool) -> LossTrack:
        """Add the loss of `step` (from 1); `is_skipped`: the loss scale skipped its update."""
        if math.isfinite(loss):
            return LossTrack(loss, step, odd_epoch=self.odd_epoch)
        run = self.run or Nonfinite(
            metric=None,
            value=str(loss),
            step=step,
            epoch=epoch,
            last_finite=self.last_finite,
            last_finite_step=self.last_finite_step,
        )
        left = max(self.skips_left - 1, 0) if is_skipped else 0
        if is_skipped and self.skips_left == 1:
            run = replace(run, num_skipped=SKIPPED_LIMIT)
        return replace(self, run=run, skips_left=left, odd_epoch=epoch)

    @property
    def finding(self) -> Nonfinite | None:
        """The run of non-finite losses; None while the loss scale may still end it."""
        return self.run if self.run is not None and self.skips_left == 0 else None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LossTrack:
        """Parse the result of `dataclasses.asdict`."""
        run = value["run"]
        return cls(**{**value, "run": None if run is None else decode(Nonfinite, run)})
