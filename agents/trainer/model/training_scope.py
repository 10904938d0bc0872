"""Scope of a training step on values of variables that are passed in and returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

Tensor = Any


@dataclass(frozen=True)
class Turn:
    """One of the turns of a training step.

    Weights may be updated several times in a step. Values that depend on an update in one turn can
    be computed in the next one, when all slices have been added up for that update.

    Attributes:
        index: from 0.
        count: number of turns.
        seeds: by id, states of random generators; each turn draws all numbers of the step.
        counted: by id, variables that every update changes, those of optimizers.
    """

    index: int = 0
    count: int = 1
    seeds: frozenset[int] = frozenset()
    counted: frozenset[int] = frozenset()


class TrainingScope(keras.StatelessScope):  # type: ignore[misc]  # no types in Keras
    """A scope in which no gradient flows through values that a layer assigns to its state.

    The same holds in Keras's own `fit` on TensorFlow, which writes the variable and reads it again.

    Attributes:
        untracked: variables that were assigned without having a value in the scope.
        enclosed: variables that an inner function of the model assigned, and whose value could not
            leave it: a loop, or any function if the variable was read later.
        assigned: all values that weights which the optimizer trains were assigned, in order.
        noted: what was read of variables without a value in the scope, after an update or in
            another turn than the first: (variable, tensor that stands for it, turn).
        passed_over: by id, the newest value of each variable that belongs to another turn.

    What another turn assigns is not recorded: a variable has its present value, to which turns
    before have assigned already, but is of that turn for what is computed with it (`_standing`).
    """

    def __init__(
        self,
        mapping: Sequence[tuple[Any, Tensor]],
        live: Sequence[Any] = (),
        watch: Callable[[Tensor], None] | None = None,
        turn: Turn = Turn(),
        **options: Any,
    ) -> None:
        """Map variables to values.

        Args:
            live: variables that have their own values until they are assigned.
            watch: called with each value that such a weight is assigned.
            turn: whose assignments are recorded; in the last one also those after it.
        """
        super().__init__(mapping, **options)
        self.untracked: list[Any] = []
        self.enclosed: list[Any] = []
        self.assigned: list[tuple[Any, Tensor]] = []
        self.noted: list[tuple[Any, Tensor, int]] = []
        self.passed_over: dict[int, Tensor] = {}
        self._standing: dict[int, Tensor] = {}
        self._lasting: dict[int, tuple[Any, Tensor]] = {}
        self._turn = turn
        self._updates: list[tuple[frozenset[int], int]] = []
        self._is_reading = False
        self._turns_of: dict[Any, int] = {}
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
        turn = self.turn_of(new)
        if not (id(variable) in self._turn.seeds or self._is_of_turn(turn)):
            self.passed_over[id(variable)] = new
            self._standing[id(variable)] = standing = self._present(variable)
            self._lasting[id(variable)] = (variable, standing)
            self._turns_of[standing.op] = turn
            return
        self._standing.pop(id(variable), None)
        if turn == self._turn.index:
            self._lasting.pop(id(variable), None)
        if variable.trainable:
            self.assigned.append((variable, new))
            if self._watch is not None:
                self._watch(new)
        super().add_update((variable, new))

    def get_current_value(self, variable: Any) -> Tensor:
        """Return the newest value of a variable, None if it has none in the scope."""
        if id(variable) in self._standing:
            return self._standing[id(variable)]
        value = self.new_value(variable)
        if value is None:
            is_noted = (self._updates or self._turn.index) and not self._is_reading
            return self._read(variable) if is_noted else self._live.get(id(variable))
        return value

    def new_value(self, variable: Any) -> Tensor:
        """Return the value after the turn's assignments, None if there is none in the scope."""
        value = super().get_current_value(variable)
        made_in = getattr(value, "graph", None)
        inner = self._inner_graphs()
        if isinstance(made_in, FuncGraph) and made_in not in [*inner, *_outer_graphs(self._graph)]:
            self.enclosed.append(variable)
        return value

    def weights_applied(self, weights: Sequence[Any], gradients: Sequence[Tensor]) -> int:
        """Note that a step of the job's own has handed gradients to an optimizer.

        Returns:
            The turn of the update: that of the gradients.
        """
        turn = self.turn_of(gradients)
        self._updates.append((frozenset(id(weight) for weight in weights), turn))
        return turn

    def turn_of(self, values: Any) -> int:
        """Return the turn in which values can be computed; looks at each operation once."""
        known = self._turns_of
        known.update((tensor.op, turn) for _, tensor, turn in self.noted)
        given = [leaf.op for leaf in tf.nest.flatten(values, expand_composites=True)]
        waiting = list(given)
        while waiting:
            operation = waiting[-1]
            inputs = [] if operation in known else [each.op for each in operation.inputs]
            unknown = [each for each in inputs if each not in known]
            if unknown:
                waiting += unknown
            else:
                known.setdefault(operation, max((known[each] for each in inputs), default=0))
                waiting.pop()
        return max((known[each] for each in given), default=0)

    def after_all(self) -> list[tuple[Any, Tensor]]:
        """List what was read and changes no more: (variable, tensor that stands for it)."""
        noted = [(v, value) for v, value, turn in self.noted if turn == self._turn_read(v)]
        return [*self._lasting.values(), *noted]

    def outdated(self, values: Any) -> list[Any]:
        """List the variables that values depend on as they were before an update of a turn before.

        They have their new values already.
        """
        reads = {
            tensor.op: variable
            for variable, tensor, turn in self.noted
            if any(turn <= each < self._turn.index for each in self._turns_updating(variable))
        }
        if not reads:
            return []
        ends = {tensor.op for _, tensor, _ in self.noted}
        waiting = [leaf.op for leaf in tf.nest.flatten(values, expand_composites=True)]
        seen: set[Any] = set()
        while waiting:
            operation = waiting.pop()
            if operation not in seen:
                seen.add(operation)
                waiting += [] if operation in ends else [each.op for each in operation.inputs]
        return [variable for operation, variable in reads.items() if operation in seen]

    def is_assigned(self, variable: Any) -> bool:
        """Return whether a weight was assigned, in any turn."""
        return id(variable) in self.passed_over or any(
            each is variable for each, _ in self.assigned
        )

    def _is_of_turn(self, turn: int) -> bool:
        now = self._turn
        return turn == now.index or (now.index == now.count - 1 and turn > now.index)

    def _turns_updating(self, variable: Any) -> list[int]:
        is_counted = id(variable) in self._turn.counted
        return [turn for weights, turn in self._updates if is_counted or id(variable) in weights]

    def _turn_read(self, variable: Any) -> int:
        """Return the turn of what is read of a variable now."""
        return max((turn + 1 for turn in self._turns_updating(variable)), default=0)

    def _read(self, variable: Any) -> Tensor:
        """Read and note a variable; each time anew, for the tape that is open."""
        value = self._present(variable)
        self.noted.append((variable, value, self._turn_read(variable)))
        return value

    def _present(self, variable: Any) -> Tensor:
        """Return a new tensor with a variable's value in this turn."""
        is_inner = tf.compat.v1.get_default_graph() is not self._graph
        self._is_reading = True
        with self._graph.as_default() if is_inner else nullcontext():
            value = tf.identity(variable.value)
        self._is_reading = False
        return value

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
