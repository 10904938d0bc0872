"""Losses in training alone: what mixes the examples of a batch is told from what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import ops

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import model_build, model_layers
from agents.trainer.validate.split_checks import splitting_check
from tests.agents.trainer.validate.split_models import VECTORS, Function, OwnState, model_of
from tests.support.cases import pairs


class InTraining(keras.Model):
    """Has a linear layer, and what `change` and `extra` make of its examples in training alone."""

    def __init__(self, change: Any = None, extra: Any = None, first: Any = None) -> None:
        super().__init__()
        self.first = first
        self.linear = keras.layers.Dense(4)
        self.change = change
        self.extra = extra

    def call(self, inputs: Any, training: bool = False) -> Any:
        if self.first is not None:
            inputs = self.first(inputs, training=training)
        outputs = self.linear(inputs)
        if isinstance(self.change, keras.layers.Layer):
            return self.change(outputs, training=training)
        return self.change(outputs) if training and self.change else outputs

    def compute_loss(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool = True
    ) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + self.extra(y_pred) if training and self.extra else loss


def contrast(outputs: Any) -> Any:
    """Tell every example from all others of the batch, as SimCLR does."""
    unit = ops.normalize(outputs)
    alike = ops.log_softmax(ops.matmul(unit, ops.transpose(unit)))
    return -ops.mean(ops.diagonal(alike))


class DrawnInTraining(keras.layers.Layer):
    """Changes examples [n, 4] by what `change` draws, in training alone."""

    def __init__(self, change: Function) -> None:
        super().__init__()
        self.change = change
        self.seed = keras.random.SeedGenerator(3)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.change(inputs, self.seed) if training else inputs


def mixed_at_random(inputs: Any, seed: Any) -> Any:
    share = keras.random.uniform((), seed=seed)
    order = ops.argsort(keras.random.uniform(ops.shape(inputs)[:1], seed=seed))
    return share * inputs + (1 - share) * ops.take(inputs, order, axis=0)


def drawn_by_columns(inputs: Any, seed: Any) -> Any:
    """Draw numbers of which those of the first examples depend on how many examples there are."""
    return inputs * ops.transpose(keras.random.uniform(ops.shape(inputs)[::-1], seed=seed))


def drawn_for_some(inputs: Any, seed: Any) -> Any:
    """Draw as many numbers as the values decide."""
    places = inputs > 0
    some_inputs = tf.boolean_mask(inputs, places)
    some_inputs *= keras.random.uniform(ops.shape(some_inputs), seed=seed)
    return tf.tensor_scatter_nd_update(inputs, tf.where(places), some_inputs)


MIXING: dict[str, Callable[[], dict[str, Any]]] = {
    "contrast": lambda: {"extra": contrast},
    "spread": lambda: {"extra": lambda outputs: ops.mean(ops.std(outputs, axis=0))},
    "neighbours": lambda: {"change": lambda outputs: outputs + ops.roll(outputs, 1, axis=0)},
    "centred": lambda: {"change": lambda outputs: outputs - ops.mean(outputs, axis=0)},
    "one seed": lambda: {
        "change": lambda outputs: outputs * keras.random.uniform(ops.shape(outputs), seed=3)
    },
    "mixed at random": lambda: {"change": DrawnInTraining(mixed_at_random)},
}
SEPARATE: dict[str, Callable[[], dict[str, Any]]] = {
    "mean": lambda: {"extra": lambda outputs: ops.mean(outputs**2)},
    "dropout": lambda: {"change": keras.layers.Dropout(0.5, seed=1)},
    "noise": lambda: {
        "change": keras.layers.GaussianNoise(1.0, seed=1),
        "extra": lambda y: ops.mean(y**2),
    },
    "batch normalisation": lambda: {"change": keras.layers.BatchNormalization()},
    "drawn by columns": lambda: {"change": DrawnInTraining(drawn_by_columns)},
    "drawn for some": lambda: {"change": DrawnInTraining(drawn_for_some)},
}
#: Layers with state, which leave what comes after them to be tried, and none.
WITH_STATE: dict[str, Callable[[], keras.layers.Layer | None]] = {
    "none": lambda: None,
    "batch normalisation": keras.layers.BatchNormalization,
    "spectral normalisation": lambda: keras.layers.SpectralNormalization(keras.layers.Dense(4)),
    "a step counter": lambda: OwnState(lambda old, _: old + 1.0),
    "both": lambda: keras.Sequential([OwnState(lambda old, _: old + 1.0), normalised()]),
}


def normalised() -> keras.Model:
    """Have a batch normalisation in a model of its own, as a backbone has."""
    return keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(4)])


def trained_only(name: str, cases: Any, first: Any = None) -> tuple[keras.Model, tuple[Any, ...]]:
    model = InTraining(**cases[name](), first=first)
    model.compile("sgd", "mse")
    model_build(model, (VECTORS, VECTORS))
    return model, (VECTORS, VECTORS)


@pytest.mark.parametrize(("name", "layer"), pairs(MIXING, WITH_STATE))
def test_what_mixes_examples_in_training_alone_is_refused(name: str, layer: str) -> None:
    model, examples = trained_only(name, MIXING, WITH_STATE[layer]())
    with pytest.raises(JobCodeError, match=r", in training.*\) is not the mean") as caught:
        splitting_check(model, examples)
    assert caught.value.code == "loss_not_additive"
    assert all(each.trainable for each in model_layers(model))


@pytest.mark.parametrize(("name", "layer"), pairs(SEPARATE, WITH_STATE))
def test_what_changes_each_example_in_training_alone_is_accepted(name: str, layer: str) -> None:
    assert splitting_check(*trained_only(name, SEPARATE, WITH_STATE[layer]())) == []


def test_layers_frozen_by_the_job_stay_frozen() -> None:
    model, examples = trained_only("mean", SEPARATE, normalised())
    frozen = model.first.layers[0]
    frozen.trainable = False
    model.compile("sgd", "mse")
    model_build(model, examples)
    assert splitting_check(model, examples) == []
    assert not frozen.trainable


def test_weights_frozen_by_the_job_stay_frozen() -> None:
    model, examples = trained_only("mean", SEPARATE, normalised())
    normalisation = model.first.layers[0]
    normalisation.gamma.trainable = False
    model.compile("sgd", "mse")
    assert splitting_check(model, examples) == []
    assert (normalisation.gamma.trainable, normalisation.beta.trainable) == (False, True)
    assert not normalisation.moving_mean.trainable


def test_layers_of_keras_that_mix_examples_are_accepted() -> None:
    model, examples = model_of("mse", last=(keras.layers.MixUp(seed=1),))
    assert splitting_check(model, examples) == []
