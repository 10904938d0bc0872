"""Learning rates of a job whose batch size changes.

With batches S times as large as the submitted ones the learning rate may be larger. For SGD the
factor is AdaScale's gain, between 1 and S, computed from the noise of the gradient. For optimizers
that divide by the size of the gradient the factor is the square root of S. It multiplies the rate
that the optimizer would use, schedules included.

Averages and factor are part of the job's state. Every trainer computes them by itself from the
reduced sums of a step, which have the same bits everywhere.
"""

from __future__ import annotations

import math

import keras
import numpy as np

from agents.trainer.model.keras_private import plain_optimizers
from controlplane.core.estimates.noise_scale import GradientNoise, adascale_gain

#: Weight of a step of the submitted batch size in the averages; larger batches weigh more.
STEP_WEIGHT = 1 / 1000


class BatchScaling:
    """The factor of the learning rate, for one job in one trainer.

    Attributes:
        variable: float64 [4]: decayed sums of |gradient|² and of its variance in submitted batches,
            the sum of their weights, and the factor for the next step.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, submitted: int) -> None:
        """Start with the submitted batch size, in examples."""
        self._is_sgd = all(
            isinstance(plain, keras.optimizers.SGD) for plain in plain_optimizers(optimizer)
        )
        self._submitted = submitted
        self._batch_size = submitted
        self._sqr = self._var = self._weight = 0.0
        self.variable = keras.Variable(
            np.array([0.0, 0.0, 0.0, 1.0]), dtype="float64", trainable=False, name="batch_scaling"
        )

    @property
    def factor(self) -> float:
        """Factor of the learning rate in the next step."""
        scale = self._batch_size / self._submitted
        if not self._is_sgd:
            return math.sqrt(scale)
        if self._weight == 0.0:
            return 1.0
        mean = GradientNoise(self._sqr / self._weight, self._var / self._weight)
        return adascale_gain(mean, scale)

    def enter(self, batch_size: int | None) -> None:
        """Load the state from the variable, and set the batch size of a membership."""
        self._sqr, self._var, self._weight, _ = self.variable.numpy().tolist()
        self._batch_size = batch_size or self._submitted
        self._write()

    def observe(self, noise: GradientNoise | None, num_examples: int) -> None:
        """Update the averages with the noise of a step over `num_examples`."""
        if noise is None:
            return
        fresh = min(STEP_WEIGHT * self._batch_size / self._submitted, 1.0)
        value = noise.at_batch_size(num_examples, self._submitted)
        self._sqr += fresh * (value.sqr - self._sqr)
        self._var += fresh * (value.var - self._var)
        self._weight += fresh * (1.0 - self._weight)
        self._write()

    def _write(self) -> None:
        self.variable.assign(np.array([self._sqr, self._var, self._weight, self.factor]))
