"""Cheaper operations for what Keras and TensorFlow compute in a training step on a CPU.

Inside `faster_kernels` some public functions and methods are replaced; what is traced there keeps
the replacements. Each computes the same function as its original, up to rounding, with fewer passes
over memory or in one operation instead of a dozen, and hands whatever it was not made for back to
the original. None adds in an order that depends on anything but shapes and threads, so the bits
stay a function of the slice. On a GPU the originals are left alone: there they are fused already,
or replaced by operations whose order is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from agents.trainer.update_kernels import UPDATE_STEPS

Tensor = Any
Function = Callable[..., Any]

#: Random bits that decide about one element of a dropout: half of what a uniform float takes.
DROPOUT_BITS = 16


@contextmanager
def faster_kernels() -> Iterator[None]:
    """Replace functions while a step is traced inside the block; nothing on a GPU."""
    if tf.config.get_visible_devices("GPU"):
        yield
        return
    places = [
        (keras.layers.BatchNormalization, "call", batch_normalization),
        (keras.layers.LayerNormalization, "call", layer_normalization),
        (tf.nn, "gelu", gelu),
        (tf.nn, "sparse_softmax_cross_entropy_with_logits", sparse_cross_entropy),
        (tf.nn.experimental, "stateless_dropout", dropout),
        *((optimizer, "update_step", make) for optimizer, make in UPDATE_STEPS.items()),
    ]
    originals = [getattr(owner, name) for owner, name, _ in places]
    for (owner, name, make), original in zip(places, originals, strict=True):
        setattr(owner, name, make(original))
    try:
        yield
    finally:
        for (owner, name, _), original in zip(places, originals, strict=True):
            setattr(owner, name, original)


def batch_normalization(original: Function) -> Function:
    """Make a `BatchNormalization.call` that is one operation each way."""

    def call(self: Any, inputs: Tensor, training: Any = None, mask: Any = None) -> Tensor:
        channels = inputs.shape[-1]
        is_plain = mask is None and not self.renorm and not self.synchronized
        is_last = self.axis in (-1, inputs.shape.rank - 1)
        is_single = keras.backend.result_type(inputs.dtype, "float32") == "float32"
        learns = training is True and self.trainable
        if not (is_plain and is_last and is_single and learns and channels):
            return original(self, inputs, training=training, mask=mask)
        images = tf.cast(inputs, tf.float32)
        if inputs.shape.rank != 4:
            images = tf.reshape(images, [-1, 1, 1, channels])
        scale = keras.ops.cast(self.gamma, "float32") if self.scale else tf.ones([channels])
        offset = keras.ops.cast(self.beta, "float32") if self.center else tf.zeros([channels])
        outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=images,
            scale=scale,
            offset=offset,
            mean=tf.zeros([0]),
            variance=tf.zeros([0]),
            epsilon=self.epsilon,
            is_training=True,
        )
        count = tf.cast(tf.size(images) // channels, tf.float32)
        variance *= (count - 1.0) / count  # the operation's is divided by count - 1
        for statistic, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            old = keras.ops.cast(statistic, "float32")
            new = old * self.momentum + tf.stop_gradient(value) * (1.0 - self.momentum)
            statistic.assign(new)
        if inputs.shape.rank != 4:
            outputs = tf.reshape(outputs, tf.shape(inputs))
            outputs.set_shape(inputs.shape)
        return keras.ops.cast(outputs, self.compute_dtype)

    return call


def layer_normalization(original: Function) -> Function:
    """Make a `LayerNormalization.call` whose gradient takes few passes."""

    def call(self: Any, inputs: Tensor) -> Tensor:
        axes = [self.axis] if isinstance(self.axis, int) else list(self.axis)
        is_last = axes in ([-1], [inputs.shape.rank - 1])
        is_affine = self.gamma is not None and self.beta is not None
        is_single = keras.backend.result_type(inputs.dtype, "float32") == "float32"
        if self.rms_scaling or not (is_last and is_affine and is_single):
            return original(self, inputs)
        gamma = keras.ops.cast(self.gamma, "float32")
        beta = keras.ops.cast(self.beta, "float32")
        outputs = _normalized(tf.cast(inputs, tf.float32), gamma, beta, self.epsilon)
        return keras.ops.cast(outputs, self.compute_dtype)

    return call


def _normalized(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """Normalise the last axis to mean 0 and variance 1, then scale and shift it."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def normalized(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Function]:
        centered = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True)
        inverse = tf.math.rsqrt(variance + epsilon)
        unit = centered * inverse

        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            # dx = (d - mean(d) - unit * mean(d * unit)) / deviation, where d = upstream * gamma.
            scaled = upstream * gamma
            slope = tf.reduce_mean(scaled * unit, -1, keepdims=True)
            inner = scaled - tf.reduce_mean(scaled, -1, keepdims=True) - unit * slope
            rows = [-1, x.shape[-1]]
            to_gamma = tf.reduce_sum(tf.reshape(upstream * unit, rows), 0)
            return inner * inverse, to_gamma, tf.reduce_sum(tf.reshape(upstream, rows), 0)

        return unit * gamma + beta, gradient

    return normalized(x, gamma, beta)


def gelu(original: Function) -> Function:
    """Make an exact `tf.nn.gelu` that shares its error function between both directions."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def exact(x: Tensor) -> tuple[Tensor, Function]:
        below = 0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5)))

        def gradient(upstream: Tensor) -> Tensor:
            density = tf.exp(-0.5 * tf.square(x)) * (1.0 / math.sqrt(2.0 * math.pi))
            return upstream * (below + x * density)

        return x * below, gradient

    def call(features: Any, approximate: bool = False, name: str | None = None) -> Tensor:
        x = tf.convert_to_tensor(features)
        if approximate or x.dtype != tf.float32:
            return original(features, approximate=approximate, name=name)
        return exact(x)

    return call


def sparse_cross_entropy(original: Function) -> Function:
    """Make a cross-entropy whose gradient comes from the probabilities themselves.

    TensorFlow's own one, when its operations have to be deterministic, scatters gradients of a
    gather; that is for GPUs. A label outside of the classes is an error, as it is there.
    """

    def call(labels: Any, logits: Any, name: str | None = None) -> Tensor:
        logits = tf.convert_to_tensor(logits)
        labels = tf.convert_to_tensor(labels)
        classes = logits.shape[-1]
        is_matched = logits.shape.rank is not None and logits.shape.rank == labels.shape.rank + 1
        if logits.dtype != tf.float32 or not is_matched or not classes:
            return original(labels=labels, logits=logits, name=name)
        losses = _cross_entropy(tf.reshape(labels, [-1]), tf.reshape(logits, [-1, classes]))
        losses = tf.reshape(losses, tf.shape(labels))
        losses.set_shape(labels.shape)
        return losses

    return call


def _cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    """Give -log softmax(logits)[label] for int labels [n] and logits [n, classes]."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def loss(logits: Tensor) -> tuple[Tensor, Function]:
        probabilities = tf.nn.softmax(logits)
        chosen = tf.gather(logits, labels, batch_dims=1)
        # The likeliest class has a probability of at least 1 / classes: its logarithm is exact.
        log_highest = tf.math.log(tf.reduce_max(probabilities, -1))
        losses = tf.reduce_max(logits, -1) - chosen - log_highest

        def gradient(upstream: Tensor) -> Tensor:
            target = tf.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
            return (probabilities - target) * upstream[:, tf.newaxis]

        return losses, gradient

    return loss(logits)


def dropout(original: Function) -> Function:
    """Make a dropout that decides with 16 random bits an element.

    The share that is dropped is `rate` to within 1 / 2^17; what is kept is scaled by the exact
    inverse of that share.
    """

    def call(
        x: Any,
        rate: Any,
        seed: Any,
        rng_alg: str | None = None,
        noise_shape: Any = None,
        name: str | None = None,
    ) -> Tensor:
        x = tf.convert_to_tensor(x)
        levels = 1 << DROPOUT_BITS
        dropped = round(rate * levels) if isinstance(rate, float) else 0
        is_plain = x.dtype == tf.float32 and rng_alg is None and _is_shape_of(noise_shape, x)
        if not is_plain or not 0 < dropped < levels:
            return original(x, rate, seed, rng_alg, noise_shape, name)
        words = tf.random.stateless_uniform(
            [(tf.size(x) + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32
        )
        draws = tf.reshape(tf.bitcast(words, tf.int16), [-1])
        draws = tf.reshape(draws[: tf.size(x)], tf.shape(x))
        is_kept = draws >= tf.constant(dropped - levels // 2, tf.int16)
        kept = x * (tf.cast(is_kept, x.dtype) * (levels / (levels - dropped)))
        return tf.ensure_shape(kept, x.shape)

    return call


def _is_shape_of(shape: Any, x: Tensor) -> bool:
    """Say whether `shape` is that of `x`: not given, or taken from it as Keras does."""
    if shape is None:
        return True
    known = tf.get_static_value(tf.convert_to_tensor(shape))
    if known is not None:
        return bool(x.shape.is_fully_defined() and x.shape.as_list() == known.tolist())
    return bool(shape.op.type == "Shape" and shape.op.inputs[0] is x)
