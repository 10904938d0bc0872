"""An application defined only by its speed by number of accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from controlplane.simulator.applications.steady import SteadyApplication
from controlplane.simulator.applications.step_times import Floats

#: Images per second of ResNet-50 at a fixed batch, by number of V100s (VirtualFlow, MLSys 2022).
RESNET50: Mapping[int, float] = MappingProxyType({1: 1248.0, 2: 2446.0, 4: 4660.0, 8: 8516.0})


def scaling(most: int) -> Floats:
    """Return speeds on 0..`most` accelerators, relative to one, that scale as ResNet-50 did.

    Speeds are interpolated between the measured numbers; beyond, every doubling has the gain of the
    last measured one.
    """
    speeds = {number: rate / RESNET50[1] for number, rate in RESNET50.items()}
    number = max(speeds)
    while number < most:
        speeds[2 * number] = speeds[number] * speeds[number] / speeds[number // 2]
        number *= 2
    return np.interp(np.arange(most + 1), [0, *speeds], [0.0, *speeds.values()])


@dataclass
class ScaledApplication(SteadyApplication):
    """Work in examples, at a rate that depends on the number of accelerators alone.

    Attributes:
        rates: examples per second on 0, 1, 2 ... accelerators.
        speeds: kind of accelerator -> factor on `rates`.
    """

    rates: Floats
    speeds: Mapping[str, float] = field(default_factory=dict)

    def rate(self, kind: str, num_accelerators: int, num_nodes: int) -> float:  # noqa: ARG002
        count = min(num_accelerators, len(self.rates) - 1)
        return float(self.rates[count]) * self.speeds.get(kind, 1.0)

    def most_accelerators(self, batch_size: int | None) -> int:  # noqa: ARG002
        return len(self.rates) - 1

    def packed_paces(
        self,
        kind: str,
        most: int,
        per_node: int,  # noqa: ARG002
        batch_size: int | None,  # noqa: ARG002
        epoch: int,  # noqa: ARG002
    ) -> Floats:
        counts = np.minimum(np.arange(most + 1), len(self.rates) - 1)
        return np.asarray(self.rates[counts] * self.speeds.get(kind, 1.0))
