"""Made-up answers to how fast a job goes, for the tests of policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Curve:
    """Amdahl's law by kind, and a tax on leaving one node. A `Performance`.

    goodput = speed * n / (1 + drag * (n - 1)) * (spread, when on several nodes)
    """

    speeds: Mapping[str, float] = field(default_factory=lambda: {"gpu": 1.0})
    drag: float = 0.0
    spread: float = 1.0

    def goodput(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        if num_accelerators < 1:
            return 0.0
        alone = num_accelerators / (1.0 + self.drag * (num_accelerators - 1))
        return self.speeds.get(kind, 0.0) * alone * (self.spread if num_nodes > 1 else 1.0)

    def goodputs(self, kind: str, most: int, per_node: int) -> NDArray[np.float64]:
        return np.array([self.goodput(kind, n, -(-n // per_node)) for n in range(most + 1)])

    def batch_size(self, kind: str, num_accelerators: int, num_nodes: int) -> int:
        return 64
