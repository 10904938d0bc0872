"""What policies are told of a simulated job: the truth, or what can be learnt from its reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from controlplane.core.throughput import ThroughputModel, ThroughputSample, throughput_fit
from controlplane.simulator.applications import (
    Application,
    Pace,
    packed,
    spread,
)
from controlplane.simulator.batches import (
    Batch,
    BatchBounds,
    Candidates,
    candidate_batches,
    fixed_batch,
    fixed_batches,
)
from controlplane.simulator.step_times import Floats, Placement


def _placement(num_accelerators: int, num_nodes: int, per_node: int) -> Placement:
    if num_nodes <= -(-num_accelerators // per_node):
        return packed(num_accelerators, per_node)
    return spread(num_accelerators, min(num_nodes, num_accelerators))


@dataclass(frozen=True, eq=False)
class TruePerformance:
    """The truth about a job in one epoch. A `Performance`.

    Attributes:
        batch_size_asked: None: the platform chooses; else the unit is an example of that batch.
        slices_alone: on a single accelerator it is told the time of two slices at least.
    """

    application: Application
    epoch: int
    batch_size_asked: int | None
    per_node: int
    slices_alone: bool = False

    def goodput(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        if num_accelerators < 1:
            return 0.0
        app, asked = self.application, self.batch_size_asked
        placement = _placement(num_accelerators, num_nodes, self.per_node)
        if asked is not None:
            return app.examples_per_s(kind, placement, asked, slices_alone=self.slices_alone)
        batch = app.batch(kind, placement, None, self.epoch)
        if batch is None:
            return 0.0
        pace = app.pace(kind, placement, batch, self.epoch)
        return pace.progress_per_s * app.examples_per_progress

    def goodputs(self, kind: str, most: int, per_node: int) -> Floats:
        app, asked = self.application, self.batch_size_asked
        if asked is None:
            paces = app.packed_paces(kind, most, per_node, None, self.epoch)
            return paces * app.examples_per_progress
        return app.packed_examples_per_s(
            kind, most, per_node, asked, slices_alone=self.slices_alone
        )

    def batch_size(self, kind: str, num_accelerators: int, num_nodes: int) -> int:
        if self.batch_size_asked is not None:
            return self.batch_size_asked
        placement = _placement(num_accelerators, num_nodes, self.per_node)
        batch = self.application.batch(kind, placement, None, self.epoch)
        return 0 if batch is None else batch.size


@dataclass(eq=False)
class FittedPerformance:
    """A throughput model and a noise scale. A `Performance`.

    Attributes:
        fitted: gives the model of a kind; one that was never seen is taken to be like the others.
        noise: gradient noise scale in examples; None: every batch is worth its examples.
    """

    fitted: Callable[[str], ThroughputModel]
    bounds: BatchBounds
    noise: float
    batch_size_asked: int | None
    _known: dict[tuple[str, int, int], tuple[float, int]] = field(default_factory=dict)
    _rows: dict[tuple[str, int, int], Floats] = field(default_factory=dict)

    def goodput(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        return self._best(kind, num_accelerators, num_nodes)[0]

    def batch_size(self, kind: str, num_accelerators: int, num_nodes: int) -> int:
        return self._best(kind, num_accelerators, num_nodes)[1]

    def batch(self, kind: str, num_accelerators: int, num_nodes: int) -> Batch | None:
        """Give the batch of most goodput there, None where none is possible."""
        if self.batch_size_asked is not None:
            return fixed_batch(self.bounds, self.batch_size_asked, num_accelerators)
        rates, tried = self._rates(kind, np.array([num_accelerators]), np.array([num_nodes]))
        best = int(np.argmax(rates[0]))
        if rates[0, best] <= 0.0:
            return None
        return Batch(num_accelerators, int(tried.locals[0, best]), int(tried.num_slices[0, best]))

    def goodputs(self, kind: str, most: int, per_node: int) -> Floats:
        key = (kind, most, per_node)
        if key not in self._rows:
            counts = np.arange(1, most + 1)
            rates, _ = self._rates(kind, counts, -(-counts // per_node))
            self._rows[key] = np.concatenate([[0.0], rates.max(axis=1)]) if most else np.zeros(1)
        return self._rows[key]

    def _best(self, kind: str, count: int, nodes: int) -> tuple[float, int]:
        if count < 1:
            return 0.0, 0
        key = (kind, count, nodes)
        if key not in self._known:
            rates, tried = self._rates(kind, np.array([count]), np.array([nodes]))
            best = int(np.argmax(rates[0]))
            self._known[key] = float(rates[0, best]), int(tried.sizes[0, best])
        return self._known[key]

    def _rates(
        self, kind: str, counts: NDArray[np.int64], nodes: NDArray[np.int64]
    ) -> tuple[Floats, Candidates]:
        """Give useful examples a second of every batch to choose from on each of the counts."""
        asked, first = self.batch_size_asked, self.bounds.initial
        model = self.fitted(kind)
        if asked is not None:
            tried = fixed_batches(self.bounds, asked, counts)
            useful = np.full(tried.sizes.shape, float(asked))
        else:
            tried = candidate_batches(self.bounds, counts)
            useful = tried.sizes * (self.noise + first) / (self.noise + tried.sizes)
        step_s = model.step_s(counts[:, None], nodes[:, None], tried.locals, tried.num_slices)
        return np.where(tried.sizes > 0, useful / step_s, 0.0), tried


@dataclass(eq=False)
class Memory:
    """What has been seen of one job: one sample for each configuration, fitted when asked."""

    samples: dict[str, dict[tuple[int, int, int], ThroughputSample]] = field(default_factory=dict)
    noise: float | None = None
    _models: dict[str, ThroughputModel] = field(default_factory=dict)
    _performance: dict[int | None, FittedPerformance] = field(default_factory=dict)

    def see(self, kind: str, placement: Placement, pace: Pace) -> None:
        """Remember what a step took."""
        batch = pace.batch
        key = (len(placement), batch.num_accelerators, batch.local)
        samples = self.samples.setdefault(kind, {})
        if key not in samples:
            samples[key] = ThroughputSample(
                num_nodes=key[0],
                num_accelerators=key[1],
                slice_size=batch.local,
                step_s=pace.step_s,
                grad_s=pace.step_s - pace.sync_s,
            )
            self._models.pop(kind, None)
            self._performance.clear()
        if self.noise != pace.noise:
            self.noise = pace.noise
            self._performance.clear()

    def performance(
        self, bounds: BatchBounds, batch_size_asked: int | None
    ) -> FittedPerformance | None:
        """Give what is known by now; None before the first step."""
        if not self.samples or self.noise is None:
            return None
        if batch_size_asked not in self._performance:
            self._performance[batch_size_asked] = FittedPerformance(
                self._fitted, bounds, self.noise, batch_size_asked
            )
        return self._performance[batch_size_asked]

    def _fitted(self, kind: str) -> ThroughputModel:
        """Fit what was seen of a kind, when somebody asks; of any kind if there is nothing."""
        seen = kind if kind in self.samples else next(iter(self.samples))
        if seen not in self._models:
            self._models[seen] = throughput_fit(self.samples[seen].values())
        return self._models[seen]
