"""The truth about what a job does: how fast on which accelerators, and how much there is to do.

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
    """What a job really does on its accelerators.

    Attributes:
        progress_per_s: progress a second.
        batch: what a step consists of.
        step_s, sync_s: seconds of a step with one slice, and of the exchange in it; 0: nobody
            measures them, so nothing is learnt.
        noise: gradient noise scale in examples, as its gradients show it.
    """

    progress_per_s: float
    batch: Batch
    step_s: float = 0.0
    sync_s: float = 0.0
    noise: float = 0.0


class Application(Protocol):
    """What a simulated job computes."""

    @property
    def name(self) -> str: ...

    @property
    def progress_ends(self) -> Sequence[float]:
        """Progress at the end of epoch 0 (nothing: 0), 1, 2 ...; the last one is all its work."""
        ...

    @property
    def examples_per_progress(self) -> float:
        """The initial batch: useful examples are progress times this."""
        ...

    def most_accelerators(self, batch_size: int | None) -> int:
        """Give how many accelerators it can use with that batch (None: with its largest one)."""
        ...

    def batch(
        self, kind: str, placement: Placement, batch_size: int | None, epoch: int
    ) -> Batch | None:
        """Give the batch to run there: `batch_size`, or the truly best (None); None: none can."""
        ...

    def pace(self, kind: str, placement: Placement, batch: Batch, epoch: int) -> Pace:
        """Give what it does there with that batch in that epoch."""
        ...

    def packed_paces(
        self, kind: str, most: int, per_node: int, batch_size: int | None, epoch: int
    ) -> Floats:
        """Give progress a second on 0..`most` accelerators, packed. Shape (most + 1,)."""
        ...

    def examples_per_s(
        self, kind: str, placement: Placement, batch_size: int, *, slices_alone: bool = False
    ) -> float:
        """Give the examples a second with a fixed batch.

        Args:
            slices_alone: with two slices at least on a single accelerator.
        """
        ...

    def packed_examples_per_s(
        self, kind: str, most: int, per_node: int, batch_size: int, *, slices_alone: bool = False
    ) -> Floats:
        """Give `examples_per_s` on 0..`most` accelerators, packed. Shape (most + 1,)."""
        ...

    def examples_left(self, batch_size: int, epoch: int, progress: float) -> float:
        """Give the examples that are left with a fixed batch."""
        ...

    def quality(self, epoch: int, progress: float) -> float:
        """Give how much of its final quality it has, 0 to 1."""
        ...

    def forecast(self, epoch: int, progress: float) -> LossForecast | None:
        """Give what its reports so far foretell of its loss; None: nothing."""
        ...


@runtime_checkable
class Learnt(Protocol):
    """An application whose steps are measured, so that policies know what they have taught."""

    @property
    def code(self) -> str:
        """Say which applications compute the same, however much of it."""
        ...

    def first_batch(self, num_accelerators: int) -> int:
        """Give the batch to run where the platform chooses it and knows nothing yet."""
        ...

    def modelled(
        self,
        models: Mapping[str, ThroughputModel],
        speeds: Mapping[str, float],
        noise: float,
        batch_size: int | None,
    ) -> Performance:
        """Give what its steps have taught, as a live cluster has it.

        Args:
            models: fitted model by kind, the best known first.
            speeds: relative speed by kind, for kinds without a model.
            noise: gradient noise scale in examples.
            batch_size: the batch that it has to run with; None: the platform chooses.
        """
        ...


def packed(num_accelerators: int, per_node: int) -> Placement:
    """Give the placement on as few nodes as possible."""
    whole, rest = divmod(num_accelerators, per_node)
    return (per_node,) * whole + ((rest,) if rest else ())


def spread(num_accelerators: int, num_nodes: int) -> Placement:
    """Give the placement that is as even as possible on that many nodes."""
    whole, rest = divmod(num_accelerators, num_nodes)
    return (whole + 1,) * rest + (whole,) * (num_nodes - rest)
