"""The replaced operations against the originals: values, gradients, statistics, updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.kernels import faster_kernels

RANDOM = np.random.default_rng(7)
LABELS = np.array([0, 4, 2, 2, 1, 3])
LOGITS = np.concatenate([RANDOM.normal(size=(5, 5)), [[300.0, 0.0, -5.0, -300.0, 9.0]]])


def traced(function: Callable[..., Any]) -> Any:
    """Trace with the replacements in place, as a step is."""

    def body(*arguments: Any) -> Any:
        with faster_kernels():
            return function(*arguments)

    return tf.function(body, autograph=False)


def operations(function: Any, *arguments: Any) -> set[str]:
    graph = function.get_concrete_function(*arguments).graph.as_graph_def()
    return {node.op for node in graph.node}


def compare(function: Callable[..., Any], *values: Any) -> Any:
    """Compare value and gradients with the originals; gives the traced function."""
    arguments = [tf.constant(value, tf.float32) for value in values]

    def with_gradient(*arguments: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            result = function(*arguments)
            weights = tf.reshape(tf.range(1.0, tf.size(result, tf.float32) + 1.0), result.shape)
            objective = tf.reduce_sum(result * weights)
        return result, tape.gradient(objective, arguments)

    fast = traced(with_gradient)
    expected = with_gradient(*arguments)
    for mine, theirs in zip(
        tf.nest.flatten(fast(*arguments)), tf.nest.flatten(expected), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)
    return operations(fast, *arguments)


def test_gelu() -> None:
    assert "Erfc" not in compare(
        lambda x: keras.activations.gelu(x, approximate=False), RANDOM.normal(size=(3, 7)) * 3
    )


def test_sparse_cross_entropy_also_of_an_impossible_label() -> None:
    """The last row's own label has a probability of exp(-600), which is 0 in 32 bits."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    found = compare(lambda logits: loss(LABELS, logits), LOGITS)
    assert "SparseSoftmaxCrossEntropyWithLogits" not in found
    assert "UnsortedSegmentSum" not in found


def test_a_label_outside_the_classes_is_an_error() -> None:
    def loss(logits: Any, labels: Any) -> Any:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    logits = tf.zeros([2, 3])
    with pytest.raises(tf.errors.InvalidArgumentError):
        traced(loss)(logits, tf.constant([0, 3]))


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6)])
def test_layer_normalization(shape: tuple[int, ...]) -> None:
    layer = keras.layers.LayerNormalization()
    layer.build(shape)
    layer.gamma.assign(RANDOM.normal(size=6))
    layer.beta.assign(RANDOM.normal(size=6))
    compare(layer, RANDOM.normal(size=shape) * 4 + 1)


@pytest.mark.parametrize("shape", [(9, 3), (2, 5, 4, 3), (1, 1, 1, 3)])
def test_batch_normalization_and_its_statistics(shape: tuple[int, ...]) -> None:
    values = tf.constant(RANDOM.normal(size=shape) * 4 + 1, tf.float32)
    layers = [keras.layers.BatchNormalization(momentum=0.7) for _ in range(2)]
    for layer in layers:
        layer.build(shape)
        layer.gamma.assign([2.0, 0.5, -1.0])
    fast = traced(lambda x: layers[0](x, training=True))
    np.testing.assert_allclose(fast(values), layers[1](values, training=True), rtol=2e-5, atol=2e-5)
    for mine, theirs in zip(layers[0].variables, layers[1].variables, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert "FusedBatchNormV3" in operations(fast, values)
    compare(lambda x: layers[0](x, training=True), values)
    layers[0].trainable = False  # a frozen layer normalises by what it knows
    assert "FusedBatchNormV3" not in operations(
        traced(lambda x: layers[0](x, training=True)), values
    )


def test_dropout_keeps_its_share_and_its_mean() -> None:
    """Of 90,000 elements 27,000 ± 137 (one deviation) are dropped at a rate of 0.3."""
    generator = keras.random.SeedGenerator(3)
    drop = traced(lambda x: keras.random.dropout(x, 0.3, seed=generator))
    ones = tf.ones([301, 299])
    once, again = np.asarray(drop(ones)), np.asarray(drop(ones))
    assert "StatelessRandomUniformFullIntV2" in operations(drop, ones)
    assert set(np.unique(once)) == {0.0, np.float32(65536 / (65536 - 19661))}
    assert abs((once == 0).mean() - 0.3) < 4 * 137 / 90_000
    assert abs(((once == 0) & (again == 0)).mean() - 0.09) < 0.004
    rows = traced(lambda x: keras.random.dropout(x, 0.3, noise_shape=(301, 1), seed=generator))
    assert all(len(set(row)) == 1 for row in np.asarray(rows(ones)))


OPTIMIZERS: list[Callable[[], keras.optimizers.Optimizer]] = [
    lambda: keras.optimizers.Adam(0.01, beta_1=0.8, epsilon=1e-4),
    lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5),
    lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    lambda: keras.optimizers.SGD(0.1),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_updates(make: Callable[[], keras.optimizers.Optimizer]) -> None:
    gradients = [tf.constant(RANDOM.normal(size=(4, 3)), tf.float32) for _ in range(3)]
    start = RANDOM.normal(size=(4, 3)).astype("float32")
    kept = []
    for wrap in (traced, lambda function: function):
        variable, optimizer = keras.Variable(start), make()
        optimizer.build([variable])
        update = wrap(lambda g, o=optimizer, v=variable: o.apply([g], [v]))
        for gradient in gradients:
            update(gradient)
        kept.append([np.asarray(each) for each in (variable, *optimizer.variables)])
    for mine, theirs in zip(*kept, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [OPTIMIZERS[0], OPTIMIZERS[3]])
def test_an_update_leaves_captured_values_alone(
    make: Callable[[], keras.optimizers.Optimizer],
) -> None:
    """A state is captured without a copy, and written or sent while later steps run."""
    variable, optimizer = keras.Variable(np.ones((64, 64), "float32")), make()
    optimizer.build([variable])
    update = traced(lambda g: optimizer.apply([g], [variable]))
    for _ in range(2):
        captured = [tf.convert_to_tensor(v.value) for v in (variable, *optimizer.variables)]
        before = [value.numpy().copy() for value in captured]
        update(tf.ones([64, 64]))
        for value, old in zip(captured, before, strict=True):
            np.testing.assert_array_equal(value.numpy(), old)
    assert float(np.max(variable)) < 1.0


def test_everything_is_put_back() -> None:
    before = (tf.nn.gelu, keras.layers.BatchNormalization.call, keras.optimizers.Adam.update_step)
    with pytest.raises(ZeroDivisionError), faster_kernels():
        _ = 1 // int(tf.nn.gelu is before[0])
    after = (tf.nn.gelu, keras.layers.BatchNormalization.call, keras.optimizers.Adam.update_step)
    assert after == before
