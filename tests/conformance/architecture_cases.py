"""Cases of whole networks: the families of `keras.applications`, and others as jobs have them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import applications, layers, ops

from tests.conformance.cases import Case
from tests.conformance.harness import Schedule
from tests.conformance.models import (
    SEQUENCE,
    VECTOR,
    data_for,
    finished,
    images,
    integers,
    masked_sequences,
    numbers,
    optimizer_plain,
    positive,
)

#: The smallest network of each family of `keras.applications`, and the pixels it needs: so many
#: that no map of a network with batch normalisation has a single pixel. There batch statistics of
#: six images magnify rounding without limit, in double precision, too.
FAMILIES = {
    "DenseNet121": 96, "EfficientNetB0": 96, "MobileNet": 64, "MobileNetV2": 96,
    "MobileNetV3Small": 64, "ResNet50V2": 96, "VGG16": 32, "VGG19": 32,
    "InceptionResNetV2": 96, "NASNetMobile": 96, "Xception": 96,
}  # fmt: skip
#: 20 steps of 24 images, in slices of six.
DEEP = Schedule(batch_size=24, epochs=20)
DEEP_NOTE = "in double precision: in single precision a hundred batch normalisations magnify \
rounding to any size"
#: Families whose rounding grows without limit in 20 steps, at 96 pixels too: they are compared
#: after three, and the control shows that `fit` does not come nearer to itself.
UNSTABLE_FAMILIES = ("EfficientNetV2B0", "InceptionV3", "ResNet50")
THREE_STEPS = Schedule(batch_size=24, epochs=3)
UNSTABLE_NOTE = f"3 steps {DEEP_NOTE}"
#: A family without batch normalisation, with steps of a minute: 21 steps of eight images.
SMALL_BATCHES = Schedule(batch_size=8, epochs=7)
#: Batches of equal slices: Keras gives the losses of single outputs one vote per call.
EVEN = Schedule(batch_size=12, epochs=5)
#: Slices of six: batch statistics of two examples magnify rounding without limit.
WIDE = Schedule(batch_size=24, epochs=10)


def application(name: str, pixels: int, learning_rate: float) -> keras.Model:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    network = getattr(applications, name)(
        weights=None, input_shape=(pixels, pixels, 3), classes=5, classifier_activation=None
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9)
    network.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return network


def application_case(
    name: str,
    pixels: int,
    schedule: Schedule = DEEP,
    note: str = DEEP_NOTE,
    control: Schedule | None = None,
) -> Case:
    return Case(
        f"{name} at {pixels} pixels",
        "",
        lambda: application(name, pixels, 1e-4),
        (images(pixels, pixels, 3)[:24] / 255, integers(5)[:24]),
        schedule=schedule,
        note=note,
        control=control,
    )


def application_cases() -> list[Case]:
    """List one network of each family, without weights, on small images."""
    return [
        *(application_case(name, pixels) for name, pixels in FAMILIES.items()),
        application_case("ConvNeXtTiny", 32, SMALL_BATCHES),
        *(
            application_case(name, 96, THREE_STEPS, UNSTABLE_NOTE, DEEP)
            for name in UNSTABLE_FAMILIES
        ),
    ]


def residual_network() -> keras.Model:
    """Make a residual network with augmentation, a frozen stem, two normalisations and an average.

    A network of this kind gave nan while the engine replaced operations of Keras by its own.
    """
    inputs = keras.Input((12, 12, 3))
    features = layers.RandomTranslation(0.1, 0.1)(inputs)
    features = layers.Conv2D(6, 3, padding="same", trainable=False)(features)
    for width in (6, 8):
        kept = layers.Conv2D(width, 1, use_bias=False)(features)
        features = layers.Conv2D(width, 3, padding="same", use_bias=False)(features)
        features = layers.ReLU()(layers.BatchNormalization()(features))
        features = layers.Conv2D(width, 3, padding="same")(features)
        features = layers.GroupNormalization(2)(features)
        features = layers.ReLU()(layers.Add()([kept, features]))
    pooled = layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(features))
    model = keras.Model(inputs, layers.Dense(4)(pooled))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True, use_ema=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model


def unet() -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    wide = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    low = layers.Conv2D(6, 3, padding="same", activation="relu")(layers.MaxPooling2D()(wide))
    up = layers.Conv2DTranspose(4, 2, strides=2)(low)
    joined = layers.Concatenate()([wide, up])
    outputs = layers.Conv2D(1, 1)(layers.SpatialDropout2D(0.2)(joined))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
    return model


class TokensAndPositions(layers.Layer):
    """Sum of embeddings of tokens and of their places, with the mask of padding."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = layers.Embedding(vocabulary, width, mask_zero=True)
        self.places = layers.Embedding(length, width)
        self.length = length

    def call(self, inputs: Any) -> Any:
        return self.tokens(inputs) + self.places(ops.arange(self.length))

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return self.tokens.compute_mask(inputs)


class EncoderBlock(layers.Layer):
    """Block of a transformer that passes padding masks on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.supports_masking = True
        self.attention = layers.MultiHeadAttention(2, width // 2, dropout=0.1)
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.inner = layers.Dense(2 * width, activation="gelu")
        self.outer = layers.Dense(width)

    def call(self, inputs: Any, mask: Any = None, training: bool = False) -> Any:
        attention_mask = None if mask is None else mask[:, None, :]
        attended = self.attention(inputs, inputs, attention_mask=attention_mask, training=training)
        hidden = self.norms[0](inputs + attended)
        return self.norms[1](hidden + self.outer(self.inner(hidden)))


def transformer() -> keras.Model:
    inputs = keras.Input((7,), dtype="int32")
    features = EncoderBlock(8)(TokensAndPositions(9, 7, 8)(inputs))
    pooled = layers.Dropout(0.2)(layers.GlobalAveragePooling1D()(features))
    # The gradient of a key's bias is nothing but rounding; this epsilon does not magnify it.
    return finished(inputs, pooled, optimizer=keras.optimizers.Adam(0.01, epsilon=1e-3))


def lstm() -> keras.Model:
    inputs = keras.Input(SEQUENCE)
    features = layers.LSTM(4, return_sequences=True)(layers.Masking()(inputs))
    return finished(inputs, layers.LSTM(3)(features), optimizer=keras.optimizers.RMSprop(0.01))


def several_outputs() -> keras.Model:
    first, second = keras.Input(VECTOR, name="first"), keras.Input(VECTOR, name="second")
    joined = layers.Dense(6, activation="relu")(layers.Concatenate()([first, second]))
    low = layers.Dense(2, name="low")(joined)
    high = layers.Dense(1, activation="sigmoid", name="high")(joined)
    model = keras.Model({"first": first, "second": second}, {"low": low, "high": high})
    model.compile(
        optimizer=optimizer_plain(),
        loss={"low": "mse", "high": "binary_crossentropy"},
        loss_weights={"low": 0.3, "high": 2.0},
        metrics={"low": ["mae"]},
        weighted_metrics={"high": ["accuracy"]},
    )
    return model


def several_data() -> Any:
    inputs = {"first": numbers(*VECTOR), "second": numbers(*VECTOR, seed=3)}
    targets = {"low": numbers(2, seed=1), "high": integers(2, 1).astype("float32")}
    return inputs, targets, {"low": positive(), "high": positive()}


class Rivals(keras.Model):
    """Two networks that are updated in turns, each by an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.judge = layers.Dense(4), layers.Dense(1)
        self.second = keras.optimizers.Adam()

    def call(self, inputs: Any) -> Any:
        return self.judge(self.maker(inputs))

    def train_step(self, data: Any) -> Any:
        for network, optimizer in ((self.maker, self.optimizer), (self.judge, self.second)):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(data[0], data[1], self(data[0]))
            weights = network.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            self.metrics[0].update_state(loss, sample_weight=ops.shape(data[0])[0])
        return {"loss": self.metrics[0].result()}


class Stepping(keras.Model):
    """Network with a step of its own, which does what Keras's does."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = layers.Dense(5, activation="tanh"), layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self.head(self.hidden(inputs))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = self.compute_loss(x, y, predictions)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.metrics[0].update_state(loss, sample_weight=ops.shape(x)[0])
        return self.compute_metrics(x, y, predictions)


def own_step(kind: type[keras.Model]) -> keras.Model:
    model = kind()
    model.compile(optimizer="adam", loss="mse")
    return model


class OwnModel(keras.Model):
    """Model of a job: layers in attributes, a branch that only training takes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [layers.Dense(6, activation="tanh") for _ in range(2)]
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.2)
        self.head = layers.Dense(2)

    def call(self, inputs: Any, training: bool = False) -> Any:
        features = self.hidden[1](self.norm(self.hidden[0](inputs), training=training))
        return self.head(self.drop(features, training=training) if training else features)


def own_model() -> keras.Model:
    model = OwnModel()
    model.compile(optimizer=optimizer_plain(), loss="mse", metrics=["mae"])
    return model


def nested() -> keras.Model:
    inner_inputs = keras.Input(VECTOR)
    hidden = layers.BatchNormalization()(layers.Dense(6)(inner_inputs))
    inner = keras.Model(inner_inputs, [layers.ReLU()(hidden), layers.Dense(2)(hidden)])
    inputs = keras.Input(VECTOR)
    outputs = inner(layers.Dense(VECTOR[0])(inputs))
    return finished(inputs, layers.Concatenate()(outputs))


def shared() -> keras.Model:
    inputs = keras.Input(VECTOR)
    twice, norm = layers.Dense(VECTOR[0], activation="tanh"), layers.BatchNormalization()
    return finished(inputs, norm(twice(norm(twice(inputs)))))


def job_cases() -> list[Case]:
    """List networks as jobs have them."""
    vectors = data_for(numbers(*VECTOR))
    pictures = images(12, 12, 3) / 255
    tokens = integers(9, 7).astype("int32")
    tokens[np.arange(7)[None] >= integers(5)[:, None] + 3] = 0
    return [
        Case("Residual network", "augmented, partly frozen", residual_network,
             (pictures, integers(4)), schedule=WIDE),
        Case("U-Net", "", unet, (images(8, 8, 3) / 255, integers(2, 8, 8, 1).astype("float32"))),
        Case("Transformer", "padding masks", transformer, data_for(tokens), is_dense=True),
        Case("LSTM network", "masked", lstm, data_for(masked_sequences())),
        Case("Several inputs and outputs", "sample weights", several_outputs, several_data(),
             schedule=EVEN),
        Case("Stepping", "custom train_step", lambda: own_step(Stepping), vectors),
        Case("Rivals", "custom train_step", lambda: own_step(Rivals), vectors),
        Case("Subclassed model", "", own_model, vectors, schedule=WIDE),
        Case("Nested model", "", nested, vectors, schedule=WIDE),
        Case("Shared layers", "", shared, vectors, schedule=WIDE),
    ]  # fmt: skip


def all_cases() -> list[Case]:
    return [*job_cases(), *application_cases()]
