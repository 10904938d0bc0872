"""Small models around one layer, and the data that trains them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

from tests.conformance.cases import Case
from tests.conformance.harness import Arrays

Make = Callable[[], Any]
Shape = tuple[int, ...]
NUM_EXAMPLES = 48
VECTOR: Shape = (6,)
SEQUENCE: Shape = (8, 3)
IMAGE: Shape = (8, 8, 3)
VOLUME: Shape = (4, 4, 4, 2)
SEQUENCE_FIRST: Shape = (3, 8)
IMAGE_FIRST: Shape = (3, 8, 8)


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Draw normal numbers, the same for the same arguments."""
    drawn = np.random.default_rng([seed, *shape]).normal(size=(NUM_EXAMPLES, *shape))
    return (scale * drawn).astype("float32")


def integers(below: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Draw whole numbers from 0 on."""
    generator = np.random.default_rng([seed, below, *shape])
    return generator.integers(0, below, size=(NUM_EXAMPLES, *shape))


def images(*shape: int) -> np.ndarray:
    """Draw images with values of 0 to 255 that change slowly from place to place."""
    generator = np.random.default_rng([7, *shape])
    coarse = generator.uniform(0, 255, size=(NUM_EXAMPLES, *shape))
    for axis in (1, 2):
        coarse = (coarse + np.roll(coarse, 1, axis)) / 2
    return coarse.astype("float32")


def positive(*shape: int) -> np.ndarray:
    """Draw numbers above 0."""
    return np.abs(numbers(*shape, seed=4)) + np.float32(0.1)


def shares(*shape: int) -> np.ndarray:
    """Draw numbers above 0 whose sum over the last axis is 1."""
    drawn = positive(*shape)
    return drawn / drawn.sum(axis=-1, keepdims=True)


def flags(*shape: int) -> np.ndarray:
    """Draw zeros and ones."""
    return integers(2, *shape, seed=5).astype("float32")


def one_hot(classes: int, *shape: int) -> np.ndarray:
    """Draw one of several classes as a row of zeros with a single one."""
    return np.eye(classes, dtype="float32")[integers(classes, *shape, seed=6)]


def optimizer_plain() -> keras.optimizers.Optimizer:
    """Make the optimizer of cases that are not about one."""
    return keras.optimizers.SGD(0.02, momentum=0.9)


def finished(inputs: Any, features: Any, **options: Any) -> keras.Model:
    """Put a head for two numbers on some features and compile."""
    if len(features.shape) > 2:
        features = layers.Flatten()(features)
    if "float" not in str(features.dtype):
        features = layers.Lambda(lambda x: keras.ops.cast(x, "float32"))(features)
    outputs = layers.Dense(2, dtype="float32", name="head")(features)
    model = keras.Model(inputs, outputs)
    model.compile(**{"optimizer": optimizer_plain(), "loss": "mse", "metrics": ["mae"]} | options)
    return model


def data_for(array: np.ndarray) -> Arrays:
    return array, numbers(2, seed=1)


def layer_case(
    subject: str, option: str, make: Make, shape: Shape = VECTOR, stem: bool = True, **more: Any
) -> Case:
    """Make a case in which a layer stands between a dense one and the head."""

    def build() -> keras.Model:
        inputs = keras.Input(shape)
        features = layers.Dense(shape[-1], name="stem")(inputs) if stem else inputs
        return finished(inputs, make()(features))

    return Case(subject, option, build, data_for(numbers(*shape)), **more)


def image_case(subject: str, option: str, make: Make, shape: Shape = IMAGE, **more: Any) -> Case:
    """Make a case in which a layer comes first and is given images."""

    def build() -> keras.Model:
        inputs = keras.Input(shape)
        features = layers.Rescaling(1 / 255)(make()(inputs))
        return finished(inputs, features)

    return Case(subject, option, build, data_for(images(*shape)), **more)


def token_case(subject: str, option: str, make: Make, length: int = 5, **more: Any) -> Case:
    """Make a case in which a layer comes first and is given whole numbers."""

    def build() -> keras.Model:
        inputs = keras.Input((length,), dtype="int32")
        return finished(inputs, make()(inputs))

    arrays = data_for(integers(9, length).astype("int32"))
    return Case(subject, option, build, arrays, **more)


def merge_case(subject: str, option: str, make: Make, shape: Shape = VECTOR, **more: Any) -> Case:
    """Make a case in which a layer takes two tensors."""

    def build() -> keras.Model:
        inputs = keras.Input(shape)
        pair = [layers.Dense(shape[-1])(inputs), layers.Dense(shape[-1])(inputs)]
        return finished(inputs, make()(pair))

    return Case(subject, option, build, data_for(numbers(*shape)), **more)


def masked_sequences() -> np.ndarray:
    """Draw sequences of different lengths, padded with zeros."""
    drawn = numbers(*SEQUENCE)
    lengths = np.random.default_rng(8).integers(2, SEQUENCE[0] + 1, size=NUM_EXAMPLES)
    drawn[np.arange(SEQUENCE[0])[np.newaxis] >= lengths[:, np.newaxis]] = 0.0
    return drawn


def masked_case(subject: str, option: str, make: Make, **more: Any) -> Case:
    """Make a case in which a layer is given sequences with a mask."""

    def build() -> keras.Model:
        inputs = keras.Input(SEQUENCE)
        return finished(inputs, make()(layers.Masking()(inputs)))

    return Case(subject, option, build, data_for(masked_sequences()), **more)


def dense_model(make_optimizer: Callable[[], Any] = optimizer_plain, **options: Any) -> keras.Model:
    """Make two dense layers with the given options of `compile`."""
    inputs = keras.Input(VECTOR)
    hidden = layers.Dense(5, activation="tanh")(inputs)
    return finished(inputs, hidden, optimizer=make_optimizer(), **options)
