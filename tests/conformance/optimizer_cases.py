"""Cases of optimizers with their options, of learning rate schedules and of loss scales."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, optimizers
from keras.optimizers import schedules

from tests.conformance.cases import Case
from tests.conformance.models import (
    VECTOR,
    Make,
    data_for,
    dense_model,
    finished,
    integers,
    numbers,
)

#: Options that every optimizer takes.
COMMON: dict[str, dict[str, Any]] = {
    "clipnorm": {"clipnorm": 0.05},
    "clipvalue": {"clipvalue": 0.01},
    "global_clipnorm": {"global_clipnorm": 0.05},
    "weight decay": {"weight_decay": 0.05},
    "average": {"use_ema": True, "ema_momentum": 0.8},
    "average, overwriting": {
        "use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 3},
    "accumulation": {"gradient_accumulation_steps": 3},
    "fixed loss scale": {"loss_scale_factor": 16.0},
}  # fmt: skip
#: Class -> its own options; the empty ones are the defaults.
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "SGD": {"": {"learning_rate": 0.05}, "momentum": {"learning_rate": 0.02, "momentum": 0.9},
            "nesterov": {"learning_rate": 0.02, "momentum": 0.9, "nesterov": True},
            "nesterov, average": {"learning_rate": 0.02, "momentum": 0.9, "nesterov": True,
                                  "use_ema": True, "ema_momentum": 0.9}},
    "RMSprop": {"": {}, "centered, momentum": {"centered": True, "momentum": 0.5}},
    "Adam": {"": {}, "amsgrad": {"amsgrad": True}},
    "AdamW": {"": {"weight_decay": 0.1}, "amsgrad": {"amsgrad": True}},
    "Adamax": {"": {}}, "Nadam": {"": {}}, "Adadelta": {"": {"learning_rate": 0.5}},
    "Adagrad": {"": {}},
    "Ftrl": {"": {}, "penalties": {"l1_regularization_strength": 0.01,
                                   "l2_regularization_strength": 0.01, "beta": 0.1,
                                   "l2_shrinkage_regularization_strength": 0.01}},
    "Lamb": {"": {}}, "Lion": {"": {"learning_rate": 0.005}},
    "Adafactor": {"": {}, "absolute step": {"relative_step": False, "weight_decay": 0.01}},
    "Muon": {"": {}, "plain momentum": {"nesterov": False, "exclude_layers": ["head"]}},
    "ScheduleFreeAdamW": {"": {}, "warm-up": {"warmup_steps": 5, "weight_decay": 0.01}},
}  # fmt: skip
#: Class -> how much more its rounding may make, and why.
LOOSER: dict[str, dict[str, Any]] = {
    "Ftrl": {
        "tolerance": 5e-4,
        "note": "compared to 5e-4: its linear terms are differences of near numbers",
    }
}


class OwnOptimizer(optimizers.Optimizer):
    """Optimizer of a job: steps along the sign of a running mean of gradients."""

    def build(self, variables: Any) -> None:
        if not self.built:
            super().build(variables)
            self.means = self.add_optimizer_variables(variables, "mean")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        mean = self.means[self._get_variable_index(variable)]
        self.assign(mean, 0.5 * mean + 0.5 * gradient)
        self.assign_sub(variable, learning_rate * keras.ops.tanh(10.0 * mean))


class CentredSGD(optimizers.SGD):
    """Optimizer of a job: centres the gradients where Keras hands them over."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        centred = [
            (gradient - keras.ops.mean(gradient), variable) for gradient, variable in grads_and_vars
        ]
        return super().apply_gradients(centred)


class OwnSchedule(schedules.LearningRateSchedule):
    """Schedule of a job: falls with the square root of the step."""

    def __call__(self, step: Any) -> Any:
        return 0.05 / keras.ops.sqrt(1.0 + keras.ops.cast(step, "float32"))


def optimizer_case(subject: str, option: str, make: Make, **more: Any) -> Case:
    return Case(subject, option, lambda: dense_model(make), data_for(numbers(*VECTOR)), **more)


def option_cases() -> list[Case]:
    """List each optimizer with its own options, then with those of the common base class.

    All of those for the first one; two of them, in turn, for each of the others.
    """
    cases = []
    names = list(COMMON)
    for number, (kind, variants) in enumerate(OWN.items()):
        common = names if number == 0 else [names[(2 * number + k) % len(names)] for k in (0, 1)]
        for option, given in {**variants, **{name: COMMON[name] for name in common}}.items():
            rate = {} if "learning_rate" in given else {"learning_rate": 0.01}
            both = rate | given
            make = lambda kind=kind, both=both: getattr(optimizers, kind)(**both)  # noqa: E731
            cases.append(optimizer_case(kind, option, make, **LOOSER.get(kind, {})))
    return cases


def special_cases() -> list[Case]:
    """List optimizers around optimizers, loss scales and optimizers of a job."""
    scale = optimizers.LossScaleOptimizer
    sgd = lambda: optimizers.SGD(0.02, momentum=0.5)  # noqa: E731
    return [
        optimizer_case("Optimizer", "own", lambda: OwnOptimizer(learning_rate=0.01)),
        optimizer_case("Optimizer", "own apply_gradients", lambda: CentredSGD(0.05)),
        optimizer_case("LossScaleOptimizer", "", lambda: scale(sgd())),
        optimizer_case("LossScaleOptimizer", "grows",
                       lambda: scale(sgd(), initial_scale=64.0, dynamic_growth_steps=3)),
        optimizer_case("LossScaleOptimizer", "around Nadam", lambda: scale(optimizers.Nadam(0.01))),
        Case("LossScaleOptimizer", "skips steps", overflowing, data_for(numbers(*VECTOR)),
             tolerance=2e-3, note="half precision: sums in another order round differently"),
        Case("MultiOptimizer", "", multi_model, data_for(numbers(*VECTOR))),
        Case("OptimizerMap", "", multi_model, data_for(numbers(*VECTOR))),
        Case("SGD", "embedding", lambda: embedding_model(sgd()), token_data()),
        Case("Adam", "embedding", lambda: embedding_model(optimizers.Adam(0.01)), token_data(),
             is_dense=True, note="gradients of repeated tokens are added before they are squared; "
                                 "fit squares each by itself"),
    ]  # fmt: skip


def overflowing() -> keras.Model:
    """Make a model in half precision whose first loss scale is too large for it."""
    inputs = keras.Input(VECTOR)
    hidden = layers.Dense(5, activation="tanh", dtype="mixed_float16")(inputs)
    scaled = optimizers.LossScaleOptimizer(
        optimizers.SGD(0.02), initial_scale=2.0**22, dynamic_growth_steps=5
    )
    return finished(inputs, hidden, optimizer=scaled)


def multi_model() -> keras.Model:
    inputs = keras.Input(VECTOR)
    stem = layers.Dense(5, activation="tanh", name="stem")
    mapping = optimizers.OptimizerMap(optimizers.Adam(0.01))
    mapping[stem.name] = optimizers.SGD(0.05)
    return finished(inputs, stem(inputs), optimizer=optimizers.MultiOptimizer(mapping))


def embedding_model(optimizer: Any) -> keras.Model:
    inputs = keras.Input((5,), dtype="int32")
    return finished(inputs, layers.Embedding(9, 4)(inputs), optimizer=optimizer)


def token_data() -> Any:
    return data_for(integers(9, 5).astype(tf.int32.as_numpy_dtype))


def schedule_cases() -> list[Case]:
    """List learning rate schedules, under an optimizer with momentum."""
    kinds: dict[tuple[str, str], Make] = {
        ("LearningRateSchedule", "own"): OwnSchedule,
        ("CosineDecay", ""): lambda: schedules.CosineDecay(0.05, 15),
        ("CosineDecay", "warm-up"): lambda: schedules.CosineDecay(
            0.01, 10, alpha=0.1, warmup_target=0.05, warmup_steps=5),
        ("CosineDecayRestarts", ""): lambda: schedules.CosineDecayRestarts(0.05, 4, m_mul=0.8),
        ("ExponentialDecay", ""): lambda: schedules.ExponentialDecay(0.05, 4, 0.7),
        ("ExponentialDecay", "staircase"): lambda: schedules.ExponentialDecay(0.05, 4, 0.7, True),
        ("InverseTimeDecay", ""): lambda: schedules.InverseTimeDecay(0.05, 4, 0.7),
        ("PiecewiseConstantDecay", ""): lambda: schedules.PiecewiseConstantDecay(
            [4, 12], [0.05, 0.02, 0.01]),
        ("PolynomialDecay", ""): lambda: schedules.PolynomialDecay(0.05, 15, power=2.0),
        ("PolynomialDecay", "cycle"): lambda: schedules.PolynomialDecay(0.05, 6, cycle=True),
    }  # fmt: skip
    return [
        optimizer_case(subject, option, lambda make=make: optimizers.SGD(make(), momentum=0.5))
        for (subject, option), make in kinds.items()
    ]


def all_cases() -> list[Case]:
    return [*option_cases(), *special_cases(), *schedule_cases()]
