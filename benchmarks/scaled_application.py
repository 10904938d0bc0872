# ruff: noqa: ARG002  (the arguments are those of every application)
"""An application of which only its speed by number of accelerators is known. Simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from controlplane.core.performance import LossForecast
from controlplane.simulator.applications import Pace
from controlplane.simulator.batches import Batch


@dataclass
class ScaledApplication:
    """Work in examples, done at a rate that depends on the number of accelerators alone.

    Attributes:
        work: examples in all.
        rates: examples a second on 0, 1, 2 ... accelerators.
    """

    name: str
    work: float
    rates: NDArray[np.float64]
    _ends: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._ends = (0.0, self.work)

    @property
    def progress_ends(self) -> Sequence[float]:
        return self._ends

    @property
    def examples_per_progress(self) -> float:
        return 1.0

    def most_accelerators(self, batch_size: int | None) -> int:
        return len(self.rates) - 1

    def batch(
        self, kind: str, placement: tuple[int, ...], batch_size: int | None, epoch: int
    ) -> Batch | None:
        return Batch(sum(placement), 1, 1)

    def pace(self, kind: str, placement: tuple[int, ...], batch: Batch, epoch: int) -> Pace:
        rate = float(self.rates[sum(placement)])
        return Pace(rate, batch, step_s=1.0 / rate)

    def packed_paces(
        self, kind: str, most: int, per_node: int, batch_size: int | None, epoch: int
    ) -> NDArray[np.float64]:
        return self.rates[: most + 1]

    def examples_per_s(
        self,
        kind: str,
        placement: tuple[int, ...],
        batch_size: int,
        *,
        slices_alone: bool = False,
    ) -> float:
        return float(self.rates[sum(placement)])

    def packed_examples_per_s(
        self, kind: str, most: int, per_node: int, batch_size: int, *, slices_alone: bool = False
    ) -> NDArray[np.float64]:
        return self.rates[: most + 1]

    def examples_left(self, batch_size: int, epoch: int, progress: float) -> float:
        return self.work - progress

    def quality(self, epoch: int, progress: float) -> float:
        return progress / self.work

    def forecast(self, epoch: int, progress: float) -> LossForecast | None:
        return None
