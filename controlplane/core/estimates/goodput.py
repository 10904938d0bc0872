"""Useful examples per second of one job on any accelerators: implementations of `Performance`.

Throughput comes from a fitted model of each kind (`throughput`). Where the platform chooses the
batch size M, an example is worth (phi + M0) / (phi + M) of one in the submitted batch M0, with the
gradient noise scale phi = M0*var/sqr (Pollux, OSDI 2021); times M that is AdaScale's gain
(var + sqr) / (var/S + sqr), S = M/M0, so that no second formula is needed.

A kind without a model is assumed to be like the best known one, with computing scaled by the ratio
of the two kinds' speeds on other jobs, as far as known, and the same exchange.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from controlplane.core.estimates.throughput import Floats, ThroughputModel, slices_of

#: Number of batch sizes compared for one number of accelerators.
NUM_CANDIDATES = 64

#: Ceilings are taken with this tolerance, so that 96/3 is 32 whatever the rounding.
_TOLERANCE = 1e-8

Counts = NDArray[np.int64]


def relative_speeds(
    jobs: Iterable[tuple[Mapping[str, ThroughputModel], float]],
) -> dict[str, float]:
    """Compute relative speeds of kinds, compared with the kind that most jobs have a model of.

    Args:
        jobs: models of one job by kind, and the examples of a slice at which they are compared.

    Returns:
        Speed by kind, 1 for the reference: the median over all jobs that have models of both. Kinds
        without a job that has models of both are missing.
    """
    several = [(models, size) for models, size in jobs if len(models) > 1]
    known = Counter(kind for models, _ in several for kind in models)
    if not known:
        return {}
    reference = min(known, key=lambda kind: (-known[kind], kind))
    ratios: dict[str, list[float]] = {}
    for models, size in several:
        if reference in models:
            own_s = float(models[reference].grad_s(size))
            for kind, model in models.items():
                ratios.setdefault(kind, []).append(own_s / float(model.grad_s(size)))
    return {kind: statistics.median(found) for kind, found in ratios.items()}


def speeds_completed(own: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """Combine a job's own speeds by kind with those of others for the kinds it has no speed of.

    Each is relative to a reference of its own: the median ratio over common kinds aligns them.
    Without a common kind the others' speeds are returned.
    """
    ratios = [own[kind] / others[kind] for kind in own if kind in others]
    if not ratios:
        return dict(others or own)
    ratio = statistics.median(ratios)
    return {**{kind: speed * ratio for kind, speed in others.items()}, **own}


def efficiency(batch_size: ArrayLike, submitted: float, noise_scale: float) -> Floats:
    """Return the worth of an example, 1 in the submitted batch: (phi + M0) / (phi + M).

    Raises:
        ValueError: the noise scale is negative or not a number.
    """
    if not noise_scale >= 0.0:
        raise ValueError(f"a noise scale is not negative, got {noise_scale}")
    batch = np.asarray(batch_size, dtype=float)
    if math.isinf(noise_scale):
        return np.ones_like(batch)
    worth: Floats = (noise_scale + submitted) / (noise_scale + batch)
    return worth


class Split(Hashable, Protocol):
    """Split of a batch into slices that accelerators process one after the other."""

    def most_accelerators(self, batch_size: float) -> int:
        """Return the number of accelerators that can take part in a batch of this size."""
        ...

    def slices(self, batch_size: Floats, count: Counts) -> tuple[Floats, Floats, Counts]:
        """Split batches over `count` accelerators each; both are broadcast against each other.

        Returns:
            The resulting batch sizes (0: impossible), examples of a slice, and slices of the
            busiest accelerator.
        """
        ...


@dataclass(frozen=True, slots=True)
class VirtualNodes:
    """Every batch has `number` slices, however many accelerators there are (VirtualFlow).

    Attributes:
        largest_slice: examples that fit into an accelerator's memory; None: unknown.
    """

    number: int
    largest_slice: float | None = None

    def most_accelerators(self, batch_size: float) -> int:
        """Return `number`, or less for a batch with fewer examples."""
        return min(self.number, int(batch_size))

    def slices(self, batch_size: Floats, count: Counts) -> tuple[Floats, Floats, Counts]:
        """Split as the protocol requires, with the batch unchanged."""
        size = batch_size / self.number
        fits = count <= self.number
        if self.largest_slice is not None:
            fits = fits & (size <= self.largest_slice)
        batch, several = np.where(fits, batch_size, 0.0), slices_of(self.number, count)
        return batch, np.broadcast_to(size, batch.shape), np.broadcast_to(several, batch.shape)


@dataclass(frozen=True, eq=False)
class ModelledPerformance:
    """Common part of fixed and chosen batches: models by kind, and cached answers.

    Attributes:
        models: fitted model by kind, the best known first.
        split: how batches fall into slices.
        speeds: relative speed by kind, for kinds without a model; a missing one counts as 1.
    """

    models: Mapping[str, ThroughputModel]
    split: Split
    speeds: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    _tables: dict[tuple[str, int], tuple[Floats, Counts]] = field(
        default_factory=dict, init=False, repr=False
    )
    _single: dict[tuple[str, int, int], tuple[float, int]] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("models must hold at least one fitted model")

    def goodput(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        """Return useful examples per second; see `Performance`."""
        return self._answer(kind, num_accelerators, num_nodes)[0]

    def batch_size(self, kind: str, num_accelerators: int, num_nodes: int) -> int:
        """Return the batch size that `goodput` refers to; 0 where it is 0."""
        return self._answer(kind, num_accelerators, num_nodes)[1]

    def goodputs(self, kind: str, most: int, per_node: int) -> Floats:
        """Return `goodput` for 0..`most` accelerators packed on machines of `per_node`.

        Shape (most + 1,), read-only. Computed once.

        Raises:
            ValueError: `most` is negative or `per_node` not positive.
        """
        if most < 0 or per_node < 1:
            raise ValueError(f"most must be >= 0 and per_node >= 1, got {most} and {per_node}")
        table = self._tables.get((kind, per_node))
        if table is None or len(table[0]) <= most:
            table = self._table(kind, most, per_node)
            self._tables[kind, per_node] = table
        return table[0][: most + 1]

    def model(self, kind: str) -> ThroughputModel:
        """Return the model of a kind, or its substitute; see the head of this module."""
        own = self.models.get(kind)
        if own is not None:
            return own
        known, model = next(iter(self.models.items()))
        return model.slower(self.speeds.get(known, 1.0) / self.speeds.get(kind, 1.0))

    def bound(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        """Return `goodput` if the exchange took no time: no measurement can be better."""
        base_s, slope_s, *_ = self.model(kind).parameters
        ideal = replace(self, models={kind: ThroughputModel(base_s, slope_s)})
        return ideal.goodput(kind, num_accelerators, num_nodes)

    def step_s(self, batch_size: int, kind: str, num_accelerators: int, num_nodes: int) -> float:
        """Return the seconds of a step over `batch_size` examples; infinite if impossible."""
        count = np.array([num_accelerators])
        batch, size, several = self.split.slices(np.array([float(batch_size)]), count)
        if batch[0] <= 0.0:
            return math.inf
        return float(self.model(kind).step_s(count, np.array([num_nodes]), size, several)[0])

    def _table(self, kind: str, most: int, per_node: int) -> tuple[Floats, Counts]:
        useful = min(most, self.most_accelerators)
        goodput, batch = np.zeros(most + 1), np.zeros(most + 1, dtype=np.int64)
        if useful:
            nodes = -(-np.arange(1, useful + 1) // per_node)
            found = self._evaluate(self.model(kind), range(1, useful + 1), nodes)
            goodput[1 : useful + 1], batch[1 : useful + 1] = found
        goodput.flags.writeable = False
        return goodput, batch

    def _answer(self, kind: str, num_accelerators: int, num_nodes: int) -> tuple[float, int]:
        if not 1 <= num_accelerators <= self.most_accelerators or num_nodes < 1:
            return 0.0, 0
        key = (kind, num_accelerators, min(num_nodes, num_accelerators))
        known = self._single.get(key)
        if known is None:
            goodput, batch = self._evaluate(
                self.model(kind), range(num_accelerators, num_accelerators + 1), np.array([key[2]])
            )
            known = self._single[key] = (float(goodput[0]), int(batch[0]))
        return known

    @property
    def most_accelerators(self) -> int:
        """Largest number of accelerators that can be used."""
        raise NotImplementedError

    def _evaluate(
        self, model: ThroughputModel, counts: range, nodes: Counts
    ) -> tuple[Floats, Counts]:
        """Return goodput and batch size on `counts` accelerators of `nodes` nodes. Shapes (n,)."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class FixedBatchPerformance(ModelledPerformance):
    """Speed of a job with one batch size: every example is a useful one.

    Attributes:
        size: examples of a step.
    """

    size: int = field(kw_only=True)

    @property
    def most_accelerators(self) -> int:
        """Largest number of accelerators that can be used."""
        return self.split.most_accelerators(self.size)

    def _evaluate(
        self, model: ThroughputModel, counts: range, nodes: Counts
    ) -> tuple[Floats, Counts]:
        count = np.array(counts)
        batch, size, several = self.split.slices(np.full(count.shape, float(self.size)), count)
        step_s = model.step_s(count, nodes, size, several)
        return batch / step_s, batch.astype(np.int64)


@dataclass(frozen=True, eq=False)
class AdaptiveBatchPerformance(ModelledPerformance):
    """Speed of a job whose batch size the platform chooses for the most goodput.

    Attributes:
        submitted: M0, the batch that defines the worth of an example.
        low, high: bounds of batches, except for rounding to whole slices.
        multiple: batches are multiples of this, where possible.
        noise_scale: phi in examples, may be infinite.
    """

    submitted: int = field(kw_only=True)
    low: int = field(kw_only=True)
    high: int = field(kw_only=True)
    noise_scale: float = field(kw_only=True)
    multiple: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.low <= self.high or not self.noise_scale >= 0.0:
            raise ValueError(
                "batch bounds must be 1 <= low <= high and noise_scale >= 0, got "
                f"{self.low}, {self.high} and {self.noise_scale}"
            )

    @property
    def most_accelerators(self) -> int:
        """Largest number of accelerators that can be used."""
        return self.split.most_accelerators(self.high)

    def _evaluate(
        self, model: ThroughputModel, counts: range, nodes: Counts
    ) -> tuple[Floats, Counts]:
        candidates = (self.low, self.high, self.submitted, self.multiple)
        count, batch, size, several = _slices_of_candidates(self.split, candidates, counts)
        step_s = model.step_s(count, nodes, size, several)
        possible = np.maximum(batch, 1.0)  # 0 stands for an impossible batch
        goodput = batch / step_s * efficiency(possible, self.submitted, self.noise_scale)
        best = np.argmax(goodput, axis=0)
        columns = np.arange(len(counts))
        found = goodput[best, columns]
        return found, np.where(found > 0.0, batch[best, columns], 0.0).astype(np.int64)


@lru_cache(maxsize=4096)
def batch_candidates(low: int, high: int, submitted: int, multiple: int) -> Floats:
    """List batch sizes in equal ratios from `low` to `high`, the submitted one included."""
    sizes = np.geomspace(low, high, NUM_CANDIDATES)
    if low <= submitted <= high:
        sizes = np.append(sizes, submitted)
    sizes = np.floor(sizes / multiple + _TOLERANCE) * multiple
    chosen = np.unique(np.clip(sizes, low, high))
    chosen.flags.writeable = False
    return chosen


@lru_cache(maxsize=64)
def _slices_of_candidates(
    split: Split, candidates: tuple[int, int, int, int], counts: range
) -> tuple[Counts, Floats, Floats, Counts]:
    """Return the counts, shape (n,), and their splits of candidates for any kind: (c, n)."""
    count = np.arange(counts.start, counts.stop)
    return count, *split.slices(batch_candidates(*candidates)[:, None], count)
