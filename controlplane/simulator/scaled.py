"""An application of which only its speed by number of accelerators is known."""

# ruff: noqa: ARG002  (the arguments are those of every application)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from controlplane.core.performance import LossForecast
from controlplane.simulator.applications import Pace
from controlplane.simulator.batches import Batch
from controlplane.simulator.step_times import Floats, Placement

#: Images a second of ResNet-50 at a fixed batch, by V100s (VirtualFlow, MLSys 2022).
RESNET50: Mapping[int, float] = MappingProxyType({1: 1248.0, 2: 2446.0, 4: 4660.0, 8: 8516.0})


def scaling(most: int) -> Floats:
    """Give speeds on 0..`most` accelerators, relative to one, that scale as ResNet-50 did.

    Between the measured numbers they are interpolated; beyond, every doubling brings what the last
    measured one did.
    """
    speeds = {number: rate / RESNET50[1] for number, rate in RESNET50.items()}
    number = max(speeds)
    while number < most:
        speeds[2 * number] = speeds[number] * speeds[number] / speeds[number // 2]
        number *= 2
    return np.interp(np.arange(most + 1), [0, *speeds], [0.0, *speeds.values()])


@dataclass
class ScaledApplication:
    """Work in examples, done at a rate that depends on the number of accelerators alone.

    Attributes:
        work: examples in all.
        rates: examples a second on 0, 1, 2 ... accelerators.
        speeds: kind of accelerator -> how many times as fast as `rates`.
    """

    name: str
    work: float
    rates: Floats
    speeds: Mapping[str, float] = field(default_factory=dict)

    @property
    def progress_ends(self) -> Sequence[float]:
        return (0.0, self.work)

    @property
    def examples_per_progress(self) -> float:
        return 1.0

    def most_accelerators(self, batch_size: int | None) -> int:
        return len(self.rates) - 1

    def batch(
        self, kind: str, placement: Placement, batch_size: int | None, epoch: int
    ) -> Batch | None:
        return Batch(sum(placement), 1, 1)

    def pace(self, kind: str, placement: Placement, batch: Batch, epoch: int) -> Pace:
        return Pace(self.examples_per_s(kind, placement, 1), batch)

    def packed_paces(
        self, kind: str, most: int, per_node: int, batch_size: int | None, epoch: int
    ) -> Floats:
        return self.packed_examples_per_s(kind, most, per_node, 1)

    def examples_per_s(
        self, kind: str, placement: Placement, batch_size: int, *, slices_alone: bool = False
    ) -> float:
        count = min(sum(placement), len(self.rates) - 1)
        return float(self.rates[count]) * self.speeds.get(kind, 1.0)

    def packed_examples_per_s(
        self, kind: str, most: int, per_node: int, batch_size: int, *, slices_alone: bool = False
    ) -> Floats:
        counts = np.minimum(np.arange(most + 1), len(self.rates) - 1)
        return np.asarray(self.rates[counts] * self.speeds.get(kind, 1.0))

    def examples_left(self, batch_size: int, epoch: int, progress: float) -> float:
        return self.work - progress

    def quality(self, epoch: int, progress: float) -> float:
        return progress / self.work

    def forecast(self, epoch: int, progress: float) -> LossForecast | None:
        return None
