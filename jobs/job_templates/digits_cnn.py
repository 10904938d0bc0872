"""A small convolutional network that reads handwritten digits.

Data: scikit-learn's bundled digits, 1,797 images of 8 x 8 grey pixels in ten classes.

Settings:
    filters: channels of the first convolution; the second has twice as many.
    hidden_units: width of the dense layer before the output.
    dropout: share of hidden units that is dropped in training.
    learning_rate: Adam's step size.
    validation_share: share of the images that is held back for validation.
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

DEFAULTS = {
    "filters": 32,
    "hidden_units": 128,
    "dropout": 0.4,
    "learning_rate": 0.001,
    "validation_share": 0.2,
}


def build(settings):
    """Return (compiled model, training data, validation data)."""
    settings = {**DEFAULTS, **settings}
    train, validation = digits(settings["validation_share"])
    model = keras.Sequential(
        [
            keras.Input(shape=(8, 8, 1)),
            keras.layers.Conv2D(settings["filters"], 3, padding="same", activation="relu"),
            keras.layers.Conv2D(2 * settings["filters"], 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(settings["hidden_units"], activation="relu"),
            keras.layers.Dropout(settings["dropout"]),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(settings["learning_rate"]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model, train, validation


def digits(validation_share):
    """Return ((images, labels), (images, labels)), images as (n, 8, 8, 1) in [0, 1].

    The split is drawn with a fixed seed: every trainer of the job has to see the same data.
    """
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    order = np.random.default_rng(0).permutation(len(labels))
    num_validation = int(len(labels) * validation_share)
    held_back, rest = order[:num_validation], order[num_validation:]
    return (images[rest], labels[rest]), (images[held_back], labels[held_back])
