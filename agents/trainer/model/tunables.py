"""Values of a job that may change between two steps without tracing its functions again.

They stand in variables that the traced update reads. These are part of the job's state, so that a
branch has its own values, which move at a resize and are kept in checkpoints. The batch size and
the exponent of a selection stand there too, though no traced function reads them: all of them take
any number of examples, and examples are chosen outside of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.error_sentences import reason_line
from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import (
    attributes_set,
    learning_rates_scaled,
    plain_optimizers,
)
from agents.trainer.model.optimizers import optimizer_of
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.tuning import TunableName, TuningSpec
from controlplane.core.protocol.wire import Task, TrainingSpec
from controlplane.core.tuning.batch_sizes import batch_size_conflict
from controlplane.core.tuning.selection_beta import selection_beta_conflict

Tensor = Any

#: Optimizers whose `beta_1` is their momentum.
_ADAM_FAMILY = (
    keras.optimizers.Adam,
    keras.optimizers.Adamax,
    keras.optimizers.Nadam,
    keras.optimizers.Lamb,
    keras.optimizers.Lion,
)
#: Tunables that stand in attributes of the optimizers while an update is traced.
_ATTRIBUTES = (TunableName.MOMENTUM, TunableName.WEIGHT_DECAY)


class Tunables:
    """The tunables of one job in one trainer.

    Attributes:
        names: in the order of their values.
        variable: float64 [n], the present values.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        names: Sequence[str],
        batch_size: int,
        selection_beta: float = 1.0,
    ) -> None:
        """Begin with the values that the model was compiled with, and with submitted ones.

        Raises:
            ValueError: the optimizer does not have one of the tunables; names it and the fix.
        """
        self.names = tuple(names)
        self._optimizer = optimizer
        self._batch_size = batch_size
        self._submitted = {
            TunableName.BATCH_SIZE: float(batch_size),
            TunableName.SELECTION_BETA: selection_beta,
        }
        self._plain = plain_optimizers(optimizer)
        values = [self._compiled(TunableName(name)) for name in self.names]
        with tf.device("CPU:0"):
            self.variable = keras.Variable(
                np.array(values),
                dtype="float64",
                trainable=False,
                name="_".join(("tunables", *self.names)),  # a fork takes over these alone
            )

    @property
    def values(self) -> dict[str, float]:
        """The present values."""
        return dict(zip(self.names, self.variable.numpy().tolist(), strict=True))

    @property
    def learning_rate_scale(self) -> float:
        """Present factor of the learning rate."""
        return self.values.get(TunableName.LEARNING_RATE_SCALE, 1.0)

    @property
    def batch_size(self) -> int | None:
        """Present examples of a training step; None if they are the submitted ones."""
        size = int(self.values.get(TunableName.BATCH_SIZE, self._batch_size))
        return None if size == self._batch_size else size

    @property
    def selection_beta(self) -> float | None:
        """Present exponent of the selection; None if it is not tuned."""
        return self.values.get(TunableName.SELECTION_BETA)

    def assign(self, values: Mapping[str, float]) -> None:
        """Use other values from the next step on."""
        self.variable.assign(np.array([values[name] for name in self.names]))
        if TunableName.LEARNING_RATE in self.names:
            for each in self._plain:
                each.learning_rate = values[TunableName.LEARNING_RATE]  # assigns its variable

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Let an update that is traced inside the block read the present values.

        Raises:
            JobCodeError: the update does not depend on a tunable, or needs it as a Python number.
        """
        values = tf.unstack(tf.cast(self.variable.value, tf.float32), len(self.names))
        named = dict(zip(self.names, values, strict=True))
        with ExitStack() as stack:
            for name, value in named.items():
                if name == TunableName.LEARNING_RATE_SCALE:
                    stack.enter_context(learning_rates_scaled(self._optimizer, value))
                elif name == TunableName.WEIGHT_DECAY:
                    settings = [
                        (each, attribute, value)
                        for each in self._plain
                        for attribute in _decay_attributes(each)
                    ]
                    stack.enter_context(attributes_set(settings))
                elif name == TunableName.MOMENTUM:
                    stack.enter_context(attributes_set(self._momenta(value)))
            try:
                yield
            except (AttributeError, NotImplementedError, TypeError) as error:
                if self._attributes and re.search("symbolic|TracedNumber", str(error), re.I):
                    raise self._needed_as_number(error) from error
                raise
        self._refuse_unread(named)

    @property
    def _attributes(self) -> list[str]:
        """Return the tunables that are attributes of the optimizers while an update is traced."""
        return [each for each in self.names if each in _ATTRIBUTES]

    def _refuse_unread(self, values: Mapping[str, Tensor]) -> None:
        """Raise if the update that was traced does not depend on one of the tunables."""
        graph = tf.compat.v1.get_default_graph()
        read = {id(outer) for outer, _ in graph.captures}
        for name, value in values.items():
            if name in self._submitted:
                continue
            if name == TunableName.LEARNING_RATE:
                is_read = any(id(each.learning_rate.value.handle) in read for each in self._plain)
            else:
                is_read = _changes_state(value)
            if not is_read:
                raise _not_tunable(
                    f"tuning.space.{name} would have no effect: the update of "
                    f"{type(self._optimizer).__name__} does not depend on it; leave it out"
                )

    def _needed_as_number(self, error: Exception) -> JobCodeError:
        names = " and ".join(self._attributes)
        owners = ", ".join(type(each).__name__ for each in self._plain)
        return _not_tunable(
            f"tuning.space has {names}, which is a tensor in the update, but the code of {owners} "
            f"needs a Python number there ({reason_line(str(error))}). Leave {names} out, or write "
            "the update with keras.ops, without if, and or float() on the attribute"
        )

    def _momenta(self, value: Any) -> list[tuple[Any, str, Any]]:
        return [
            (each, "beta_1", value)
            if isinstance(each, _ADAM_FAMILY)
            else (each, "momentum", TracedNumber(value))
            for each in self._plain
        ]

    def _compiled(self, name: TunableName) -> float:
        """Return the submitted value, or that of the compiled optimizers; the first of several."""
        if name in self._submitted:
            return self._submitted[name]
        found = [
            value for each in self._plain if name in _READERS for value in _READERS[name](each)
        ]
        if len(set(found)) > 1:
            raise ValueError(
                f"tuning.space.{name} stands for one value, but the model's optimizers have "
                f"{', '.join(f'{value:g}' for value in sorted(set(found)))}"
                + (
                    "; use learning_rate_scale instead"
                    if name is TunableName.LEARNING_RATE
                    else "; leave it out"
                )
            )
        return found[0] if found else 1.0


def tunables_of(model: keras.Model, spec: TrainingSpec) -> Tunables | None:
    """Make the tunables of a job; None if it is not tuned.

    Raises:
        JobCodeError: the job does not have one of them.
    """
    if spec.tuning is None or spec.task is not Task.TRAIN:
        return None
    try:
        _check_batch_size(spec, spec.tuning)
        _check_selection_beta(spec, spec.tuning)
        beta = 1.0 if spec.selection is None else spec.selection.beta
        return Tunables(optimizer_of(model), spec.tuning.names, spec.global_batch_size, beta)
    except ValueError as error:
        raise _not_tunable(str(error)) from error


def _not_tunable(message: str) -> JobCodeError:
    return JobCodeError("not_tunable", "tuning.space", message)


def _changes_state(value: Tensor) -> bool:
    """Return whether an operation that changes a variable depends on a tensor of its graph."""
    pending, seen = [*value.consumers()], set()
    while pending:
        operation = pending.pop()
        if operation in seen:
            continue
        seen.add(operation)
        if operation.op_def.is_stateful:
            return True
        pending += [each for output in operation.outputs for each in output.consumers()]
    return False


def _check_batch_size(spec: TrainingSpec, tuning: TuningSpec) -> None:
    if tuning.batch_size is None:
        return
    conflict = batch_size_conflict(
        tuning.batch_size,
        spec.num_virtual_nodes,
        spec.stop.kind,
        selects=spec.selection is not None,
        is_parallel=tuning.parallel,
    )
    if conflict is not None:
        raise ValueError(conflict)


def _check_selection_beta(spec: TrainingSpec, tuning: TuningSpec) -> None:
    if not tuning.tunes_selection:
        return
    selection = spec.selection or SelectionSpec(method=SelectionMethod.NONE)
    conflict = selection_beta_conflict(
        selection.method,
        spec.stop.kind,
        has_end=selection.end is not None,
        has_controls=selection.control_every is not None,
        is_parallel=tuning.parallel,
    )
    if conflict is not None:
        raise ValueError(conflict)


def _learning_rate(optimizer: keras.optimizers.Optimizer) -> list[float]:
    if not isinstance(optimizer.learning_rate, keras.Variable):
        raise ValueError(
            "tuning.space.learning_rate stands for one value, but the model's optimizer follows a "
            "schedule; use learning_rate_scale instead"
        )
    return [float(optimizer.learning_rate.numpy())]


def _momentum(optimizer: keras.optimizers.Optimizer) -> list[float]:
    if isinstance(optimizer, _ADAM_FAMILY):
        return [_number(optimizer, "beta_1", TunableName.MOMENTUM)]
    if isinstance(optimizer, keras.optimizers.SGD):
        if optimizer.momentum != 0.0:
            return [_number(optimizer, "momentum", TunableName.MOMENTUM)]
        raise ValueError(
            "tuning.space.momentum needs an SGD that was compiled with a momentum; give one above "
            "0, where the search starts"
        )
    raise ValueError(
        f"tuning.space.momentum is not known for {type(optimizer).__name__}; leave it out, or use "
        "SGD, Adam, AdamW, Adamax, Nadam, Lamb or Lion"
    )


def _weight_decay(optimizer: keras.optimizers.Optimizer) -> list[float]:
    names = _decay_attributes(optimizer)
    return [_number(optimizer, name, TunableName.WEIGHT_DECAY) for name in names]


def _decay_attributes(optimizer: keras.optimizers.Optimizer) -> tuple[str, ...]:
    """Name the attributes with a decay: Muon has another one for weights that are no matrices."""
    if isinstance(optimizer, keras.optimizers.Muon):
        return ("weight_decay", "adam_weight_decay")
    return ("weight_decay",)


def _number(optimizer: keras.optimizers.Optimizer, attribute: str, tunable: TunableName) -> float:
    value = getattr(optimizer, attribute)
    try:
        return float(value or 0.0)
    except TypeError as error:
        raise ValueError(
            f"tuning.space.{tunable} begins with the {attribute} of {type(optimizer).__name__}, "
            f"which is a {type(value).__name__}; compile with a number, or leave {tunable} out"
        ) from error


_READERS = {
    TunableName.LEARNING_RATE: _learning_rate,
    TunableName.MOMENTUM: _momentum,
    TunableName.WEIGHT_DECAY: _weight_decay,
}


class TracedNumber:
    """A scalar tensor as the value of an optimizer's attribute.

    Keras asks whether an SGD's momentum differs from 0 to know whether it has a variable for it: a
    symbolic tensor cannot answer, and this one has.
    """

    __hash__ = None  # type: ignore[assignment]  # compares like a number

    def __init__(self, value: Tensor) -> None:
        self._value = value

    def __ne__(self, other: object) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return False

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Tensor:
        del name
        return self._value if dtype is None else tf.cast(self._value, dtype)
