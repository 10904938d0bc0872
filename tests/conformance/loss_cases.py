"""Cases of losses: each with its options, its reductions, sample weights."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, losses

from tests.conformance.cases import Case
from tests.conformance.models import (
    SEQUENCE,
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


class OwnLoss(losses.Loss):
    """Loss of a job: the fourth power of the difference."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean((y_true - y_pred) ** 4, axis=-1)


def loss_case(
    subject: str, option: str, make: Make, targets: np.ndarray, activation: str = "linear",
    weight: np.ndarray | None = None, **more: Any,
) -> Case:  # fmt: skip
    """Make a case in which a loss trains two dense layers."""

    def build() -> keras.Model:
        inputs = keras.Input(VECTOR)
        hidden = layers.Dense(5, activation="tanh")(inputs)
        model = keras.Model(inputs, layers.Dense(3, activation=activation)(hidden))
        model.compile(optimizer=optimizer_plain(), loss=make())
        return model

    arrays = (numbers(*VECTOR), targets) if weight is None else (numbers(*VECTOR), targets, weight)
    return Case(subject, option, build, arrays, **more)


def plain_cases() -> list[Case]:
    """List cases of losses of numbers and of probabilities."""
    of_numbers = ("CosineSimilarity", "Huber", "LogCosh", "MeanAbsoluteError", "MeanSquaredError")
    of_positive = ("MeanAbsolutePercentageError", "MeanSquaredLogarithmicError", "Poisson")
    of_classes = (
        "CategoricalCrossentropy", "CategoricalFocalCrossentropy", "CategoricalHinge",
    )  # fmt: skip
    cases = [loss_case(kind, "", getattr(losses, kind), numbers(3, seed=1)) for kind in of_numbers]
    cases += [
        loss_case(kind, "", getattr(losses, kind), positive(3), "softplus") for kind in of_positive
    ]
    cases += [
        loss_case(kind, "", getattr(losses, kind), one_hot(3), "softmax") for kind in of_classes
    ]
    cases += [
        loss_case(kind, "", getattr(losses, kind), flags(3) * 2 - 1)
        for kind in ("Hinge", "SquaredHinge")
    ]
    cases += [
        loss_case(kind, "", getattr(losses, kind), flags(3), "sigmoid")
        for kind in ("BinaryCrossentropy", "BinaryFocalCrossentropy")
    ]
    return cases


def option_cases() -> list[Case]:
    """List cases of options, reductions and sample weights."""
    weight = positive()
    classes = integers(3, seed=6)
    sparse = losses.SparseCategoricalCrossentropy
    mse, entropy = losses.MeanSquaredError, losses.BinaryCrossentropy
    targets = numbers(3, seed=1)
    return [
        loss_case("Loss", "own", OwnLoss, targets),
        loss_case("KLDivergence", "", losses.KLDivergence, shares(3), "softmax"),
        loss_case("SparseCategoricalCrossentropy", "", sparse, classes, "softmax"),
        loss_case("SparseCategoricalCrossentropy", "logits", lambda: sparse(from_logits=True),
                  classes),
        loss_case("SparseCategoricalCrossentropy", "weights", lambda: sparse(from_logits=True),
                  classes, weight=weight),
        loss_case("SparseCategoricalCrossentropy", "ignored class",
                  lambda: sparse(from_logits=True, ignore_class=1), classes, places=classes != 1),
        loss_case("CategoricalGeneralizedCrossEntropy", "",
                  losses.CategoricalGeneralizedCrossEntropy, classes, "softmax"),
        loss_case("BinaryCrossentropy", "logits, smoothing",
                  lambda: entropy(from_logits=True, label_smoothing=0.1), flags(3)),
        loss_case("BinaryFocalCrossentropy", "balanced, logits",
                  lambda: losses.BinaryFocalCrossentropy(True, from_logits=True), flags(3)),
        loss_case("CategoricalCrossentropy", "logits, smoothing, weights",
                  lambda: losses.CategoricalCrossentropy(True, label_smoothing=0.1), one_hot(3),
                  weight=weight),
        loss_case("MeanSquaredError", "weights", mse, targets, weight=weight),
        loss_case("MeanSquaredError", "sum", lambda: mse(reduction="sum"), targets, is_sum=True),
        loss_case("MeanSquaredError", "sum, weights", lambda: mse(reduction="sum"), targets,
                  weight=weight, is_sum=True),
        loss_case("MeanSquaredError", "mean", lambda: mse(reduction="mean"), targets),
        loss_case("MeanSquaredError", "no reduction", lambda: mse(reduction=None), targets,
                  refused="loss_reduction"),
        loss_case("MeanSquaredError", "mean by sample weight",
                  lambda: mse(reduction="mean_with_sample_weight"), targets, weight=weight,
                  places=weight),
        loss_case("Dice", "", losses.Dice, flags(3), "sigmoid", refused="loss_not_additive"),
        loss_case("Dice", "by example", lambda: losses.Dice(axis=-1), flags(3), "sigmoid"),
        loss_case("Tversky", "", losses.Tversky, flags(3), "sigmoid",
                  refused="loss_not_additive"),
        loss_case("Tversky", "by example", lambda: losses.Tversky(axis=-1), flags(3), "sigmoid"),
        loss_case("Circle", "", losses.Circle, classes, refused="loss_not_additive"),
        Case("CTC", "", ctc_model, (numbers(*SEQUENCE), integers(3, 3, seed=2) + 1)),
    ]  # fmt: skip


def ctc_model() -> keras.Model:
    inputs = keras.Input(SEQUENCE)
    model = keras.Model(inputs, layers.Dense(5)(inputs))
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss=losses.CTC())
    return model


def all_cases() -> list[Case]:
    return [*plain_cases(), *option_cases()]
