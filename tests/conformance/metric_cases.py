"""Cases of metrics, as `metrics` and as `weighted_metrics` of `compile`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, metrics

from tests.conformance.cases import Case
from tests.conformance.models import (
    VECTOR,
    Make,
    flags,
    integers,
    numbers,
    one_hot,
    optimizer_plain,
    positive,
    shares,
)


class OwnMetric(metrics.Metric):
    """Metric of a job: keeps a sum and a count."""

    def __init__(self, name: str = "own") -> None:
        super().__init__(name=name)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(keras.ops.sum(keras.ops.abs(y_true - y_pred)))
        self.count.assign_add(keras.ops.cast(keras.ops.size(y_pred), "float32"))

    def result(self) -> Any:
        return self.total / self.count


class LargestError(OwnMetric):
    """Metric of a job that does not add up."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        largest = keras.ops.max(keras.ops.abs(y_true - y_pred))
        self.total.assign(keras.ops.maximum(self.total, largest))
        self.count.assign(1.0)


class TotalOutput(metrics.Sum):
    """Sum of a model's outputs."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(y_pred, sample_weight)


class MeanOutput(metrics.Mean):
    """Mean of a model's outputs."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(keras.ops.mean(y_pred, axis=-1), sample_weight)


def metric_case(
    subject: str, option: str, make: Make, targets: np.ndarray, activation: str = "linear",
    size: int = 3, weighted: bool = False, loss: str = "mse", **more: Any,
) -> Case:  # fmt: skip
    """Make a case with a metric beside a loss."""

    def build() -> keras.Model:
        inputs = keras.Input(VECTOR)
        hidden = layers.Dense(5, activation="tanh")(inputs)
        model = keras.Model(inputs, layers.Dense(size, activation=activation)(hidden))
        kind = "weighted_metrics" if weighted else "metrics"
        model.compile(optimizer=optimizer_plain(), loss=loss, **{kind: [make()]})
        return model

    arrays = (numbers(*VECTOR), targets, positive())[: 3 if weighted else 2]
    return Case(subject, option, build, arrays, **more)


def mean_cases() -> list[Case]:
    """List cases of metrics that are means of a function of each example."""
    of_numbers = (
        "CosineSimilarity", "LogCoshError", "MeanAbsoluteError", "MeanSquaredError",
        "RootMeanSquaredError", "Accuracy", "R2Score", "PearsonCorrelation",
        "ConcordanceCorrelation",
    )  # fmt: skip
    of_positive = ("MeanAbsolutePercentageError", "MeanSquaredLogarithmicError", "Poisson")
    of_classes = ("CategoricalAccuracy", "CategoricalCrossentropy", "CategoricalHinge")
    cases = [
        metric_case(kind, "weighted" if weighted else "", getattr(metrics, kind),
                    numbers(3, seed=1), weighted=weighted)
        for kind in of_numbers for weighted in (False, True)
    ]  # fmt: skip
    for kinds, targets, activation in (
        (of_positive, positive(3), "softplus"),
        (of_classes, one_hot(3), "softmax"),
        (("Hinge", "SquaredHinge"), flags(3) * 2 - 1, "linear"),
        (("BinaryAccuracy", "BinaryCrossentropy"), flags(3), "sigmoid"),
        (("KLDivergence",), shares(3), "softmax"),
    ):
        cases += [metric_case(kind, "", getattr(metrics, kind), targets, activation)
                  for kind in kinds]  # fmt: skip
    classes = integers(3, seed=6)
    sparse = "sparse_categorical_crossentropy"
    cases += [
        metric_case(kind, "", getattr(metrics, kind), classes, "softmax", loss=sparse)
        for kind in ("SparseCategoricalAccuracy", "SparseCategoricalCrossentropy")
    ]
    return cases


def confusion_cases() -> list[Case]:
    """List cases of metrics that count right and wrong answers."""
    binary = {"targets": flags(1), "activation": "sigmoid", "size": 1}
    counts = ("TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives",
              "Precision", "Recall", "AUC")  # fmt: skip
    cases = [metric_case(kind, "", getattr(metrics, kind), **binary) for kind in counts]
    cases += [
        metric_case(kind, "weighted", getattr(metrics, kind), weighted=True, **binary)
        for kind in ("Precision", "AUC")
    ]
    at = ("PrecisionAtRecall", "RecallAtPrecision", "SensitivityAtSpecificity",
          "SpecificityAtSensitivity")  # fmt: skip
    cases += [
        metric_case(kind, "", lambda kind=kind: getattr(metrics, kind)(0.5), **binary)
        for kind in at
    ]
    return [
        *cases,
        metric_case("AUC", "PR, labels apart",
                    lambda: metrics.AUC(20, curve="PR", multi_label=True), flags(3), "sigmoid"),
        metric_case("Precision", "thresholds", lambda: metrics.Precision([0.3, 0.7]),
                    refused="metric_not_a_number", **binary),
    ]  # fmt: skip


def class_cases() -> list[Case]:
    """List cases of metrics over classes."""
    classes = integers(3, seed=6)
    soft = {"targets": one_hot(3), "activation": "softmax"}
    sparse = {"targets": classes, "activation": "softmax",
              "loss": "sparse_categorical_crossentropy"}  # fmt: skip
    return [
        metric_case("TopKCategoricalAccuracy", "", lambda: metrics.TopKCategoricalAccuracy(2),
                    **soft),
        metric_case("SparseTopKCategoricalAccuracy", "",
                    lambda: metrics.SparseTopKCategoricalAccuracy(2), **sparse),
        metric_case("F1Score", "", metrics.F1Score, refused="metric_not_a_number", **soft),
        metric_case("F1Score", "macro", lambda: metrics.F1Score("macro"), **soft),
        metric_case("FBetaScore", "micro", lambda: metrics.FBetaScore("micro", 2.0, 0.5), **soft),
        metric_case("FBetaScore", "weighted", lambda: metrics.FBetaScore("weighted"), **soft),
        metric_case("BinaryIoU", "", metrics.BinaryIoU, flags(3), "sigmoid"),
        metric_case("IoU", "", lambda: metrics.IoU(3, [0, 2], sparse_y_pred=False), **sparse),
        metric_case("MeanIoU", "", lambda: metrics.MeanIoU(3, sparse_y_pred=False), **sparse),
        metric_case("OneHotIoU", "", lambda: metrics.OneHotIoU(3, [0, 1]), **soft),
        metric_case("OneHotMeanIoU", "", lambda: metrics.OneHotMeanIoU(3), **soft),
    ]  # fmt: skip


def base_cases() -> list[Case]:
    """List cases of base classes and of metrics of a job."""
    targets = numbers(3, seed=1)
    wrapped = lambda: metrics.MeanMetricWrapper(keras.losses.mean_absolute_error, "off")  # noqa: E731
    return [
        metric_case("Metric", "own", OwnMetric, targets),
        metric_case("Metric", "own, does not add up", LargestError, targets,
                    refused="metric_not_additive"),
        metric_case("Sum", "", TotalOutput, targets),
        metric_case("Mean", "", MeanOutput, targets),
        metric_case("MeanMetricWrapper", "", wrapped, targets),
        metric_case("MeanMetricWrapper", "weighted", wrapped, targets, weighted=True),
    ]  # fmt: skip


def all_cases() -> list[Case]:
    return [*mean_cases(), *confusion_cases(), *class_cases(), *base_cases()]
