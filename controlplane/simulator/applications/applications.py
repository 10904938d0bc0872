"""True behaviour of a job: its speed on given accelerators, and its amount of work.

Work is counted as *progress*: steps of the batch that a job was submitted with. A step of a
larger batch makes more progress, but not in proportion: (var + sqr) / (var / scale + sqr) with
scale = batch / initial batch, where sqr is the squared norm of the true gradient and var the
variance of its estimate (AdaScale's gain, as in Pollux, OSDI 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from controlplane.core.estimates.throughput import ThroughputModel
from controlplane.core.values.performance import LossForecast, Performance
from controlplane.simulator.applications.batches import Batch
from controlplane.simulator.applications.step_times import Floats, Placement


@dataclass(frozen=True, slots=True)
class Pace:
    """True speed of a job on its accelerators.

    Attributes:
        progress_per_s: progress per second.
        batch: composition of a step.
        step_s, sync_s: seconds of a step with one slice, and of the exchange in it; 0: not
            measured, so no model is fitted.
        noise: gradient noise scale in examples, as shown by its gradients.
    """

    progress_per_s: float
    batch: Batch
    step_s: float = 0.0
    sync_s: float = 0.0
    noise: float = 0.0


class Application(Protocol):
    """Computation of a simulated job."""

    @property
    def name(self) -> str: ...

    @property
    def progress_ends(self) -> Sequence[float]:
        """Progress at the end of epoch 0 (nothing: 0), 1, 2 ...; the last one is the total work."""
        ...

    @property
    def examples_per_progress(self) -> float:
        """The initial batch: useful examples are progress times this."""
        ...

    def most_accelerators(self, batch_size: int | None) -> int:
        """Return the largest usable number of accelerators with a batch (None: its largest one)."""
        ...

    def batch(
        self, kind: str, placement: Placement, batch_size: int | None, epoch: int
    ) -> Batch | None:
        """Return the batch to run: `batch_size`, or the truly best (None); None: impossible."""
        ...

    def pace(self, kind: str, placement: Placement, batch: Batch, epoch: int) -> Pace:
        """Return the true speed on a placement with a batch in an epoch."""
        ...

    def packed_paces(
        self, kind: str, most: int, per_node: int, batch_size: int | None, epoch: int
    ) -> Floats:
        """Return progress per second on 0..`most` accelerators, packed. Shape (most + 1,)."""
        ...

    def examples_per_s(
        self, kind: str, placement: Placement, batch_size: int, *, slices_alone: bool = False
    ) -> float:
        """Return the examples per second with a fixed batch.

        Args:
            slices_alone: whether a single accelerator has at least two slices.
        """
        ...

    def packed_examples_per_s(
        self, kind: str, most: int, per_node: int, batch_size: int, *, slices_alone: bool = False
    ) -> Floats:
        """Return `examples_per_s` on 0..`most` accelerators, packed. Shape (most + 1,)."""
        ...

    def examples_left(self, batch_size: int, epoch: int, progress: float) -> float:
        """Return the remaining examples with a fixed batch."""
        ...

    def quality(self, epoch: int, progress: float) -> float:
        """Return the present share of the final quality, 0 to 1."""
        ...

    def forecast(self, epoch: int, progress: float) -> LossForecast | None:
        """Return the loss forecast from its reports so far; None: no forecast."""
        ...


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


def packed(num_accelerators: int, per_node: int) -> Placement:
    """Return the placement on as few nodes as possible."""
    whole, rest = divmod(num_accelerators, per_node)
    return (per_node,) * whole + ((rest,) if rest else ())


def spread(num_accelerators: int, num_nodes: int) -> Placement:
    """Return the most even placement on that many nodes."""
    whole, rest = divmod(num_accelerators, num_nodes)
    return (whole + 1,) * rest + (whole,) * (num_nodes - rest)
