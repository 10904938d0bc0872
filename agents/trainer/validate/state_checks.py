"""Dynamic checks of the state that a model changes: virtual nodes' states must combine.

Each virtual node changes its state by a slice of the batch, and the float states are averaged by
the number of examples. Whether that is right is decided by running the model on chosen batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import model_layers
from agents.trainer.model.state import as_array
from agents.trainer.validate.part_runner import (
    ABSOLUTE_TOLERANCE,
    PartRunner,
    length,
    rounding_tolerance,
    rows,
)

#: Examples of the first batch that is repeated, at most.
REPEATED_EXAMPLES = 16
#: A state's change from two to four times the examples, relative to that from one to two times: 2
#: for a sum, about 0.5 for what tends to an average.
GROWING = 0.9
#: Least difference of two batches' results, relative to that of their first changes, that is one.
REPEATED = 0.01
#: Largest part of a new state that may be lost when its change is added to the old one.
LOST = 0.01


def state_check(
    runner: PartRunner,
    examples: tuple[Any, ...],
    first: tuple[Any, ...],
    second: tuple[Any, ...],
) -> None:
    """Check that what a training step changes besides the trained weights can be averaged.

    Args:
        runner: of the model as it trains.
        examples: a batch; `first` and `second` are its parts.

    Raises:
        JobCodeError: `weight_assigned` or `state_not_combinable`.
    """
    _common_state_check(runner, first, second)
    _averages_check(runner, examples)
    _extremes_check(runner, first, second)
    _starts_check(runner, first)


def state_depends(runner: PartRunner, first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """Return whether the state after a batch differs between two batches."""
    if not runner.changed:
        return False
    states = zip(runner(first).state, runner(second).state, strict=True)
    return not all(np.array_equal(one, other, equal_nan=True) for one, other in states)


def slice_state(
    runner: PartRunner, whole: tuple[Any, ...], parts: Sequence[tuple[Any, ...]]
) -> list[str]:
    """Warn of float state after a batch that is not the mean of that after its parts."""
    names = []
    drawn = runner(whole, seed=1).state if runner.is_random else None
    shares = [length(part) / length(whole) for part in parts]
    apart = zip(*(runner(part).state for part in parts), strict=True)
    states = zip(runner.changed, runner(whole).state, apart, strict=True)
    for row, (variable, value, values) in enumerate(states):
        least = _least_difference(runner.model, as_array(variable.value), value)
        if not _is_float(variable) or (drawn and _distance(value, drawn[row]) > least):
            continue
        mean = sum(share * each for share, each in zip(shares, values, strict=True))
        if not _distance(value, np.asarray(mean)) <= least:  # nan for one example, as a variance
            names.append(repr(variable.path))
    if not names:
        return []
    return [
        f"the state {', '.join(names[:3])} is computed for each slice and averaged over slices, so "
        "it depends on the number of virtual nodes; a mean over the examples does not"
    ]


def _common_state_check(
    runner: PartRunner, first: tuple[Any, ...], second: tuple[Any, ...]
) -> None:
    """Raise if weights or whole-number state change by what depends on the examples of a slice."""
    if not runner.changed:
        return
    states = (runner(examples).state for examples in (first, second))
    for variable, one, other in zip(runner.changed, *states, strict=True):
        if any(variable is weight for weight in runner.trainable):
            least = _least_difference(runner.model, as_array(variable.value), one)
            if _distance(one, other) > least:
                raise _weight_assigned(runner.model, variable)
        elif not _is_float(variable) and not np.array_equal(one, other):
            raise _not_combinable(
                variable,
                "depends on the examples of a slice; whole-number state cannot be averaged",
            )


def _weight_assigned(model: keras.Model, variable: Any) -> JobCodeError:
    owners = [
        type(layer).__name__
        for layer in model_layers(model)
        if not isinstance(layer, keras.Model)
        and any(each is variable for each in layer.trainable_variables)
    ]
    return JobCodeError(
        "weight_assigned",
        "code.build",
        f"the trainable weight {variable.path!r} ({', '.join(owners)}) is assigned by the model's "
        "own call, to a value that depends on the examples of a slice. Compute such a value in "
        "build, or use a weight with trainable=False for what a layer assigns",
    )


def _averages_check(runner: PartRunner, examples: tuple[Any, ...]) -> None:
    """Raise if float state is no average over the examples, as virtual nodes' states are averaged.

    An average stays the same if every example comes twice, or last first. What depends a little on
    the number of examples, as an unbiased variance, changes less and less. State that is drawn at
    random cannot be compared. Batch normalisation by Keras's code is known to average; of a few
    examples, small images shrunk to one place each, a deep stack of it multiplies rounding.
    """
    layers = filter(_averages, model_layers(runner.model))
    known = {id(variable) for layer in layers for variable in layer.variables}
    compared = [_is_float(each) and id(each) not in known for each in runner.changed]
    if not any(compared):
        return
    few = rows(examples, 0, min(REPEATED_EXAMPLES, max(2, length(examples) // 4)))
    once, reversed_, twice, four = (runner(_joined(few, times)).state for times in (1, -1, 2, 4))
    drawn = runner(few, seed=1).state if runner.is_random else once
    states = zip(runner.changed, compared, once, drawn, reversed_, twice, four, strict=True)
    for variable, is_compared, value, other, turned, doubled, fourfold in states:
        least = _least_difference(runner.model, as_array(variable.value), value)
        if not is_compared or _distance(value, other) > least:
            continue
        if _distance(value, turned) > least:
            raise _not_combinable(variable, "depends on the order of the examples")
        step = _distance(value, doubled)
        if step > least and _distance(doubled, fourfold) > GROWING * step:
            raise _not_combinable(variable, "grows with the number of examples in a slice")


def _averages(layer: keras.layers.Layer) -> bool:
    """Return whether a layer's state is known to be an average over the examples."""
    keras_own = keras.layers.BatchNormalization
    return isinstance(layer, keras_own) and all(
        getattr(type(layer), name) is getattr(keras_own, name) for name in ("call", "_moments")
    )


def _extremes_check(runner: PartRunner, first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    """Raise if float state is a running maximum, minimum or the like, of which no mean is one.

    Such state depends on the batches, but neither on their order nor on how often each one came: a
    moving average depends on how often, what is overwritten with each batch on the order.
    """
    variables = runner.changed
    if not any(_is_float(variable) and not variable.trainable for variable in variables):
        return
    before = [as_array(variable.value) for variable in variables]
    a, b = runner(first).state, runner(second).state
    try:
        _assign(variables, a)
        aa, ab = runner(first).state, runner(second).state
        _assign(variables, b)
        ba = runner(first).state
    finally:
        _assign(variables, before)
    for row, variable in enumerate(variables):
        change, difference = _distance(before[row], a[row]), _distance(a[row], b[row])
        least = _least_difference(runner.model, before[row], a[row])
        if not _is_float(variable) or variable.trainable or min(change, difference) <= least:
            continue
        is_repeated = _distance(a[row], aa[row]) <= REPEATED * change
        if is_repeated and _distance(ab[row], ba[row]) <= REPEATED * difference:
            raise _not_combinable(variable, "is an extreme over the examples, as a maximum")


def _starts_check(runner: PartRunner, examples: tuple[Any, ...]) -> None:
    """Raise if float state starts from a value to which its change cannot be added.

    Virtual nodes return changes: none leads away from inf or nan, and small numbers are lost beside
    a large one.
    """
    for variable, new in zip(runner.changed, runner(examples).state, strict=True):
        if not _is_float(variable):
            continue
        dtype = np.result_type(new.dtype, np.float32)
        old, new = as_array(variable.value).astype(dtype), new.astype(dtype)
        with np.errstate(all="ignore"):
            moved = old + (new - old)
            is_near = _distance(moved, new) <= LOST * _length_of(new)
        if not is_near and not np.array_equal(moved, new, equal_nan=True):
            raise _not_combinable(
                variable,
                "starts from nan, infinity or a number beside which its new value is lost, so "
                "that no change can be added; start from 0, with a flag for the first step",
            )


def _assign(variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _joined(examples: tuple[Any, ...], times: int) -> tuple[Any, ...]:
    """Repeat a batch; -1 reverses it."""
    joined: tuple[Any, ...] = keras.tree.map_structure(
        lambda leaf: leaf[::-1] if times < 0 else np.concatenate([leaf] * times), examples
    )
    return joined


def _least_difference(model: keras.Model, before: np.ndarray, after: np.ndarray) -> float:
    """Return the least distance between states that is not attributed to rounding."""
    tolerance = rounding_tolerance(model)
    rounding = tolerance * _length_of(after) + ABSOLUTE_TOLERANCE * np.sqrt(after.size)
    least: float = max(rounding, 10 * tolerance * _distance(before, after))
    return least


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):  # of infinities
        return _length_of(one.astype("float64") - other.astype("float64"))


def _length_of(value: np.ndarray) -> float:
    return float(np.linalg.norm(value.astype("float64")))


def _is_float(variable: Any) -> bool:
    return bool(tf.as_dtype(variable.dtype).is_floating)


def _not_combinable(variable: Any, why: str) -> JobCodeError:
    return JobCodeError(
        "state_not_combinable",
        "code.build",
        f"the state {variable.path!r} of type {variable.dtype} {why}; virtual nodes see a slice of "
        "the batch each, and can only average their states. Use a float state that is a mean over "
        "the examples, or count steps only",
    )
