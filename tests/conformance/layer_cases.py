"""Cases of layers that compute one thing for each example: dense, convolutions, pooling, shapes."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tests.conformance.cases import Case
from tests.conformance.models import (
    IMAGE,
    IMAGE_FIRST,
    SEQUENCE,
    SEQUENCE_FIRST,
    VECTOR,
    VOLUME,
    data_for,
    finished,
    layer_case,
    merge_case,
    numbers,
    token_case,
)

SHAPES = {1: SEQUENCE, 2: IMAGE, 3: VOLUME}


class OwnLayer(layers.Layer):
    """Layer of a job: a weight, a loss of its own and a specification of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.input_spec = layers.InputSpec(ndim=2)

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, inputs: Any) -> Any:
        self.add_loss(0.1 * ops.mean(ops.square(inputs)))
        return inputs * self.scale


class OwnWrapper(layers.Wrapper):
    """Wrapper of a job: doubles what its layer gives."""

    def call(self, inputs: Any) -> Any:
        return 2.0 * self.layer(inputs)


class OwnGradient(layers.Layer):
    """Layer of a job: a product whose gradient is its own, half of the true one by the weight."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 4), initializer="glorot_uniform")

    def call(self, inputs: Any) -> Any:
        @tf.custom_gradient
        def product(x: Any) -> Any:
            kernel = tf.convert_to_tensor(self.kernel)

            def gradient(upstream: Any, variables: Any = ()) -> Any:
                by_kernel = [0.5 * tf.matmul(x, upstream, transpose_a=True) for _ in variables]
                return tf.matmul(upstream, kernel, transpose_b=True), by_kernel

            return tf.matmul(x, kernel), gradient

        return product(inputs)


class Recomputed(layers.Wrapper):
    """Wrapper of a job: computes what its layer gives again for the gradient, to save memory."""

    def call(self, inputs: Any) -> Any:
        return tf.recompute_grad(self.layer)(inputs)


class RunningMean(layers.Layer):
    """Layer of a job with a state without gradient: the mean of what has passed."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(
            shape=(shape[-1],), initializer="zeros", trainable=False, name="mean"
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(inputs, axis=0))
        return inputs - self.mean


class OwnNoise(layers.Layer):
    """Layer of a job with a random generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.random.SeedGenerator(3)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training:
            return inputs
        return inputs + 0.1 * keras.random.normal(ops.shape(inputs), seed=self.generator)


def core_cases() -> list[Case]:
    """List cases of dense layers, embeddings, activations and layers of a job."""
    l1 = keras.regularizers.L1(0.01)
    plain = [
        ("Layer", "own layer with add_loss", OwnLayer),
        ("Layer", "own state", RunningMean),
        ("Layer", "own random generator", OwnNoise),
        ("Layer", "own gradient of a weight", OwnGradient),
        ("Layer", "recomputed for the gradient", lambda: Recomputed(layers.Dense(4))),
        ("InputSpec", "of an own layer", OwnLayer),
        ("Wrapper", "own wrapper", lambda: OwnWrapper(layers.Dense(3))),
        ("Dense", "", lambda: layers.Dense(3)),
        ("Dense", "no bias, relu", lambda: layers.Dense(3, activation="relu", use_bias=False)),
        ("Dense", "frozen", lambda: layers.Dense(3, trainable=False)),
        ("Dense", "lora", lambda: layers.Dense(5, lora_rank=2)),
        ("Dense", "regularised", lambda: layers.Dense(3, kernel_regularizer="l2",
                                                      bias_regularizer=l1,
                                                      activity_regularizer=l1)),
        ("Dense", "constrained", lambda: layers.Dense(3, kernel_constraint="unit_norm")),
        ("EinsumDense", "", lambda: layers.EinsumDense("ab,bc->ac", (3,), bias_axes="c")),
        ("Activation", "", lambda: layers.Activation("gelu")),
        ("ActivityRegularization", "", lambda: layers.ActivityRegularization(l1=0.1, l2=0.1)),
        ("Identity", "", layers.Identity),
        ("Lambda", "", lambda: layers.Lambda(lambda x: x * 2.0)),
        ("ELU", "", layers.ELU), ("LeakyReLU", "", layers.LeakyReLU),
        ("PReLU", "", layers.PReLU), ("ReLU", "", layers.ReLU),
        ("ReLU", "limited", lambda: layers.ReLU(max_value=1.0, negative_slope=0.1, threshold=0.2)),
        ("Softmax", "", layers.Softmax),
        ("Rescaling", "", lambda: layers.Rescaling(0.5, offset=1.0)),
        ("RepeatVector", "", lambda: layers.RepeatVector(3)),
        ("Reshape", "", lambda: layers.Reshape((3, 2))),
        ("Reshape", "unknown size", lambda: layers.Reshape((-1, 3))),
        ("Pipeline", "", lambda: layers.Pipeline([layers.Rescaling(2.0), layers.Dense(4)])),
    ]  # fmt: skip
    cases = [layer_case(subject, option, make) for subject, option, make in plain]
    cases += [
        layer_case("PReLU", "shared axes", lambda: layers.PReLU(shared_axes=[1, 2]), IMAGE),
        layer_case("Softmax", "of two axes", lambda: layers.Softmax(axis=(1, 2)), SEQUENCE),
        layer_case("Flatten", "", layers.Flatten, IMAGE),
        layer_case("Permute", "", lambda: layers.Permute((2, 1)), SEQUENCE),
        layer_case("Dense", "of sequences", lambda: layers.Dense(2), SEQUENCE),
        layer_case(
            "EinsumDense", "of sequences", lambda: layers.EinsumDense("abc,cd->abd", (8, 4)),
            SEQUENCE,
        ),
        token_case("Embedding", "", lambda: layers.Embedding(9, 4)),
        token_case(
            "Embedding", "constrained",
            lambda: layers.Embedding(9, 4, embeddings_constraint="non_neg",
                                     embeddings_regularizer="l2"),
        ),
        token_case("Embedding", "lora", lambda: layers.Embedding(9, 4, lora_rank=2)),
        token_case("ReversibleEmbedding", "", lambda: layers.ReversibleEmbedding(9, 4)),
        Case("ReversibleEmbedding", "both ways", reversed_embedding,
             token_case("", "", layers.Identity).arrays),
        Case("InputLayer", "", input_layer, data_for(numbers(*VECTOR))),
    ]  # fmt: skip
    return cases


def reversed_embedding() -> keras.Model:
    inputs = keras.Input((5,), dtype="int32")
    shared = layers.ReversibleEmbedding(9, 4)
    return finished(inputs, shared(layers.Dense(4)(shared(inputs)), reverse=True))


def input_layer() -> keras.Model:
    start = layers.InputLayer(shape=VECTOR)
    return finished(start.output, layers.Dense(3)(start.output))


def merging_cases() -> list[Case]:
    """List cases of layers that take two tensors."""
    kinds = ("Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract", "Concatenate")
    cases = [merge_case(kind, "", getattr(layers, kind)) for kind in kinds]
    cases += [
        merge_case("Concatenate", "first axis", lambda: layers.Concatenate(axis=1), SEQUENCE),
        merge_case("Dot", "", lambda: layers.Dot(axes=1)),
        merge_case("Dot", "normalised", lambda: layers.Dot(axes=2, normalize=True), SEQUENCE),
    ]
    return cases


def convolution_cases() -> list[Case]:
    """List cases of convolutions in one to three dimensions."""
    cases = []
    for rank, shape in SHAPES.items():
        for kind in (f"Conv{rank}D", f"Conv{rank}DTranspose"):
            make = getattr(layers, kind)
            cases.append(layer_case(kind, "", lambda make=make: make(3, 3), shape))
            cases.append(
                layer_case(
                    kind, "same, strides",
                    lambda make=make: make(2, 3, strides=2, padding="same", activation="relu"),
                    shape,
                )
            )  # fmt: skip
        for kind in (f"DepthwiseConv{rank}D", f"SeparableConv{rank}D")[: 2 if rank < 3 else 0]:
            make = getattr(layers, kind)
            first = () if kind.startswith("Depth") else (3,)
            cases.append(
                layer_case(
                    kind, "",
                    lambda make=make, first=first: make(*first, 3, depth_multiplier=2), shape,
                )
            )  # fmt: skip
    cases += [
        layer_case("Conv1D", "causal, dilated",
                   lambda: layers.Conv1D(2, 3, padding="causal", dilation_rate=2), SEQUENCE),
        layer_case("Conv2D", "groups, no bias",
                   lambda: layers.Conv2D(6, 3, groups=3, use_bias=False), IMAGE),
        layer_case("Conv2D", "dilated, constrained, frozen",
                   lambda: layers.Conv2D(2, 3, dilation_rate=2, kernel_constraint="max_norm",
                                         trainable=False), IMAGE),
        layer_case("Conv2D", "lora", lambda: layers.Conv2D(4, 3, lora_rank=2), IMAGE),
    ]  # fmt: skip
    return cases


def pooling_cases() -> list[Case]:
    """List cases of pooling, local, adaptive and global."""
    cases = []
    for rank, shape in SHAPES.items():
        for kind in (f"MaxPooling{rank}D", f"AveragePooling{rank}D"):
            make = getattr(layers, kind)
            cases.append(layer_case(kind, "", lambda make=make: make(2), shape))
            cases.append(
                layer_case(
                    kind, "same, strides",
                    lambda make=make: make(3, strides=2, padding="same"), shape,
                )
            )  # fmt: skip
        kinds = (f"GlobalMaxPooling{rank}D", f"GlobalAveragePooling{rank}D")
        cases += [layer_case(kind, "", getattr(layers, kind), shape) for kind in kinds]
        for kind in (f"AdaptiveAveragePooling{rank}D", f"AdaptiveMaxPooling{rank}D"):
            make = getattr(layers, kind)
            cases.append(layer_case(kind, "", lambda make=make: make(2), shape))
    return cases


def shape_cases() -> list[Case]:
    """List cases of cropping, padding and growing."""
    cases = []
    for rank, shape in SHAPES.items():
        kinds = (f"Cropping{rank}D", f"ZeroPadding{rank}D")
        cases += [layer_case(kind, "", getattr(layers, kind), shape) for kind in kinds]
        small = (*(2 for _ in range(rank)), shape[-1])
        cases.append(
            layer_case(f"UpSampling{rank}D", "", getattr(layers, f"UpSampling{rank}D"), small)
        )
    cases += [
        layer_case("UpSampling2D", "bilinear",
                   lambda: layers.UpSampling2D(2, interpolation="bilinear"), IMAGE),
        layer_case("ZeroPadding2D", "channels first",
                   lambda: layers.ZeroPadding2D(1, data_format="channels_first"), IMAGE_FIRST),
        layer_case("GlobalAveragePooling1D", "channels first",
                   lambda: layers.GlobalAveragePooling1D(data_format="channels_first"),
                   SEQUENCE_FIRST),
    ]  # fmt: skip
    return cases


def all_cases() -> list[Case]:
    return [
        *core_cases(), *merging_cases(), *convolution_cases(), *pooling_cases(), *shape_cases(),
    ]  # fmt: skip
