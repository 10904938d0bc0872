"""Cases of layers whose training differs from their inference: normalisation, dropout, noise."""

from __future__ import annotations

import keras
from keras import layers

from tests.conformance.cases import Case
from tests.conformance.models import (
    IMAGE,
    IMAGE_FIRST,
    SEQUENCE,
    VECTOR,
    VOLUME,
    data_for,
    finished,
    layer_case,
    masked_case,
    numbers,
)

DROPOUTS = {"SpatialDropout1D": SEQUENCE, "SpatialDropout2D": IMAGE, "SpatialDropout3D": VOLUME}


def normalization_cases() -> list[Case]:
    """List cases of normalisation, by batch, by example and of weights."""
    batch = layers.BatchNormalization
    group = layers.GroupNormalization
    norm = layers.LayerNormalization
    spectral = layers.SpectralNormalization
    return [
        layer_case("BatchNormalization", "", batch),
        layer_case("BatchNormalization", "images", batch, IMAGE),
        layer_case("BatchNormalization", "axis 1", lambda: batch(axis=1), IMAGE_FIRST),
        layer_case("BatchNormalization", "sequences, low momentum",
                   lambda: batch(momentum=0.5, epsilon=1e-2), SEQUENCE),
        layer_case("BatchNormalization", "no scale, no centre",
                   lambda: batch(scale=False, center=False), IMAGE, tolerance=5e-5,
                   note="the gradient of a bias before a normalisation is nothing but rounding"),
        layer_case("BatchNormalization", "frozen", lambda: batch(trainable=False), IMAGE),
        layer_case("BatchNormalization", "renorm", lambda: batch(renorm=True)),
        layer_case("BatchNormalization", "synchronized", lambda: batch(synchronized=True),
                   refused="synchronized_normalization"),
        layer_case("BatchNormalization", "regularised",
                   lambda: batch(gamma_regularizer="l2", beta_constraint="non_neg")),
        masked_case("BatchNormalization", "masked", batch),
        Case("BatchNormalization", "called for inference", inference_call,
             data_for(numbers(*VECTOR))),
        layer_case("LayerNormalization", "", norm),
        layer_case("LayerNormalization", "images, two axes", lambda: norm(axis=(1, 3)), IMAGE),
        layer_case("LayerNormalization", "no scale", lambda: norm(scale=False, center=False)),
        layer_case("RMSNormalization", "", layers.RMSNormalization),
        layer_case("RMSNormalization", "images", layers.RMSNormalization, IMAGE),
        layer_case("UnitNormalization", "", layers.UnitNormalization),
        layer_case("UnitNormalization", "axis 1", lambda: layers.UnitNormalization(axis=1),
                   SEQUENCE),
        # Groups of two features are ±1 but for epsilon, which a small one leaves to rounding.
        layer_case("GroupNormalization", "", lambda: group(3, epsilon=0.1)),
        layer_case("GroupNormalization", "images, instance", lambda: group(-1), IMAGE),
        layer_case("GroupNormalization", "axis 1", lambda: group(3, axis=1), IMAGE_FIRST),
        layer_case("SpectralNormalization", "dense", lambda: spectral(layers.Dense(4))),
        layer_case("SpectralNormalization", "convolution, 3 iterations",
                   lambda: spectral(layers.Conv2D(4, 3), power_iterations=3), IMAGE),
        layer_case("Normalization", "adapted", adapted_normalization, stem=False),
        layer_case("Normalization", "given, inverted",
                   lambda: layers.Normalization(mean=0.5, variance=2.0, invert=True), stem=False),
    ]  # fmt: skip


def inference_call() -> keras.Model:
    inputs = keras.Input(VECTOR)
    hidden = layers.Dense(6)(inputs)
    return finished(inputs, layers.BatchNormalization()(hidden, training=False))


def adapted_normalization() -> layers.Layer:
    layer = layers.Normalization()
    layer.adapt(numbers(*VECTOR, seed=2))
    return layer


def dropout_cases() -> list[Case]:
    """List cases of dropout and noise."""
    drop = layers.Dropout
    cases = [
        layer_case("Dropout", "", lambda: drop(0.4)),
        layer_case("Dropout", "images", lambda: drop(0.4), IMAGE),
        layer_case("Dropout", "noise shape", lambda: drop(0.4, noise_shape=(None, 1, 3)), SEQUENCE),
        layer_case("Dropout", "seeded", lambda: drop(0.4, seed=5)),
        layer_case("Dropout", "rate 0", lambda: drop(0.0)),
        layer_case("Dropout", "twice", lambda: keras.Sequential([drop(0.3), drop(0.3)])),
        layer_case("GaussianDropout", "", lambda: layers.GaussianDropout(0.3)),
        layer_case("GaussianNoise", "", lambda: layers.GaussianNoise(0.3)),
        layer_case("AlphaDropout", "", lambda: layers.AlphaDropout(0.3)),
        layer_case("AlphaDropout", "noise shape",
                   lambda: layers.AlphaDropout(0.3, noise_shape=(None, 1, 3)), SEQUENCE),
    ]  # fmt: skip
    for kind, shape in DROPOUTS.items():
        make = getattr(layers, kind)
        cases.append(layer_case(kind, "", lambda make=make: make(0.4), shape))
    cases.append(
        layer_case("SpatialDropout2D", "channels first",
                   lambda: layers.SpatialDropout2D(0.4, data_format="channels_first"), IMAGE_FIRST)
    )  # fmt: skip
    return cases


def all_cases() -> list[Case]:
    return [*normalization_cases(), *dropout_cases()]
