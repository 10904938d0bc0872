"""Metrics that add up over slices, told from those that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras import ops

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import model_build
from agents.trainer.validate.split_checks import splitting_check
from tests.agents.trainer.validate.split_models import (
    OF_A_BATCH,
    OF_EACH,
    VECTORS,
    model_of,
    model_with_state,
    scalar_mean,
)


class PerBatch(keras.metrics.Metric):
    """A mean of batches' values, each counted once whatever the batch's size."""

    def __init__(self) -> None:
        super().__init__(name="per_batch")
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        del sample_weight
        self.total.assign_add(scalar_mean(y_true, y_pred))
        self.count.assign_add(1.0)

    def result(self) -> Any:
        return self.total / self.count


def test_a_metric_of_a_whole_batch_is_warned_of_by_name() -> None:
    names = [*(metric.__name__ for metric in OF_A_BATCH), "per_batch"]
    warnings = splitting_check(*model_of("mse", [*OF_A_BATCH, PerBatch()]))
    assert len(warnings) == len(names)
    for name, warning in zip(names, warnings, strict=True):
        assert f"the metric '{name}' is computed for each slice" in warning


class Late(keras.metrics.Sum):
    """Leaves out the first two batches, from which every virtual node starts anew."""

    def __init__(self) -> None:
        super().__init__(name="late")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        del sample_weight
        super().update_state(ops.where(self.count < 2, 0.0, y_true - y_pred))
        self.count.assign_add(1.0)


def test_a_metric_that_leaves_out_the_first_batches_is_refused() -> None:
    model, examples = model_of("mse", [Late()])
    with pytest.raises(JobCodeError, match="Late does not add up: after three batches it holds"):
        splitting_check(model, examples)


class Both(keras.metrics.MeanSquaredError):
    """Has two numbers for the logs."""

    def result(self) -> Any:
        square = super().result()
        return {"square": square, "root": ops.sqrt(square)}


def test_metrics_that_add_up_are_not_warned_of() -> None:
    classes = [
        Both(),
        keras.metrics.AUC(),
        keras.metrics.MeanIoU(2),
        keras.metrics.RootMeanSquaredError(),
    ]
    model, examples = model_of("mse", ["mae", "accuracy", *classes, *OF_EACH])
    assert splitting_check(model, tuple(array[:7] for array in examples)) == []


class Adaptive(keras.Sequential):  # type: ignore[misc]  # no types in Keras
    """Weights its loss in training by the mean of the losses so far, which a metric keeps."""

    def __init__(self, layers: Any) -> None:
        super().__init__(layers)
        self.mean = keras.metrics.Mean(name="mean")

    def compute_loss(self, *args: Any, training: bool = True, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, training=training, **kwargs)
        adapted = loss * (1.0 + self.mean.result()) if training else loss
        self.mean.update_state(loss)
        return adapted


def test_a_loss_that_reads_a_metric_is_refused() -> None:
    model = Adaptive([keras.Input((4,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    model_build(model, (VECTORS, VECTORS))
    with pytest.raises(JobCodeError, match="depends on the value of a metric") as caught:
        splitting_check(model, (VECTORS[:6], VECTORS[:6]))
    assert caught.value.code == "metric_not_additive"


class Tracked(keras.layers.Layer):
    """Gives a metric of its own what `measure` computes from the examples [n, 4]."""

    def __init__(self, metric: keras.metrics.Metric, measure: Callable[[Any], Any]) -> None:
        super().__init__()
        self.metric = metric
        self.measure = measure

    def call(self, inputs: Any) -> Any:
        self.metric.update_state(self.measure(inputs))
        return inputs


def test_a_layers_sum_over_batches_is_warned_of() -> None:
    of_batch = Tracked(keras.metrics.Sum(name="added"), ops.mean)
    (warning,) = splitting_check(*model_with_state(of_batch))
    assert "the metric 'added' is computed for each slice and averaged or added up" in warning


@pytest.mark.parametrize("metric", [keras.metrics.Sum, keras.metrics.Mean])
def test_a_layers_metric_of_each_example_is_not_warned_of(metric: Any) -> None:
    of_each = Tracked(metric(name="tracked"), lambda x: ops.mean(x**2, axis=-1))
    assert splitting_check(*model_with_state(of_each)) == []
