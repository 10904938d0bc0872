"""Cases of layers that prepare data inside a model: images, sounds, numbers, text."""

from __future__ import annotations

from tempfile import mkdtemp
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.conformance.cases import Case
from tests.conformance.models import (
    IMAGE,
    VECTOR,
    data_for,
    finished,
    image_case,
    images,
    integers,
    numbers,
    token_case,
)

LARGE = (12, 12, 3)


def augmentation_cases() -> list[Case]:
    """List cases of layers that change images at random."""
    plain: dict[str, dict[str, Any]] = {
        "AugMix": {}, "RandAugment": {}, "RandomErasing": {}, "RandomGrayscale": {},
        "RandomInvert": {"factor": 0.5}, "RandomGaussianBlur": {}, "RandomElasticTransform": {},
        "RandomPerspective": {}, "RandomFlip": {}, "RandomBrightness": {"factor": 0.3},
        "RandomColorDegeneration": {"factor": 0.5}, "RandomContrast": {"factor": 0.4},
        "RandomHue": {"factor": 0.3}, "RandomPosterization": {"factor": 4},
        "RandomRotation": {"factor": 0.2}, "RandomSaturation": {"factor": 0.4},
        "RandomSharpness": {"factor": 0.4}, "RandomShear": {"x_factor": 0.3, "y_factor": 0.2},
        "RandomTranslation": {"height_factor": 0.2, "width_factor": 0.2},
        "RandomZoom": {"height_factor": 0.3},
        "RandomColorJitter": {"brightness_factor": 0.2, "contrast_factor": 0.2,
                              "saturation_factor": 0.2, "hue_factor": 0.2},
        "CutMix": {}, "MixUp": {},
    }  # fmt: skip
    cases = [
        image_case(kind, "", lambda kind=kind, options=options: getattr(layers, kind)(**options))
        for kind, options in plain.items()
    ]
    return [
        *cases,
        image_case("RandomFlip", "horizontal, seeded",
                   lambda: layers.RandomFlip("horizontal", seed=3)),
        image_case("RandomTranslation", "constant, nearest",
                   lambda: layers.RandomTranslation(0.2, 0.2, fill_mode="constant",
                                                    interpolation="nearest")),
        image_case("RandomRotation", "wrapped",
                   lambda: layers.RandomRotation(0.2, fill_mode="wrap")),
        Case("RandomCrop", "", cropped, data_for(images(*IMAGE)),
             note="in inference Keras crops nothing, so what follows has to take any size"),
        image_case("Pipeline", "augmentation",
                   lambda: layers.Pipeline([layers.RandomFlip(), layers.RandomRotation(0.1)])),
    ]  # fmt: skip


def cropped() -> keras.Model:
    inputs = keras.Input(IMAGE)
    features = layers.Rescaling(1 / 255)(layers.RandomCrop(6, 5)(inputs))
    features = layers.Conv2D(4, 3, activation="relu")(features)
    return finished(inputs, layers.GlobalAveragePooling2D()(features))


def fixed_cases() -> list[Case]:
    """List cases of layers that change images and sounds in one way."""
    plain: dict[str, dict[str, Any]] = {
        "AutoContrast": {}, "Equalization": {}, "Solarization": {"threshold_factor": 0.5},
        "CenterCrop": {"height": 6, "width": 5}, "Resizing": {"height": 5, "width": 6},
        "ContrastLimitedAdaptiveHistogramEqualization": {"tile_grid_size": (2, 2)},
    }  # fmt: skip
    cases = [
        image_case(kind, "", lambda kind=kind, options=options: getattr(layers, kind)(**options))
        for kind, options in plain.items()
    ]
    return [
        *cases,
        image_case("Resizing", "larger, padded",
                   lambda: layers.Resizing(10, 9, "nearest", pad_to_aspect_ratio=True), LARGE),
        sound_case("MelSpectrogram",
                   lambda: layers.MelSpectrogram(fft_length=16, sequence_stride=8,
                                                 num_mel_bins=4, sampling_rate=100, max_freq=50)),
        sound_case("STFTSpectrogram",
                   lambda: layers.STFTSpectrogram("psd", frame_length=16, frame_step=8)),
        Case("MaxNumBoundingBoxes", "", boxes_model, boxes_data()),
    ]  # fmt: skip


def sound_case(subject: str, make: Any) -> Case:
    shape = (64, 1) if subject == "STFTSpectrogram" else (64,)

    def build() -> keras.Model:
        inputs = keras.Input(shape)
        features = layers.Rescaling(0.01)(layers.Flatten()(make()(inputs)))
        return finished(inputs, layers.Dense(3)(features))

    return Case(subject, "", build, data_for(numbers(*shape)))


def boxes_model() -> keras.Model:
    given = {
        "images": keras.Input(IMAGE, name="images"),
        "bounding_boxes": {
            "boxes": keras.Input((4, 4), name="boxes"),
            "labels": keras.Input((4,), name="labels"),
        },
    }
    cut = layers.MaxNumBoundingBoxes(3, bounding_box_format="xyxy")(given)
    boxes, labels = cut["bounding_boxes"]["boxes"], cut["bounding_boxes"]["labels"]
    features = [layers.Flatten()(boxes), labels]
    return finished(given, layers.Dense(3)(layers.Concatenate()(features)))


def boxes_data() -> Any:
    boxes = {"boxes": numbers(4, 4), "labels": numbers(4)}
    return {"images": images(*IMAGE), "bounding_boxes": boxes}, numbers(2, seed=1)


def adapted(layer: Any, data: np.ndarray) -> Any:
    layer.adapt(data)
    return layer


def feature_cases() -> list[Case]:
    """List cases of layers that turn numbers and text into features."""
    below = 9
    return [
        token_case("CategoryEncoding", "", lambda: layers.CategoryEncoding(below)),
        token_case("CategoryEncoding", "one hot",
                   lambda: layers.CategoryEncoding(below, output_mode="one_hot"), length=1),
        token_case("Hashing", "", lambda: layers.Hashing(5)),
        token_case("IntegerLookup", "", lambda: layers.IntegerLookup(vocabulary=[1, 3, 5, 7])),
        token_case("IntegerLookup", "adapted, counts",
                   lambda: adapted(layers.IntegerLookup(output_mode="count"),
                                   integers(below, 5))),
        Case("Discretization", "", lambda: features_model(layers.Discretization([-1.0, 0.0, 1.0])),
             data_for(numbers(*VECTOR))),
        Case("Discretization", "adapted",
             lambda: features_model(adapted(layers.Discretization(num_bins=4), numbers(*VECTOR))),
             data_for(numbers(*VECTOR))),
        Case("HashedCrossing", "", crossing_model,
             ((integers(4).astype("int32")[:, None], integers(3).astype("int32")[:, None]),
              numbers(2, seed=1))),
        Case("StringLookup", "", lambda: text_model(layers.StringLookup(vocabulary=["a", "b"])),
             text_data(5)),
        Case("StringLookup", "adapted, counts",
             lambda: text_model(adapted(layers.StringLookup(output_mode="count"),
                                        text_data(5)[0])), text_data(5)),
        Case("Hashing", "text", lambda: text_model(layers.Hashing(5)), text_data(5)),
        Case("TextVectorization", "",
             lambda: text_model(layers.TextVectorization(vocabulary=["a", "b"],
                                                         output_sequence_length=4), 1),
             text_data(1)),
    ]  # fmt: skip


def features_model(layer: Any) -> keras.Model:
    inputs = keras.Input(VECTOR)
    return finished(inputs, layers.Embedding(6, 2)(layer(inputs)))


def crossing_model() -> keras.Model:
    pair = (keras.Input((1,), dtype="int32"), keras.Input((1,), dtype="int32"))
    return finished(pair, layers.Embedding(7, 2)(layers.HashedCrossing(7)(pair)))


def text_model(layer: Any, length: int = 5) -> keras.Model:
    inputs = keras.Input((length,), dtype="string")
    return finished(inputs, layers.Embedding(6, 2)(layer(inputs)))


def text_data(length: int) -> Any:
    words = np.array(["a", "b", "c"])[integers(3, length)]
    return words.astype("object"), numbers(2, seed=1)


def foreign_cases() -> list[Case]:
    """List cases of layers that run other libraries' models."""
    arrays = data_for(numbers(*VECTOR))
    return [
        Case("TFSMLayer", "", saved_model, arrays),
        Case("JaxLayer", "", lambda: foreign(layers.JaxLayer(lambda params, x: x)), arrays,
             refused="user_code"),
        Case("FlaxLayer", "", lambda: foreign(layers.FlaxLayer(None)), arrays,
             refused="user_code"),
        Case("TorchModuleWrapper", "", lambda: foreign(layers.TorchModuleWrapper(None)), arrays,
             refused="user_code"),
    ]  # fmt: skip


def foreign(layer: Any) -> keras.Model:
    inputs = keras.Input(VECTOR)
    return finished(inputs, layer(inputs))


def saved_model() -> keras.Model:
    """Use a function that was saved, after a dense layer."""
    module = tf.Module()
    module.serve = tf.function(
        lambda x: ops.tanh(x), input_signature=[tf.TensorSpec([None, *VECTOR], tf.float32)]
    )
    folder = mkdtemp(prefix="saved-model-")
    tf.saved_model.save(module, folder, signatures={"serve": module.serve})
    inputs = keras.Input(VECTOR)
    features = layers.TFSMLayer(folder, call_endpoint="serve")(layers.Dense(6)(inputs))
    return finished(inputs, features["output_0"] if isinstance(features, dict) else features)


def all_cases() -> list[Case]:
    return [*augmentation_cases(), *fixed_cases(), *feature_cases(), *foreign_cases()]
