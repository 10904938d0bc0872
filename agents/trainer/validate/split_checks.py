"""Dynamic checks of a compiled model: results of a batch's parts must add up to the whole's.

Whether a loss or metric can be split is decided by running it on a batch and on the batch's two
parts. The checks do not change the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.custom_steps import is_custom, logs_warnings
from agents.trainer.model.keras_private import (
    compiled_metrics,
    mean_metrics,
    own_metrics,
    unweighted_trackers,
)
from agents.trainer.validate.loss_checks import in_pairs, loss_check, training_loss_check
from agents.trainer.validate.part_runner import (
    ABSOLUTE_TOLERANCE,
    OWN_CASTS,
    BatchRun,
    PartRunner,
    length,
    rounding_tolerance,
    rows,
    single_precision,
)
from agents.trainer.validate.state_checks import state_check


def splitting_check(
    model: keras.Model,
    examples: tuple[Any, ...],
    has_validation: bool = True,
    global_batch_size: int = 0,
) -> list[str]:
    """Check that losses, metrics and state of two parts of a batch add up; returns warnings.

    A model of mixed precision computes in single precision, unless its own code casts.

    Args:
        model: compiled and built, metrics reset.
        examples: `(x[, y[, sample_weight]])` with at least two examples.
        has_validation: the model has to give a loss in inference, too.
        global_batch_size: examples up to which losses are tried on copies, too.

    Raises:
        JobCodeError: a loss, metric or state does not add up, or depends on the process.
    """
    check = partial(_splitting_check, model, examples, has_validation, global_batch_size)
    with suppress(*OWN_CASTS), single_precision(model) as is_changed:
        if is_changed:
            return check()
    return check()


def _splitting_check(
    model: keras.Model, examples: tuple[Any, ...], has_validation: bool, global_batch_size: int
) -> list[str]:
    num_examples = length(examples)
    assert num_examples > 1, "one example cannot be split"
    # Parts of different size show wrong weights, and an odd one that a loss is over pairs.
    cut = max(1, (num_examples // 3 - 1) | 1)
    first, second = rows(examples, 0, cut), rows(examples, cut, num_examples)
    is_custom_step = is_custom(model, training=True)
    warnings = []
    if has_validation or not is_custom_step:
        inference = _inference_runner(model, examples, has_validation)
        _mask_check(inference)
        warnings += [] if inference.is_training else inference_changes(inference.changed)
        warnings += loss_check(inference, examples, (first, second), global_batch_size)
        _metrics_check(inference, first, second)
        warnings += _slice_metrics(inference, examples)
    training = PartRunner(model, examples, training=True)  # tracing also checks the operations
    _mask_check(training)
    if is_custom_step:
        warnings += _slice_metrics(training, examples)
    if own_metrics(model):  # which may be updated, or read, in training alone
        _metrics_check(training, first, second)
    state_check(training, examples, first, second)
    warnings += logs_warnings(model)
    return warnings + training_loss_check(training, examples, (first, second))


def _inference_runner(
    model: keras.Model, examples: tuple[Any, ...], has_validation: bool
) -> PartRunner:
    """Trace the model for inference, or as it trains if it has a loss in training alone."""
    try:
        return PartRunner(model, examples, training=False)
    except JobCodeError:
        raise
    except Exception:
        if has_validation:
            raise
        return PartRunner(model, examples, training=True)


def inference_changes(changed: Sequence[Any]) -> list[str]:
    """Warn of state that the model changes in inference, where it is left as it is."""
    names = [repr(variable.path) for variable in changed]
    if not names:
        return []
    return [
        f"the model changes {', '.join(names[:3])} in inference too; validations and predictions "
        "leave all state as it is, fit and predict would go on with the new one. Change it only "
        "if training is true"
    ]


def _mask_check(runner: PartRunner) -> None:
    """Raise if losses have other weights than the number of unmasked places in a slice."""
    if runner.unequal_weights:
        raise JobCodeError(
            "masked_loss",
            "code.build",
            "a loss is the mean over the places that a mask leaves (of mask_zero=True, a Masking "
            "layer or ignore_class) or that sample weights count (mean_with_sample_weight), so a "
            f"slice counts by these places; but {runner.unequal_weights}, which would count it by "
            "its examples. Let the loss be a mean over all places, with sample weights that are 0 "
            "for padding and no mask on the output, or use reduction='sum'",
        )


def _metrics_check(runner: PartRunner, first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    """Compare metric state after two batches in a row, and the first again, with their sum.

    Trackers of single losses are excluded: Keras weights them by batch, the engine by example. The
    loss must not depend on the metrics, which each virtual node starts from zero.
    """
    start = [np.asarray(v) for v in runner.metrics]
    in_a_row = runner(second, metrics=runner(first, metrics=start).metrics)
    again = runner(first, metrics=in_a_row.metrics)
    runs = [runner(examples) for examples in (first, second)]
    if not _is_close(in_a_row.losses[0], runs[1].losses[0], runner.model):
        raise JobCodeError(
            "metric_not_additive",
            "code.build",
            "the loss depends on the value of a metric, which in a virtual node is that of its own "
            "slice alone. Keep what the model reads in a weight, add_weight(trainable=False)",
        )
    apart = [run.metrics for run in runs]
    left_out = {id(variable) for variable in unweighted_trackers(runner.model)}
    states = zip(runner.metrics, in_a_row.metrics, again.metrics, *apart, strict=True)
    for variable, two, three, one, other in states:
        if id(variable) in left_out:
            continue
        for count, wanted, total in (("two", two, one + other), ("three", three, 2 * one + other)):
            if not _is_close(wanted, total, runner.model):
                raise JobCodeError(
                    "metric_not_additive",
                    "code.build",
                    f"the variable {variable.path!r} of the metric "
                    f"{_owner(runner.model, variable)} does not add up: after {count} batches it "
                    f"holds {_short(wanted)}, the batches apart give {_short(one)} and "
                    f"{_short(other)}. Metrics are summed over virtual nodes; keep sums and counts "
                    "in the metric, starting from zero, and divide in result()",
                )


def _slice_metrics(runner: PartRunner, examples: tuple[Any, ...]) -> list[str]:
    """Warn of metrics whose value for a batch is not that of its parts, such as a mean of Dices.

    The parts differ in size, so that a metric that counts batches shows.
    """
    few, *parts = in_pairs(examples)
    if (low := 2 * len(parts) - 4) > 0:
        parts[-2:] = [(rows(few[0], low, length(few[0])), few[1][low:])]
    whole, again, *apart = [
        runner(batch, seed=seed, outputs=outputs)
        for (batch, outputs), seed in [(few, 0), (few, 1), *((part, 0) for part in parts)]
    ]
    shares = [length(batch) / length(few[0]) for batch, _ in parts]
    sums = _metrics_summed(runner, whole, apart, shares)
    states = zip(whole.metrics, sums, again.metrics, strict=True)
    states_of = {id(v): each for v, each in zip(runner.metrics, states, strict=True)}
    warnings = []
    for metric in [*compiled_metrics(runner.model), *own_metrics(runner.model)]:
        by_way = zip(*(states_of[id(variable)] for variable in metric.variables), strict=True)
        results = [
            _numbers(metric.stateless_result([*map(tf.constant, state)])) for state in by_way
        ]
        if results and not np.array_equal(results[0], results[2], equal_nan=True):
            continue  # drawn at random
        if results and not _is_close(results[0], results[1], runner.model):
            warnings.append(
                f"the metric {metric.name!r} is computed for each slice and averaged or added up "
                "over slices, so its value depends on the number of virtual nodes; one that gives "
                "a value for each example does not"
            )
    return warnings


def _metrics_summed(
    runner: PartRunner, whole: BatchRun, apart: Sequence[BatchRun], shares: Sequence[float]
) -> list[Any]:
    """Sum the parts' growth of metric variables as virtual nodes do.

    A mean that is given one value for a batch, whatever its size, counts it by the part's share;
    losses with a divisor by this, too.
    """
    places = {id(variable): place for place, variable in enumerate(runner.metrics)}
    weights = [[1.0] * len(apart) for _ in runner.metrics]
    for metric in mean_metrics(runner.model):
        count = places[id(metric.count)]
        if all(np.array_equal(part.metrics[count], whole.metrics[count]) for part in apart):
            for variable in metric.variables:
                weights[places[id(variable)]] = list(shares)
    for place in runner.by_places:
        weights[place] = [
            weight * part.share / whole.share
            for weight, part in zip(weights[place], apart, strict=True)
        ]
    columns = zip(weights, zip(*(part.metrics for part in apart), strict=True), strict=True)
    return [sum(w * v for w, v in zip(each, values, strict=True)) for each, values in columns]


def _numbers(result: Any) -> np.ndarray:
    """Flatten the result of a metric, which may be a dict."""
    return np.concatenate([np.ravel(leaf) for leaf in keras.tree.flatten(result)])


def _is_close(expected: Any, actual: Any, model: keras.Model) -> bool:
    compare: Callable[..., bool] = np.allclose
    tolerance = rounding_tolerance(model)
    return compare(actual, expected, rtol=tolerance, atol=ABSOLUTE_TOLERANCE, equal_nan=True)


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
