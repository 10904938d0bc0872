"""A small residual network with batch normalisation and dropout, on handwritten digits.

Each block adds what two convolutions make of an image to the image itself, so that deep stacks
still learn. Batch normalisation keeps running statistics in the model; they are combined over the
whole global batch, however it is spread over accelerators.

Data: scikit-learn's bundled digits, 1,797 images of 8 x 8 grey pixels in ten classes.

Settings:
    filters: channels of the first stage; every further stage doubles them and halves the image.
    num_stages: stages of the network (at most 3: 8 x 8 pixels become 2 x 2).
    blocks_per_stage: residual blocks in each stage.
    dropout: share of features that is dropped before the output.
    learning_rate: SGD's first step size; a cosine brings it down to a hundredth.
    decay_steps: steps over which it comes down.
    momentum: SGD's memory of former steps.
    weight_penalty: weight of the squared convolution kernels in the loss.
    validation_share: share of the images that is held back for validation.
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

DEFAULTS = {
    "filters": 16,
    "num_stages": 2,
    "blocks_per_stage": 1,
    "dropout": 0.3,
    "learning_rate": 0.05,
    "decay_steps": 1800,
    "momentum": 0.9,
    "weight_penalty": 0.0001,
    "validation_share": 0.2,
}


def build(settings):
    """Return (compiled model, training data, validation data)."""
    settings = {**DEFAULTS, **settings}
    train, validation = digits(settings["validation_share"])

    images = keras.Input(shape=(8, 8, 1))
    features = convolution(images, settings["filters"], 1, settings)
    features = keras.layers.ReLU()(features)
    for stage in range(settings["num_stages"]):
        for block in range(settings["blocks_per_stage"]):
            strides = 2 if stage > 0 and block == 0 else 1
            features = residual_block(features, settings["filters"] * 2**stage, strides, settings)
    features = keras.layers.GlobalAveragePooling2D()(features)
    features = keras.layers.Dropout(settings["dropout"])(features)
    model = keras.Model(images, keras.layers.Dense(10)(features))

    learning_rate = keras.optimizers.schedules.CosineDecay(
        settings["learning_rate"], settings["decay_steps"], alpha=0.01
    )
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate, settings["momentum"], nesterov=True),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model, train, validation


def residual_block(features, filters, strides, settings):
    """Add what two convolutions make of the features to the features themselves."""
    shortcut = features
    if strides != 1 or features.shape[-1] != filters:
        shortcut = convolution(features, filters, strides, settings, kernel_size=1)
    features = convolution(features, filters, strides, settings)
    features = keras.layers.ReLU()(features)
    features = convolution(features, filters, 1, settings)
    return keras.layers.ReLU()(keras.layers.Add()([features, shortcut]))


def convolution(features, filters, strides, settings, kernel_size=3):
    """Convolve without bias (the normalisation after it has one)."""
    features = keras.layers.Conv2D(
        filters,
        kernel_size,
        strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(settings["weight_penalty"]),
    )(features)
    return keras.layers.BatchNormalization(momentum=0.9)(features)


def digits(validation_share):
    """Return ((images, labels), (images, labels)), images as (n, 8, 8, 1) around zero.

    The split is drawn with a fixed seed: every trainer of the job has to see the same data.
    """
    images, labels = load_digits(return_X_y=True)
    images = (images / 8.0 - 1.0).astype("float32").reshape(-1, 8, 8, 1)
    order = np.random.default_rng(0).permutation(len(labels))
    num_validation = int(len(labels) * validation_share)
    held_back, rest = order[:num_validation], order[num_validation:]
    return (images[rest], labels[rest]), (images[held_back], labels[held_back])
