"""Throughput models that follow what was measured where they are off.

Measured step times are not as smooth in the number of accelerators as the formulas of
`throughput`: 8 may do 5.5 times as much as one, and 10 of them 8 times as much. A fit averages over
that. Here the logarithm of (measured / modelled) step time is a Gaussian process over the
logarithms of accelerators, machines and examples of a slice. Its mean is the correction: full at a
measured configuration, none far from all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from controlplane.core.estimates.throughput import Floats, ThroughputModel, ThroughputSample

#: Logarithms of accelerators, machines and examples of a slice, in units of the distances below.
Places = tuple[Floats, Floats, Floats]

#: Typical relative error of a fitted model, and of one measured configuration.
MODEL_ERROR, SAMPLE_ERROR = 0.2, 0.03

#: Distances at which errors of a model are hardly alike any more, in logarithms: of the number of
#: accelerators or machines, and of the examples of a slice.
COUNT_DISTANCE, SIZE_DISTANCE = 0.5, 0.7

#: Samples that corrections are made from, the last ones.
MOST_SAMPLES = 128


@dataclass(frozen=True)
class MeasuredModel(ThroughputModel):
    """A fitted model with the measurements that it was fitted to.

    Attributes:
        samples: at most `MOST_SAMPLES` are used, the last ones.
    """

    samples: tuple[ThroughputSample, ...] = ()

    def step_s(
        self,
        num_accelerators: ArrayLike,
        num_nodes: ArrayLike,
        slice_size: ArrayLike,
        num_slices: ArrayLike = 1,
    ) -> Floats:
        """Return the seconds of a whole step, as measured where it was."""
        modelled = super().step_s(num_accelerators, num_nodes, slice_size, num_slices)
        if not self.samples:
            return modelled
        seen, weights = self._errors
        by_count, by_size = _likeness(_places(num_accelerators, num_nodes, slice_size), seen)
        if by_size.ndim > 2 and by_size.shape[-2] == 1:  # the sizes are the same for all numbers
            error = (by_size[..., 0, :] * weights) @ by_count.T
        else:
            error = (by_size * weights * by_count).sum(axis=-1)
        corrected: Floats = modelled * np.exp(MODEL_ERROR**2 * error)
        return corrected

    def slower(self, factor: float) -> MeasuredModel:
        """Return the model of accelerators that compute `factor` times as long, with equal errors.

        Raises:
            ValueError: the factor is not positive.
        """
        slow, own = super().slower(factor), ThroughputModel(*self.parameters)
        samples = []
        for one in self.samples[-MOST_SAMPLES:]:
            place = one.num_accelerators, one.num_nodes, one.slice_size, one.num_slices
            ratio = float(slow.step_s(*place) / own.step_s(*place))
            samples.append(replace(one, step_s=one.step_s * ratio, grad_s=None))
        return measured_model(slow, samples)

    @cached_property
    def _errors(self) -> tuple[Places, Floats]:
        """Places of the S samples, and the weight of each in a correction, shape (S,)."""
        rows = self.samples[-MOST_SAMPLES:]
        count, nodes, size, slices, step_s = np.array(
            [(s.num_accelerators, s.num_nodes, s.slice_size, s.num_slices, s.step_s) for s in rows],
            dtype=float,
        ).T
        errors = np.log(step_s / super().step_s(count, nodes, size, slices))
        seen = _places(count, nodes, size)
        by_count, by_size = _likeness(seen, seen)
        covariance = MODEL_ERROR**2 * by_count * by_size + SAMPLE_ERROR**2 * np.eye(len(rows))
        return seen, np.linalg.solve(covariance, errors)


def measured_model(model: ThroughputModel, samples: Iterable[ThroughputSample]) -> MeasuredModel:
    """Return a model that follows the samples to which it was fitted."""
    return MeasuredModel(*model.parameters, samples=tuple(samples))


def _places(count: ArrayLike, nodes: ArrayLike, size: ArrayLike) -> Places:
    """Return the three coordinates of configurations; they are broadcast against each other."""
    sizes = np.asarray(size, dtype=float)
    if sizes.ndim > 1 and sizes.strides[-1] == 0:  # repeated along the last axis
        sizes = sizes[..., :1]
    return (
        np.log(np.asarray(count, dtype=float)) / COUNT_DISTANCE,
        np.log(np.asarray(nodes, dtype=float)) / COUNT_DISTANCE,
        np.log(np.maximum(sizes, 1e-9)) / SIZE_DISTANCE,
    )


def _likeness(places: Places, seen: Places) -> tuple[Floats, Floats]:
    """Return the correlation of errors with those at S places: by number, by slice. (..., S)."""
    count, nodes, size = (
        (own[..., None] - others) ** 2 for own, others in zip(places, seen, strict=True)
    )
    return np.exp(-0.5 * (count + nodes)), np.exp(-0.5 * size)
