"""What a policy may ask about one job: how fast it goes where, and where its loss is going.

Both are answered by models that are fitted once per report, never by a policy (see `throughput`
and `loss_prediction`), or by a simulated job that knows the truth. Answers are pure: the same
question gets the same answer as long as the object lives, so they may be remembered.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Performance(Protocol):
    """How fast a job goes on given accelerators of one kind.

    The unit is *useful examples per second* (goodput): examples of the batch that the job was
    submitted with. Where the platform chooses the batch size, it is the best one on those
    accelerators; otherwise an example is an example.
    """

    def goodput(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        """Give useful examples per second on `num_accelerators` of `kind` on `num_nodes` machines.

        0 where the job cannot run so (no accelerators, or a kind that it does not fit on).
        """
        ...

    def goodputs(self, kind: str, most: int, per_node: int) -> NDArray[np.float64]:
        """Give `goodput` for 0..`most` accelerators packed on machines of `per_node`.

        Shape (most + 1,); element 0 is 0.
        """
        ...

    def batch_size(self, kind: str, num_accelerators: int, num_nodes: int) -> int:
        """Give the examples of a step that `goodput` is for."""
        ...


class LossForecast(Protocol):
    """Where the loss of a job is going (SLAQ, SoCC 2017)."""

    @property
    def num_points(self) -> int:
        """How many reports it was fitted on."""
        ...

    @property
    def normaliser(self) -> float:
        """The largest change of the loss seen between two reports of this job, > 0."""
        ...

    def loss(self, examples: float) -> float:
        """Predict the loss after `examples` more useful examples (0: now)."""
        ...
