"""State that a step changes is either part of the job's state or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import model_build
from agents.trainer.model.state import ModelState
from agents.trainer.step.functions import StepFunctions
from agents.trainer.validate.split_checks import splitting_check
from tests.agents.trainer.trial_jobs import returning, validated
from tests.support.cases import pairs

X = np.random.default_rng(3).normal(size=(24, 4)).astype("float32")


class Holder:
    """An object of the job's own, into which Keras does not look."""

    def __init__(self, held: Any) -> None:
        self.held = held


class Counting(keras.layers.Layer):
    """Counts steps in a variable of TensorFlow."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = tf.Variable(0.0, trainable=False)

    def call(self, inputs: Any) -> Any:
        self.steps.assign_add(1.0)
        return inputs / self.steps


class InATable(keras.layers.Layer):
    """Counts steps in a table of TensorFlow."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Holder(tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0))

    def call(self, inputs: Any) -> Any:
        key = tf.constant([0], tf.int64)
        self.table.held.insert(key, self.table.held.lookup(key) + 1.0)
        return inputs


class HeldElsewhere(keras.layers.Layer):
    """Has a running mean that Keras does not find."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = Holder(keras.Variable(np.zeros(4, "float32"), trainable=False, name="mean"))

    def call(self, inputs: Any) -> Any:
        mean = self.mean.held
        mean.assign(0.9 * mean + 0.1 * ops.mean(inputs, 0))
        return inputs - mean


class NextItem(keras.losses.Loss):
    """Weighs each batch by the next item of a data set."""

    def __init__(self) -> None:
        super().__init__()
        self.items = iter(tf.data.Dataset.range(1, 1000))

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.cast(next(self.items), "float32") * ops.mean(ops.square(y_true - y_pred), axis=-1)


class ShareInTensorFlow(keras.metrics.Metric):
    """Keeps its sums in a variable of TensorFlow."""

    def __init__(self) -> None:
        super().__init__(name="share")
        self.hits = tf.Variable(0.0)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.hits.assign_add(tf.reduce_sum(tf.cast(y_pred > y_true, tf.float32)))

    def result(self) -> Any:
        return self.hits.read_value()


class NoisyLoss(keras.losses.Loss):
    """Adds noise to the targets."""

    def __init__(self, noise: keras.random.SeedGenerator) -> None:
        super().__init__()
        self.noise = noise

    def call(self, y_true: Any, y_pred: Any) -> Any:
        noisy = y_true + keras.random.normal(ops.shape(y_true), seed=self.noise)
        return ops.mean(ops.square(noisy - y_pred), axis=-1)


class Looping(keras.layers.Layer):
    """Calls a layer in a loop, as a cell of a recurrent layer."""

    def __init__(self, looped: keras.layers.Layer) -> None:
        super().__init__()
        self.looped = looped

    def call(self, inputs: Any, training: bool = False) -> Any:
        def step(hidden: Any, _: Any) -> Any:
            hidden = self.looped(hidden, training=training)
            return hidden, hidden

        return ops.scan(step, inputs, length=3)[0]


class Branching(Looping):
    """Calls a layer in a branch."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return ops.cond(
            ops.sum(inputs) > 0, lambda: self.looped(inputs, training=training), lambda: inputs
        )


def model_with(*layers: keras.layers.Layer, loss: Any = "mse", metrics: Any = ()) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(4)])
    model.compile("sgd", loss, metrics=list(metrics))
    return model


#: Holder of untracked state -> function that makes a model with it, pattern of the refusal.
UNTRACKED = {
    "variable of a layer": (lambda: model_with(Counting()), "counting.*AssignAddVariableOp"),
    "table": (lambda: model_with(InATable()), "LookupTableInsert"),
    "variable of a metric": (
        lambda: model_with(metrics=[ShareInTensorFlow()]),
        "AssignAddVariableOp",
    ),
    "iterator": (lambda: model_with(loss=NextItem()), "tf.data iterator.*as a part of x"),
    "hidden variable of Keras": (lambda: model_with(HeldElsewhere()), "mean"),
    "random generator of a loss": (
        lambda: model_with(loss=NoisyLoss(keras.random.SeedGenerator(3))),
        "seed_generator_state",
    ),
}


def traced(model: keras.Model) -> StepFunctions:
    model_build(model, (X, X))
    return StepFunctions(model, ModelState(model), (X[:2], X[:2]))


@pytest.mark.parametrize("holder", UNTRACKED)
def test_untracked_state_is_refused_by_steps_and_by_the_splitting_check(holder: str) -> None:
    build, named = UNTRACKED[holder]
    with pytest.raises(JobCodeError, match=named) as by_steps:
        traced(build())
    model = build()
    model_build(model, (X, X))
    with pytest.raises(JobCodeError, match=named) as by_check:
        splitting_check(model, (X, X))
    assert (by_steps.value.code, by_check.value.code) == ("untracked_state", "untracked_state")


def dropout() -> keras.layers.Layer:
    return keras.layers.Dropout(0.5, seed=1)


@pytest.mark.parametrize(
    ("kind", "looped"),
    [
        (Looping, dropout),
        (Looping, keras.layers.BatchNormalization),
        (Branching, keras.layers.BatchNormalization),
    ],
)
def test_state_that_a_loop_or_branch_would_lose_is_refused(kind: Any, looped: Any) -> None:
    with pytest.raises(JobCodeError, match=r"ops\.scan") as caught:
        traced(model_with(kind(looped())))
    assert caught.value.code == "enclosed_state"


@pytest.mark.parametrize(
    ("kind", "looped"),
    [
        (Looping, keras.layers.LayerNormalization),
        (Branching, keras.layers.LayerNormalization),
        (Branching, dropout),  # drawn at most once, from the step's own seed
    ],
)
def test_a_loop_or_branch_that_loses_nothing_is_accepted(kind: Any, looped: Any) -> None:
    traced(model_with(kind(looped())))


class Recomputed(keras.layers.Wrapper):
    """Runs a layer again for the gradient."""

    def __init__(self, layer: keras.layers.Layer, is_remat: bool = False) -> None:
        super().__init__(layer)
        self.is_remat = is_remat

    def call(self, inputs: Any, training: bool = False) -> Any:
        recompute = keras.remat if self.is_remat else tf.recompute_grad
        return recompute(lambda x: self.layer(x, training=training))(inputs)


@pytest.mark.parametrize(
    ("layer", "is_remat"), pairs([dropout, keras.layers.BatchNormalization], [False, True])
)
def test_state_that_is_changed_again_for_the_gradient_is_refused(
    layer: Any, is_remat: bool
) -> None:
    with pytest.raises(JobCodeError, match=r"outside of what is recomputed") as caught:
        traced(model_with(keras.layers.Dense(4), Recomputed(layer(), is_remat)))
    assert caught.value.code == "enclosed_state"
    normalised = Recomputed(keras.layers.LayerNormalization(), is_remat)
    traced(model_with(keras.layers.Dense(4), normalised))


def test_a_generator_of_a_loss_that_the_model_holds_is_state() -> None:
    noise = keras.random.SeedGenerator(3)
    model = model_with(loss=NoisyLoss(noise))
    model.noise = noise
    assert any(seed is noise.state for seed in traced(model).seeds)


UPDATES = {
    "schedule": """
        class Falling(keras.optimizers.schedules.LearningRateSchedule):
            def __init__(self):
                self.rate = keras.Variable(0.1, trainable=False)

            def __call__(self, step):
                self.rate.assign(self.rate * 0.9)
                return self.rate.value

            def get_config(self):
                return {}

        OPTIMIZER = lambda: keras.optimizers.SGD(Falling())
    """,
    "optimizer": """
        import tensorflow as tf

        class Slowing(keras.optimizers.SGD):
            def build(self, variables):
                super().build(variables)
                self.updates = tf.Variable(0.0)

            def update_step(self, gradient, variable, learning_rate):
                self.updates.assign_add(1.0)
                super().update_step(gradient / self.updates, variable, learning_rate)

        OPTIMIZER = lambda: Slowing(gradient_accumulation_steps=2)
    """,
}


@pytest.mark.parametrize("holder", UPDATES)
def test_untracked_state_of_the_update_is_refused(holder: str, tmp_path: Path) -> None:
    report = validated(tmp_path, returning("compiled(net(), OPTIMIZER())", before=UPDATES[holder]))
    assert report.code == "untracked_state", report.message
    assert "learning rate schedule" in report.message


def test_variables_and_generators_that_an_optimizer_holds_are_state(tmp_path: Path) -> None:
    before = """
        class Own(keras.optimizers.SGD):
            def build(self, variables):
                super().build(variables)
                self.noise = keras.random.SeedGenerator(4)
                self.slow = [keras.Variable(each, trainable=False) for each in variables]

            def update_step(self, gradient, variable, learning_rate):
                noise = keras.random.normal(variable.shape, seed=self.noise)
                super().update_step(gradient + 0.1 * noise, variable, learning_rate)
                slow = self.slow[self._get_variable_index(variable)]
                slow.assign(0.9 * slow + 0.1 * variable)
    """
    report = validated(tmp_path, returning("compiled(net(), Own(0.1))", before=before))
    assert report.ok, report.message
