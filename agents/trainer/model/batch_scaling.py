"""Learning rates of a job whose batch size changes.

With batches S times as large as the submitted ones a step may be longer. For SGD AdaScale says how
much: its gain lies between 1 and S and follows from the noise of the gradient. For optimizers that
divide by the size of the gradient it is the square root of S. The factor multiplies whatever rate
the optimizer would use, schedules included.

Averages and factor are part of the job's state. They are computed from the reduced sums of a step,
which are the same bits everywhere, by every trainer for itself.
"""

from __future__ import annotations

import math

import keras
import numpy as np

from agents.trainer.model.keras_private import plain_optimizers
from controlplane.core.estimates.noise_scale import GradientNoise, adascale_gain

#: Weight that a step of the submitted size has in the averages; larger batches count more.
STEP_WEIGHT = 1 / 1000


class BatchScaling:
    """The factor of the learning rate, for one job in one trainer.

    Attributes:
        variable: float64 [4]: decayed sums of |gradient|² and of its variance in submitted batches,
            the sum of their weights, and the factor for the next step.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, submitted: int) -> None:
        """Begin with batches of the submitted size."""
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
        """What the next step multiplies its learning rate by."""
        scale = self._batch_size / self._submitted
        if not self._is_sgd:
            return math.sqrt(scale)
        if self._weight == 0.0:
            return 1.0
        mean = GradientNoise(self._sqr / self._weight, self._var / self._weight)
        return adascale_gain(mean, scale)

    def enter(self, batch_size: int | None) -> None:
        """Take up the state that is in the variable, and the batch size of a membership."""
        self._sqr, self._var, self._weight, _ = self.variable.numpy().tolist()
        self._batch_size = batch_size or self._submitted
        self._write()

    def observe(self, noise: GradientNoise | None, num_examples: int) -> None:
        """Learn from a step over `num_examples`, for the steps after it."""
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
