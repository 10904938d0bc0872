"""Queries of policies about one job: its speed on given accelerators, and its loss forecast.

Both are answered by models that are fitted once per report, never by a policy (see `throughput`
and `loss_prediction`), or by a simulated job from its true values. Answers are pure: the same
query gets the same answer for the life of the object, so answers may be cached.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Performance(Protocol):
    """Speed of a job on given accelerators of one kind.

    The unit is *useful examples per second* (goodput): examples of the batch that the job was
    submitted with. Where the platform chooses the batch size, the speed is that of the best one on
    those accelerators; otherwise every example counts as one.
    """

    def goodput(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        """Return useful examples per second on `num_accelerators` of `kind` on `num_nodes` nodes.

        0 where the job cannot run (no accelerators, or a kind that it does not fit on).
        """
        ...

    def goodputs(self, kind: str, most: int, per_node: int) -> NDArray[np.float64]:
        """Return `goodput` for 0..`most` accelerators packed on machines of `per_node`.

        Shape (most + 1,); element 0 is 0.
        """
        ...

    def batch_size(self, kind: str, num_accelerators: int, num_nodes: int) -> int:
        """Return the batch size that `goodput` refers to."""
        ...


class LossForecast(Protocol):
    """Forecast of a job's loss (SLAQ, SoCC 2017)."""

    @property
    def num_points(self) -> int:
        """Number of reports that the forecast was fitted on."""
        ...

    @property
    def normaliser(self) -> float:
        """The largest change of the loss seen between two reports of this job, > 0."""
        ...

    def loss(self, examples: float) -> float:
        """Predict the loss after `examples` more useful examples (0: now)."""
        ...
