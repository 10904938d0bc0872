"""True behaviour of a job: its speed on given accelerators, and its amount of work.

Work is counted as *progress*: steps of the batch that a job was submitted with. A step of a
larger batch makes more progress, but not in proportion: (var + sqr) / (var / scale + sqr) with
scale = batch / initial batch, where sqr is the squared norm of the true gradient and var the
variance of its estimate (AdaScale's gain, as in Pollux, OSDI 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from controlplane.core.estimates.throughput import ThroughputModel
from controlplane.core.values.performance import Performance
from controlplane.simulator.applications.profiled import ProfiledApplication
from controlplane.simulator.applications.steady import SteadyApplication

#: Computation of a simulated job.
Application = SteadyApplication | ProfiledApplication


@runtime_checkable
class Learnt(Protocol):
    """An application whose steps are measured, so that policies can use models fitted to them."""

    @property
    def code(self) -> str:
        """Identifier of the computation; equal for applications that compute the same."""
        ...

    def first_batch(self, num_accelerators: int) -> int:
        """Return the batch to run where the platform chooses it and there is no model yet."""
        ...

    def modelled(
        self,
        models: Mapping[str, ThroughputModel],
        speeds: Mapping[str, float],
        noise: float,
        batch_size: int | None,
    ) -> Performance:
        """Return the performance fitted to its steps, as on a live cluster.

        Args:
            models: fitted model by kind, the best known first.
            speeds: relative speed by kind, for kinds without a model.
            noise: gradient noise scale in examples.
            batch_size: the batch that it has to run with; None: the platform chooses.
        """
        ...
