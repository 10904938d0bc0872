"""Tunables change an update without tracing it again; refusals name the tunable and the fix."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.data.arrays import ArraySource
from agents.trainer.model.keras_private import model_build
from agents.trainer.model.state import ModelState
from agents.trainer.model.tunables import Tunables
from agents.trainer.step.functions import StepFunctions
from agents.trainer.validate.job_file import LoadedJob
from agents.trainer.validate.trial_steps import steps_try
from tests.agents.trainer.local_jobs import training_spec

X = np.random.default_rng(3).normal(size=(8, 4)).astype("float32")
SAMPLE = (X[:2], X[:2, :1])
Make = Callable[..., keras.optimizers.Optimizer]
optimizers = keras.optimizers


def built(optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model_build(model, SAMPLE)
    return model


class Updates:
    """A model and its traced update, fed with made-up sums."""

    def __init__(self, optimizer: Any, names: tuple[str, ...] = ()) -> None:
        model = built(optimizer)
        self.tunables = Tunables(model.optimizer, names, 4) if names else None
        self.state = ModelState(model, tunables=self.tunables)
        self.functions = StepFunctions(model, self.state, SAMPLE, has_validation=False)

    def run(self, num_steps: int, first: int = 0) -> list[np.ndarray]:
        for step in range(first, first + num_steps):
            draws = np.random.default_rng(step).normal(size=self.functions.train_width)
            self.functions.turns[0].apply(tf.constant(draws, self.functions.dtype))
        return [np.asarray(variable) for variable in self.state.trainable]


def momentum(**given: Any) -> keras.optimizers.Optimizer:
    return optimizers.SGD(**{"momentum": 0.5} | given)


#: One of each kind; the other optimizers in `make nightly`.
CASES: list[tuple[Make, str, float]] = [
    (lambda **given: momentum(nesterov=True, **given), "momentum", 0.9),
    (optimizers.AdamW, "weight_decay", 0.2),
    # Its dense layers are matrices and biases, each with a decay of its own.
    (
        lambda weight_decay=0.004: optimizers.Muon(
            1.0, adam_weight_decay=weight_decay, weight_decay=weight_decay
        ),
        "weight_decay",
        0.02,
    ),
]
DEEP: list[tuple[Make, str, float]] = [
    (optimizers.SGD, "learning_rate", 0.3),
    (momentum, "learning_rate", 0.3),
    (momentum, "momentum", 0.9),
    (optimizers.SGD, "weight_decay", 0.2),
    (optimizers.Adam, "learning_rate", 0.3),
    (optimizers.Adam, "beta_1", 0.5),
    (optimizers.Adamax, "beta_1", 0.5),
    (optimizers.Nadam, "beta_1", 0.5),
    (optimizers.Lamb, "beta_1", 0.5),
    (optimizers.Lion, "beta_1", 0.5),
]


@pytest.mark.parametrize(
    ("make", "name", "value"),
    CASES + [pytest.param(*case, marks=pytest.mark.nightly) for case in DEEP],
)
def test_a_tuned_value_acts_like_a_compiled_one(make: Make, name: str, value: float) -> None:
    expected = Updates(make(**{name: value})).run(6)
    tunable = "momentum" if name == "beta_1" else name
    tuned = Updates(make(), (tunable,))
    assert tuned.tunables is not None
    untouched = tuned.state.capture()
    before = tuned.run(2)
    tuned.tunables.assign({tunable: value})
    tuned.run(2)
    assert tuned.functions.turns[0].apply.experimental_get_tracing_count() == 1
    tuned.state.put(untouched)
    assert tuned.tunables.values != {tunable: value}, "a state has its own values"
    np.testing.assert_array_equal(tuned.run(2)[0], before[0])
    tuned.state.put(untouched)
    tuned.tunables.assign({tunable: value})
    for mine, theirs in zip(tuned.run(6), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.nightly
def test_a_scale_multiplies_the_rates_of_a_schedule() -> None:
    def schedule(factor: float) -> Any:
        return optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1 * factor, 2, 0.5))

    tuned = Updates(schedule(1.0), ("learning_rate_scale",))
    assert tuned.tunables is not None
    assert tuned.tunables.values == {"learning_rate_scale": 1.0}
    tuned.tunables.assign({"learning_rate_scale": 4.0})
    np.testing.assert_allclose(tuned.run(5)[0], Updates(schedule(4.0)).run(5)[0], rtol=1e-5)


def updated(optimizer: Any, **values: float | None) -> float:
    """Update a number of 1 by gradients of 1, four times; a tunable of None keeps its value."""
    number = keras.Variable(1.0)
    optimizer.build([number])
    tunables = Tunables(optimizer, tuple(values), 4)
    tunables.assign(tunables.values | {k: v for k, v in values.items() if v is not None})

    def update() -> None:
        with tunables.traced() if values else nullcontext():
            optimizer.apply([tf.constant(1.0)], [number])

    traced = tf.function(update, autograph=False)
    for _ in range(4):
        traced()
    assert traced.experimental_get_tracing_count() == 1
    return float(number)


def test_untuned_values_have_the_bits_of_a_job_without_tuning() -> None:
    tuned = updated(momentum(), learning_rate=None, momentum=None)
    assert tuned == updated(momentum())


def test_another_batch_size_is_no_other_function() -> None:
    tunables = Tunables(optimizers.SGD(0.1), ("batch_size",), 4)
    assert (tunables.values, tunables.batch_size) == ({"batch_size": 4.0}, None)
    tunables.assign({"batch_size": 12.0})
    assert tunables.batch_size == 12
    assert updated(optimizers.SGD(0.1), batch_size=12.0) == updated(optimizers.SGD(0.1))


@pytest.mark.nightly
def test_a_loss_scale_optimizer_passes_values_on() -> None:
    tuned = Updates(optimizers.LossScaleOptimizer(optimizers.Adam(0.1)), ("learning_rate",))
    assert tuned.tunables is not None
    assert tuned.tunables.values["learning_rate"] == pytest.approx(0.1)
    tuned.tunables.assign({"learning_rate": 0.0})
    before = tuned.run(0)
    np.testing.assert_array_equal(tuned.run(2)[0], before[0])


@pytest.mark.parametrize(
    ("optimizer", "name", "message"),
    [
        (optimizers.SGD(), "momentum", "needs an SGD that was compiled with a momentum"),
        (optimizers.RMSprop(), "momentum", "not known for RMSprop; leave it out, or use SGD, Adam"),
        (
            optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
            "learning_rate",
            "follows a schedule; use learning_rate_scale instead",
        ),
        (
            optimizers.Muon(adam_weight_decay=0.5, weight_decay=None),
            "weight_decay",
            "optimizers have 0, 0.5; leave it out",
        ),
        (
            optimizers.Adam(beta_1=lambda: 0.9),
            "momentum",
            "beta_1 of Adam, which is a function; compile with a number, or leave momentum out",
        ),
    ],
)
def test_refusals(optimizer: Any, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^tuning.space.{name} .*{message}"):
        Tunables(built(optimizer).optimizer, (name,), 4)


class Lookahead(optimizers.Optimizer):  # type: ignore[misc]  # no types in Keras
    """A wrapper as people write them: another optimizer updates the weights."""

    def __init__(self, inner: keras.optimizers.Optimizer, **given: Any) -> None:
        super().__init__(**{"learning_rate": 0.001} | given)
        self.inner = inner
        self.inners = [inner]

    @property
    def variables(self) -> list[Any]:
        return [*super().variables, *self.inners[0].variables]

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.inners[0].build(variables)

    def apply(self, grads: list[Any], trainable_variables: Any = None) -> None:
        self.iterations.assign_add(1)
        self.inners[0].apply(grads, trainable_variables)


class Hidden(Lookahead):
    """One whose other optimizer stands in a list."""

    def __init__(self, inner: keras.optimizers.Optimizer) -> None:
        super().__init__(inner)
        del self.inner


def test_the_rate_of_an_optimizer_that_holds_another_is_tuned_in_both() -> None:
    scaled = updated(Lookahead(optimizers.SGD(0.1)), learning_rate_scale=3.0)
    assert scaled == pytest.approx(updated(optimizers.SGD(0.3)))
    with pytest.raises(ValueError, match=r"have 0\.001, 0\.1; use learning_rate_scale instead"):
        updated(Lookahead(optimizers.SGD(0.1)), learning_rate=None)


class Decaying(optimizers.SGD):  # type: ignore[misc]
    """Halves its rate itself."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply(grads, trainable_variables)
        self.learning_rate.assign(self.learning_rate / 2)


def test_an_optimizer_that_assigns_the_rate_that_is_scaled_is_refused() -> None:
    assert updated(Decaying(0.1)) == pytest.approx(1.0 - 0.1 - 0.05 - 0.025 - 0.0125)
    with pytest.raises(JobCodeError, match="of Decaying assigns its learning rate") as refusal:
        updated(Decaying(0.1), learning_rate_scale=None)
    assert refusal.value.code == "not_tunable"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(Decaying(0.1), "mse")
    arrays = (np.ones((4, 2), "float32"), np.ones((4, 1), "float32"))
    model_build(model, arrays)
    job = LoadedJob(model, ArraySource(arrays, "data.train"), None)
    spec = training_spec(global_batch_size=4, batch_size_min=2, batch_size_max=8)
    with pytest.raises(JobCodeError, match="leave learning_rate_scale and batch_size_min out"):
        steps_try(spec, job, [2, 2])


class Asking(optimizers.AdamW):  # type: ignore[misc]
    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if self.beta_1:
            super().update_step(gradient, variable, learning_rate)


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (lambda: Hidden(optimizers.SGD()), "learning_rate", "of Hidden does not depend on it"),
        (lambda: Hidden(optimizers.SGD()), "learning_rate_scale", "would have no effect"),
        (lambda: Hidden(optimizers.SGD()), "weight_decay", "would have no effect"),
        (Asking, "momentum", "code of Asking needs a Python number there .*without if"),
    ],
)
def test_a_tunable_that_an_update_cannot_take_is_refused(
    make: Make, name: str, message: str
) -> None:
    with pytest.raises(JobCodeError, match=f"tuning.space.*{name}.*{message}") as refusal:
        updated(make(), **{name: None})
    assert refusal.value.code == "not_tunable"
