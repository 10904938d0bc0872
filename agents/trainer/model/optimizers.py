"""The optimizers that train a model: the compiled one, or those that its `train_step` uses."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import keras

Tensor = Any
#: Optimizers that a model's own step uses, with the weights to build them for.
_used: WeakKeyDictionary[keras.Model, dict[Any, list[Any]]] = WeakKeyDictionary()


class OptimizerGroup:
    """Several optimizers of one model, with the attributes of a Keras optimizer that all have.

    Attributes:
        optimizers: in the order of their first updates.
    """

    def __init__(self, optimizers: list[Any]) -> None:
        self.optimizers = optimizers

    @property
    def variables(self) -> list[Any]:
        """All variables, one optimizer's after the other's."""
        return [variable for each in self.optimizers for variable in each.variables]

    @property
    def learning_rate(self) -> Any:
        """The rate of the first one."""
        return self.optimizers[0].learning_rate

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss: each optimizer scales its own."""
        return loss


def optimizer_note(model: keras.Model, optimizer: Any, weights: list[Any]) -> None:
    """Note that a model's own step updates weights with an optimizer."""
    _used.setdefault(model, {}).setdefault(optimizer, weights)


def optimizer_of(model: keras.Model) -> Any:
    """Return what trains a compiled model: an optimizer or an `OptimizerGroup`."""
    found = optimizers_of(model)
    return found[0] if len(found) == 1 else OptimizerGroup(found)


def optimizers_of(model: keras.Model) -> list[Any]:
    """List the optimizers that train a compiled model."""
    return list(_used.get(model, {model.optimizer: []}))


def optimizers_build(model: keras.Model) -> None:
    """Create the variables of the optimizers, each for the weights that Keras builds it for."""
    for optimizer, weights in _used.get(model, {model.optimizer: []}).items():
        if not optimizer.built:
            is_compiled = optimizer is model.optimizer
            optimizer.build(model.trainable_variables if is_compiled else weights)
