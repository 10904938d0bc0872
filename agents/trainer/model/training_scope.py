"""Scope of a training step on values of variables that are passed in and returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

Tensor = Any


class TrainingScope(keras.StatelessScope):  # type: ignore[misc]  # no types in Keras
    """A scope in which no gradient flows through values that a layer assigns to its state.

    The same holds in Keras's own `fit` on TensorFlow, which writes the variable and reads it again.

    Attributes:
        untracked: variables that were assigned without having a value in the scope.
        enclosed: variables that an inner function of the model assigned, and whose value could not
            leave it: a loop, or any function if the variable was read later.
        assigned: all values that weights which the optimizer trains were assigned, in order.
        updated: by id, variables without a value in the scope that were read after
            `weights_applied`, each with the tensor that stands for its value then.
    """

    def __init__(
        self,
        mapping: Sequence[tuple[Any, Tensor]],
        live: Sequence[Any] = (),
        watch: Callable[[Tensor], None] | None = None,
        **options: Any,
    ) -> None:
        """Map variables to values.

        Args:
            live: variables that have their own values until they are assigned.
            watch: called with each value that such a weight is assigned.
        """
        super().__init__(mapping, **options)
        self.untracked: list[Any] = []
        self.enclosed: list[Any] = []
        self.assigned: list[tuple[Any, Tensor]] = []
        self.updated: dict[int, tuple[Any, Tensor]] = {}
        self._is_applied = False
        self._live = {id(variable): variable.value for variable in live}
        self._watch = watch
        self._graph = tf.compat.v1.get_default_graph()

    def add_update(self, update: tuple[Any, Tensor]) -> None:
        """Record the new value of a variable."""
        variable, value = update
        if id(variable) not in self._live and super().get_current_value(variable) is None:
            self.untracked.append(variable)
        if any(isinstance(graph, WhileBodyFuncGraph) for graph in self._inner_graphs()):
            self.enclosed.append(variable)
        new = tf.stop_gradient(value)
        if variable.trainable:
            self.assigned.append((variable, new))
            if self._watch is not None:
                self._watch(new)
        super().add_update((variable, new))

    def get_current_value(self, variable: Any) -> Tensor:
        """Return the newest value of a variable, None if it has none in the scope."""
        value = super().get_current_value(variable)
        if value is None:
            return self._updated(variable) if self._is_applied else self._live.get(id(variable))
        made_in = getattr(value, "graph", None)
        inner = self._inner_graphs()
        if isinstance(made_in, FuncGraph) and made_in not in [*inner, *_outer_graphs(self._graph)]:
            self.enclosed.append(variable)
        return value

    def weights_applied(self) -> None:
        """Note that a step of the job's own has handed its gradients to the optimizer."""
        self._is_applied = True

    def _updated(self, variable: Any) -> Tensor:
        if id(variable) not in self.updated:
            self._is_applied = False  # read the value that it has now
            self.updated[id(variable)] = (variable, tf.identity(variable.value))
            self._is_applied = True
        return self.updated[id(variable)][1]

    def _inner_graphs(self) -> list[Any]:
        """List the graphs of the functions that the model is tracing, inside out."""
        graphs = []
        for graph in _outer_graphs(tf.compat.v1.get_default_graph()):
            if graph is self._graph:
                break
            graphs.append(graph)
        return graphs


def _outer_graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and those that enclose it."""
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)
