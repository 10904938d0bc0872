"""Optimizers' updates of one variable as one operation instead of a dozen.

TensorFlow's own update operations compute what Keras's `update_step` writes out, and in place. They
go element by element, so any number of threads gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

Tensor = Any
Function = Callable[..., Any]


def adam_update(original: Function) -> Function:
    """Make an `Adam.update_step`; other kinds of it fall back to the original."""

    def update_step(self: Any, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
        is_known = type(self) in (keras.optimizers.Adam, keras.optimizers.AdamW)
        if not is_known or self.amsgrad or not _is_dense(gradient, variable):
            original(self, gradient, variable, learning_rate)
            return
        index = self._get_variable_index(variable)
        dtype = gradient.dtype
        step = keras.ops.cast(self.iterations + 1, dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=_variable(variable).handle,
            m=_variable(self._momentums[index]).handle,
            v=_variable(self._velocities[index]).handle,
            beta1_power=tf.pow(tf.constant(self.beta_1, dtype), step),
            beta2_power=tf.pow(tf.constant(self.beta_2, dtype), step),
            lr=tf.cast(learning_rate, dtype),
            beta1=tf.constant(self.beta_1, dtype),
            beta2=tf.constant(self.beta_2, dtype),
            epsilon=tf.constant(self.epsilon, dtype),
            grad=gradient,
        )

    return update_step


def sgd_update(original: Function) -> Function:
    """Make an `SGD.update_step` with momentum."""

    def update_step(self: Any, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
        if (
            type(self) is not keras.optimizers.SGD
            or not self.momentum
            or not _is_dense(gradient, variable)
        ):
            original(self, gradient, variable, learning_rate)
            return
        dtype = gradient.dtype
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=_variable(variable).handle,
            accum=_variable(self.momentums[self._get_variable_index(variable)]).handle,
            lr=tf.cast(learning_rate, dtype),
            grad=gradient,
            momentum=tf.constant(self.momentum, dtype),
            use_nesterov=self.nesterov,
        )

    return update_step


#: Class that has the method -> what makes its replacement.
UPDATE_STEPS: Mapping[type, Callable[[Function], Function]] = {
    keras.optimizers.Adam: adam_update,
    keras.optimizers.SGD: sgd_update,
}


def _is_dense(gradient: Any, variable: Any) -> bool:
    return isinstance(gradient, tf.Tensor) and gradient.dtype == variable.dtype


def _variable(variable: Any) -> Any:
    """Give TensorFlow's variable of one that may be Keras's."""
    return variable.value if isinstance(variable, keras.Variable) else variable
