"""Dynamic checks of a compiled model: results of a batch's parts must add up to the whole's.

Whether a loss or metric can be split is decided by running it on a batch and on the batch's two
parts. The checks do not change the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import (
    SUM_REDUCTION,
    TrainingScope,
    compiled_metrics,
    metrics_update,
    model_call,
    model_layers,
    model_loss,
    own_metrics,
    sums_scaled,
    unweighted_trackers,
)
from agents.trainer.model.state import ModelState
from agents.trainer.model.stateful_ops import (
    enclosed_state_refused,
    refuse_process_operations,
    refuse_untracked_variables,
)
from agents.trainer.validate.model_checks import loss_reductions

Tensor = Any
#: Relative differences attributed to rounding, for single and for half precision.
TOLERANCE = 1e-4
HALF_TOLERANCE = 3e-2
ABSOLUTE_TOLERANCE = 1e-5
#: Examples of a batch that is compared with its pairs. Small parts differ more than large ones.
PAIRED_EXAMPLES = 16
#: Least and largest factor on the outputs of these examples. A model that was never trained gives
#: much the same for all, so that even a Dice of the whole batch is nearly the mean of its parts'.
OUTPUT_FACTORS = (0.25, 1.0)
#: A state's change from two to four times the examples, relative to that from one to two times: 2
#: for a sum, about 0.5 for what tends to an average.
GROWING = 0.9
#: Least difference of two batches' results, relative to that of their first changes, that is one.
REPEATED = 0.01


@dataclass(frozen=True)
class Outcome:
    """Results of running a batch: the loss, new values of metrics and of changed state."""

    loss: float
    metrics: list[np.ndarray]
    state: list[np.ndarray]


@dataclass(frozen=True)
class Conditions:
    """Inputs of a run besides the batch.

    Attributes:
        factor: on summed losses.
        metrics: values of the metrics' variables.
        outputs: a factor on the model's outputs for each example; None leaves them as they are.
    """

    factor: float
    metrics: list[np.ndarray]
    seed: int = 0
    outputs: np.ndarray | None = None


class Trial:
    """Runs a built model on batches of any size without changing its state."""

    def __init__(self, model: keras.Model, sample: tuple[Any, ...], training: bool) -> None:
        """Trace the model for examples like `sample`.

        Raises:
            JobCodeError: the traced function has effects or operations bound to a process.
        """
        self.model = model
        self.is_masked = False
        self.metrics = list(model.metrics_variables)
        state = ModelState(model)
        self.random_states = state.seeds
        self.trainable = state.trainable
        self.changed: list[Any] = []
        self._weights = [*state.trainable, *state.fixed]
        self._sample = sample
        self._training = training
        signature = [
            [_spec(leaf) for leaf in keras.tree.flatten(sample)],
            tf.TensorSpec([], tf.float32),
            [tf.TensorSpec(v.shape, v.dtype) for v in self.metrics],
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([None], tf.float32),
        ]
        self._function = tf.function(self._run, autograph=False).get_concrete_function(*signature)
        refuse_process_operations(self._function.graph)

    def __call__(self, examples: tuple[Any, ...], conditions: Conditions) -> Outcome:
        """Run a batch."""
        outputs = conditions.outputs
        outputs = np.ones(_length(examples)) if outputs is None else outputs
        loss, metrics, changed = self._function(
            [tf.convert_to_tensor(leaf) for leaf in keras.tree.flatten(examples)],
            tf.constant(conditions.factor, tf.float32),
            [
                tf.constant(value, variable.dtype)
                for value, variable in zip(conditions.metrics, self.metrics, strict=True)
            ],
            tf.constant(conditions.seed, tf.int64),
            tf.constant(outputs, tf.float32),
        )
        return Outcome(
            float(loss), [value.numpy() for value in metrics], [value.numpy() for value in changed]
        )

    def _run(
        self,
        leaves: list[Tensor],
        factor: Tensor,
        metrics: list[Tensor],
        seed: Tensor,
        outputs: Tensor,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        packed = keras.tree.pack_sequence_as(self._sample, leaves)
        batch = (*packed, None, None)[:3]
        count = tf.cast(tf.shape(leaves[0])[0], tf.float32)
        # All variables are mapped, because the scope has no values of unmapped variables.
        mapping = [(variable, tf.convert_to_tensor(variable.value)) for variable in self._weights]
        mapping.extend(zip(self.metrics, metrics, strict=True))
        for number, state in enumerate(self.random_states):
            mapping.append((state, tf.cast([seed, number], state.dtype)))
        scope = TrainingScope(mapping, collect_losses=True)
        with scope, enclosed_state_refused(scope):
            predictions = model_call(self.model, batch[0], training=self._training)
            self.is_masked = any(has_mask(leaf) for leaf in keras.tree.flatten(predictions))
            if not self._training:
                predictions = keras.tree.map_structure(
                    lambda leaf: _scaled(leaf, outputs), predictions
                )
            with sums_scaled(self.model, factor):
                loss = model_loss(self.model, batch, predictions, training=self._training)
            metrics_update(self.model, batch, predictions, loss, count)
            ends = {id(variable): scope.get_current_value(variable) for variable, _ in mapping}
        refuse_untracked_variables(scope.untracked)
        given = {id(variable): value for variable, value in mapping}
        self.changed = [v for v in self._weights if ends[id(v)] is not given[id(v)]]
        grown = [tf.convert_to_tensor(ends[id(v)]) for v in self.metrics]
        changed = [tf.convert_to_tensor(ends[id(v)]) for v in self.changed]
        return tf.cast(tf.reduce_sum(loss), tf.float32), grown, changed


def splitting_check(
    model: keras.Model, examples: tuple[Any, ...], has_validation: bool = True
) -> list[str]:
    """Check that losses, metrics and state of two parts of a batch add up; returns warnings.

    Args:
        model: compiled and built, metrics reset.
        examples: `(x[, y[, sample_weight]])` with at least two examples.
        has_validation: the model has to give a loss in inference, too.

    Raises:
        JobCodeError: a loss, metric or state does not add up, or depends on the process.
    """
    num_examples = _length(examples)
    assert num_examples > 1, "one example cannot be split"
    cut = max(1, num_examples // 3)  # parts of different size, so that wrong weights show
    first, second = _rows(examples, 0, cut), _rows(examples, cut, num_examples)
    inference = _inference_trial(model, examples, has_validation)
    _mask_check(inference)
    warnings = _loss_check(inference, examples, (first, second))
    _metrics_check(inference, first, second)
    warnings += _slice_metrics(inference, examples)
    training = Trial(model, examples, training=True)  # tracing also checks the operations
    _common_state_check(training, first, second)
    _averages_check(training, examples)
    _extremes_check(training, first, second)
    return warnings


def _inference_trial(model: keras.Model, examples: tuple[Any, ...], has_validation: bool) -> Trial:
    """Trace the model for inference, or as it trains if it has a loss in training alone."""
    try:
        return Trial(model, examples, training=False)
    except JobCodeError:
        raise
    except Exception:
        if has_validation:
            raise
        return Trial(model, examples, training=True)


def has_mask(tensor: Any) -> bool:
    """Return whether Keras attached a mask, which its losses apply, to a model's output."""
    return getattr(tensor, "_keras_mask", None) is not None


def _mask_check(trial: Trial) -> None:
    """Raise if a loss is a mean over unmasked places, whose number differs between slices."""
    reductions = loss_reductions(trial.model).values()
    if trial.is_masked and any(reduction != SUM_REDUCTION for reduction in reductions):
        raise JobCodeError(
            "masked_loss",
            "code.build",
            "the model's output carries a mask (from mask_zero=True or a Masking layer), and the "
            "loss is the mean over the places that are not masked. How many those are differs from "
            "slice to slice, so virtual nodes would weight them differently. Give sample weights "
            "that are 0 for padding and take the mask off the output, or use a loss with "
            "reduction='sum'",
        )


def _loss_check(trial: Trial, whole: tuple[Any, ...], parts: Sequence[Any]) -> list[str]:
    """Compare the losses of batches with the engine's weighted means of their parts' losses."""
    zeros = [np.zeros(v.shape) for v in trial.metrics]

    def loss_of(examples: Any, share: float, outputs: Any = None, seed: int = 0) -> float:
        return share * trial(examples, Conditions(1.0 / share, zeros, seed, outputs)).loss

    expected = loss_of(whole, 1.0)
    if not np.isfinite(expected):
        return [f"the loss of the first examples is {expected}; look at the data and the loss"]
    if trial.random_states and loss_of(whole, 1.0, seed=1) != expected:
        return ["the model draws random numbers in inference too; its loss could not be checked"]
    few, *pairs = _in_pairs(whole)
    for batch, slices in (((whole, None), [(part, None) for part in parts]), (few, pairs)):
        expected = loss_of(batch[0], 1.0, batch[1])
        size = _length(batch[0])
        combined = sum(loss_of(part, _length(part) / size, outputs) for part, outputs in slices)
        if not _is_close(expected, combined, trial.model):
            raise _not_additive(trial.model, expected, combined)
    return []


def _not_additive(model: keras.Model, expected: float, combined: float) -> JobCodeError:
    return JobCodeError(
        "loss_not_additive",
        "code.build",
        f"the loss of a batch ({expected:.6g}) is not the mean over its parts ({combined:.6g}), "
        "so virtual nodes would train something else. The losses are "
        f"{', '.join(loss_reductions(model)) or 'those of add_loss()'}. Causes: a loss that "
        "compares examples with each other or adds them up before it divides (use one that is "
        "computed for each example, as Dice(axis=-1) is), or an add_loss() that sums over the "
        "batch (use a mean)",
    )


def _metrics_check(trial: Trial, first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    """Compare metric state after two consecutive batches with the sum of both from zero.

    Trackers of single losses are excluded: Keras weights them by batch, the engine by example.
    """
    start = [np.asarray(v) for v in trial.metrics]
    zeros = [np.zeros_like(value) for value in start]
    in_a_row = trial(second, Conditions(1.0, trial(first, Conditions(1.0, start)).metrics))
    apart = [trial(examples, Conditions(1.0, zeros)).metrics for examples in (first, second)]
    left_out = {id(variable) for variable in unweighted_trackers(trial.model)}
    for variable, wanted, *pair in zip(trial.metrics, in_a_row.metrics, *apart, strict=True):
        if id(variable) in left_out or _is_close(wanted, pair[0] + pair[1], trial.model):
            continue
        raise JobCodeError(
            "metric_not_additive",
            "code.build",
            f"the variable {variable.path!r} of the metric {_owner(trial.model, variable)} does "
            "not add up: after two batches it holds "
            f"{_short(wanted)}, the batches apart give {_short(pair[0])} and {_short(pair[1])}. "
            "Metrics are summed over virtual nodes; keep sums and counts in the metric, starting "
            "from zero, and divide in result()",
        )


def _slice_metrics(trial: Trial, examples: tuple[Any, ...]) -> list[str]:
    """Warn of metrics whose value for a batch is not that of its parts, such as a mean of Dices."""
    zeros = [np.zeros(v.shape) for v in trial.metrics]
    whole, *apart = [
        trial(batch, Conditions(1.0, zeros, outputs=outputs)).metrics
        for batch, outputs in _in_pairs(examples)
    ]
    sums = [sum(values) for values in zip(*apart, strict=True)]
    both = zip(whole, sums, strict=True)
    states_of = {id(v): pair for v, pair in zip(trial.metrics, both, strict=True)}
    warnings = []
    for metric in [*compiled_metrics(trial.model), *own_metrics(trial.model)]:
        states = zip(*(states_of[id(variable)] for variable in metric.variables), strict=True)
        results = [metric.stateless_result([*map(tf.constant, state)]) for state in states]
        if results and not _is_close(results[0], results[1], trial.model):
            warnings.append(
                f"the metric {metric.name!r} is computed for each slice and averaged or added up "
                "over slices, so its value depends on the number of virtual nodes; one that gives "
                "a value for each example does not"
            )
    return warnings


def _common_state_check(trial: Trial, first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    """Raise if weights or whole-number state change by what depends on the examples of a slice."""
    if not trial.changed:
        return
    states = (_state_after(trial, examples) for examples in (first, second))
    for variable, one, other in zip(trial.changed, *states, strict=True):
        if any(variable is weight for weight in trial.trainable):
            least = _least_difference(trial.model, np.asarray(variable), one)
            if _distance(one, other) > least:
                raise _weight_assigned(trial.model, variable)
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


def _averages_check(trial: Trial, examples: tuple[Any, ...]) -> None:
    """Raise if float state is no average over the examples, as virtual nodes' states are averaged.

    An average stays the same if every example comes twice, or last first. What depends a little on
    the number of examples, as an unbiased variance, changes less and less. State that is drawn at
    random cannot be compared.
    """
    if not any(_is_float(variable) for variable in trial.changed):
        return
    few = _rows(examples, 0, min(PAIRED_EXAMPLES, max(2, _length(examples) // 4)))
    once, reversed_, twice, four = (
        _state_after(trial, _joined(few, times)) for times in (1, -1, 2, 4)
    )
    drawn = _state_after(trial, few, seed=1) if trial.random_states else once
    states = zip(trial.changed, once, drawn, reversed_, twice, four, strict=True)
    for variable, value, other, turned, doubled, fourfold in states:
        least = _least_difference(trial.model, np.asarray(variable), value)
        if not _is_float(variable) or _distance(value, other) > least:
            continue
        if _distance(value, turned) > least:
            raise _not_combinable(variable, "depends on the order of the examples")
        step = _distance(value, doubled)
        if step > least and _distance(doubled, fourfold) > GROWING * step:
            raise _not_combinable(variable, "grows with the number of examples in a slice")


def _extremes_check(trial: Trial, first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    """Raise if float state is a running maximum, minimum or the like, of which no mean is one.

    Such state depends on the batches, but neither on their order nor on how often each one came: a
    moving average depends on how often, what is overwritten with each batch on the order.
    """
    variables = trial.changed
    if not any(_is_float(variable) and not variable.trainable for variable in variables):
        return
    before = [np.asarray(variable) for variable in variables]
    a, b = _state_after(trial, first), _state_after(trial, second)
    try:
        _assign(variables, a)
        aa, ab = _state_after(trial, first), _state_after(trial, second)
        _assign(variables, b)
        ba = _state_after(trial, first)
    finally:
        _assign(variables, before)
    for row, variable in enumerate(variables):
        change, difference = _distance(before[row], a[row]), _distance(a[row], b[row])
        least = _least_difference(trial.model, before[row], a[row])
        if not _is_float(variable) or variable.trainable or min(change, difference) <= least:
            continue
        is_repeated = _distance(a[row], aa[row]) <= REPEATED * change
        if is_repeated and _distance(ab[row], ba[row]) <= REPEATED * difference:
            raise _not_combinable(variable, "is an extreme over the examples, as a maximum")


def _assign(variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _state_after(trial: Trial, examples: tuple[Any, ...], seed: int = 0) -> list[np.ndarray]:
    """Return the changed state after a batch."""
    return trial(examples, Conditions(1.0, [np.zeros(v.shape) for v in trial.metrics], seed)).state


def _joined(examples: tuple[Any, ...], times: int) -> tuple[Any, ...]:
    """Repeat a batch; -1 reverses it."""
    joined: tuple[Any, ...] = keras.tree.map_structure(
        lambda leaf: leaf[::-1] if times < 0 else np.concatenate([leaf] * times), examples
    )
    return joined


def _least_difference(model: keras.Model, before: np.ndarray, after: np.ndarray) -> float:
    """Return the least distance between states that is not attributed to rounding."""
    tolerance = _tolerance(model)
    rounding = tolerance * _length_of(after) + ABSOLUTE_TOLERANCE * np.sqrt(after.size)
    least: float = max(rounding, 10 * tolerance * _distance(before, after))
    return least


def _distance(one: np.ndarray, other: np.ndarray) -> float:
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


def _is_close(expected: Any, actual: Any, model: keras.Model) -> bool:
    compare: Callable[..., bool] = np.allclose
    tolerance = _tolerance(model)
    return compare(actual, expected, rtol=tolerance, atol=ABSOLUTE_TOLERANCE, equal_nan=True)


def _tolerance(model: keras.Model) -> float:
    return HALF_TOLERANCE if "16" in str(model.compute_dtype) else TOLERANCE


def _length(examples: tuple[Any, ...]) -> int:
    return len(keras.tree.flatten(examples)[0])


def _in_pairs(examples: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], np.ndarray]]:
    """Return the first `PAIRED_EXAMPLES` of a batch, then the pairs of them.

    Each with factors on its outputs. The last pair of an odd number is a single example.
    """
    size = min(PAIRED_EXAMPLES, _length(examples))
    factors = np.linspace(*OUTPUT_FACTORS, size)
    bounds = [(0, size), *((low, min(low + 2, size)) for low in range(0, size, 2))]
    return [(_rows(examples, low, high), factors[low:high]) for low, high in bounds]


def _scaled(output: Tensor, factors: Tensor) -> Tensor:
    """Multiply a float output of a batch by a factor for each example."""
    if not tf.as_dtype(output.dtype).is_floating:
        return output
    ones = tf.ones([tf.rank(output) - 1], tf.int32)
    shaped = tf.reshape(factors, tf.concat([tf.shape(factors), ones], 0))
    scaled = output * tf.cast(shaped, output.dtype)
    scaled.set_shape(output.shape)
    return scaled


def _rows(examples: tuple[Any, ...], low: int, high: int) -> tuple[Any, ...]:
    rows: tuple[Any, ...] = keras.tree.map_structure(lambda leaf: leaf[low:high], examples)
    return rows


def _spec(leaf: Any) -> tf.TensorSpec:
    return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)


def _owner(model: keras.Model, variable: Any) -> str:
    """Return the class name of the metric that owns a variable."""
    owners = [
        type(metric).__name__
        for metric in compiled_metrics(model)
        if any(each is variable for each in metric.variables)
    ]
    return owners[0] if owners else "of the model"


def _short(value: np.ndarray) -> str:
    return np.array2string(value.ravel()[:3], precision=4)
