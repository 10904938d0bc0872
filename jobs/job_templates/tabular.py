"""A dense network on a table of measurements that tells benign from malignant tumours.

Data: scikit-learn's bundled breast cancer table, 569 patients with 30 measurements each.

Settings:
    hidden_units: width of each hidden layer, one number per layer.
    dropout: share of hidden units that is dropped in training.
    learning_rate: AdamW's step size.
    weight_decay: AdamW's pull of the weights towards zero.
    validation_share: share of the patients that is held back for validation.
"""

import keras
import numpy as np
from sklearn.datasets import load_breast_cancer

DEFAULTS = {
    "hidden_units": [32, 16],
    "dropout": 0.3,
    "learning_rate": 0.0001,
    "weight_decay": 0.1,
    "validation_share": 0.2,
}


def build(settings):
    """Return (compiled model, training data, validation data)."""
    settings = {**DEFAULTS, **settings}
    train, validation = patients(settings["validation_share"])

    # The layer keeps mean and variance of the training rows as part of the model, so that the saved
    # model takes raw measurements.
    normalise = keras.layers.Normalization()
    normalise.adapt(train[0])

    layers = [keras.Input(shape=(30,)), normalise]
    for units in settings["hidden_units"]:
        layers.append(keras.layers.Dense(units, activation="relu"))
        layers.append(keras.layers.Dropout(settings["dropout"]))
    layers.append(keras.layers.Dense(1, activation="sigmoid"))
    model = keras.Sequential(layers)
    model.compile(
        optimizer=keras.optimizers.AdamW(
            settings["learning_rate"], weight_decay=settings["weight_decay"]
        ),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return model, train, validation


def patients(validation_share):
    """Return ((rows, labels), (rows, labels)), label 1 for benign, split always the same."""
    rows, labels = load_breast_cancer(return_X_y=True)
    rows = rows.astype("float32")
    order = np.random.default_rng(0).permutation(len(labels))
    num_validation = int(len(labels) * validation_share)
    held_back, rest = order[:num_validation], order[num_validation:]
    return (rows[rest], labels[rest]), (rows[held_back], labels[held_back])
