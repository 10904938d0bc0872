"""Beginnings of job files that several tests write: imports and a small network."""

from __future__ import annotations

SMALL_NETWORK = """
import keras
import numpy as np
from keras import layers, ops


def net(*middle, out=1, activation="sigmoid"):
    inputs = keras.Input((4,))
    features = inputs
    for layer in middle:
        features = layer(features)
    return keras.Model(inputs, layers.Dense(out, activation=activation)(features))


def compiled(model, optimizer="sgd", loss="binary_crossentropy", **more):
    model.compile(optimizer=optimizer, loss=loss, **more)
    return model
"""
