"""Numbers of random draws, told from the graph of a function to depend on values or on shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from agents.trainer.validate.random_draws import draws_sized_by_values

Function = Callable[[Any, Any], Any]
SEED = keras.random.SeedGenerator(1)


def noise(shape: Any) -> Any:
    return keras.random.normal(shape, seed=SEED)


def doubled(values: Any) -> Any:
    """Repeat values along the second axis."""
    return tf.tile(values, [1, 2, 1])


def positive(values: Any) -> Any:
    """Return the examples [m, t, 3] whose first value is positive."""
    return values[values[:, 0, 0] > 0]


#: Functions of values [n, t, 3] and lengths [n] that draw as many numbers as these decide.
BY_VALUES: dict[str, Function] = {
    "masked": lambda x, _: noise(tf.shape(tf.boolean_mask(x, x > 0))),
    "masked, then dropout": lambda x, _: keras.random.dropout(positive(x), 0.5, seed=SEED),
    "masked, then exchanged": lambda x, _: keras.random.shuffle(positive(x), seed=SEED),
    "different values": lambda _, n: noise(tf.shape(tf.unique(n)[0])),
    "to the longest": lambda x, n: noise([tf.shape(x)[0], tf.reduce_max(n)]),
    "a mask to the longest": lambda _, n: noise(tf.shape(tf.sequence_mask(n))),
    "a range": lambda _, n: noise(tf.shape(tf.range(tf.reduce_sum(n)))),
    "a slice": lambda x, n: noise(tf.shape(x[:, : tf.reduce_max(n)] * 2)),
    "padded": lambda x, n: noise(tf.shape(tf.pad(x, [[0, 0], [0, n[0]], [0, 0]]))),
    "repeated": lambda x, n: noise(tf.shape(tf.repeat(x, n, axis=0))),
    "classes": lambda x, _: tf.random.stateless_categorical(positive(x)[:, 0], 1, [1, 2]),
}
#: The same of functions where shapes decide it, whatever the values.
BY_SHAPES: dict[str, Function] = {
    "all": lambda x, _: noise(tf.shape(x)),
    "dropout": lambda x, _: keras.random.dropout(doubled(x), 0.5, seed=SEED),
    "masked after": lambda x, _: tf.boolean_mask(x + noise(tf.shape(x)), x > 0),
    "masked before, and not drawn for": lambda x, _: (
        noise(tf.shape(x)) + tf.reduce_sum(tf.boolean_mask(x, x > 0))
    ),
    "as many as places": lambda x, _: noise([tf.size(x)]),
    "embedded": lambda _, n: noise(tf.shape(tf.gather(tf.ones([9, 2]), n))),
    "one-hot": lambda _, n: noise(tf.shape(tf.one_hot(n, 9))),
    "chosen": lambda x, _: noise(tf.shape(tf.where(x > 0, x, 0.0))),
    "exchanged": lambda x, _: keras.random.shuffle(x, seed=SEED),
    "as many as drawn": lambda x, _: noise(
        [tf.shape(x)[0], keras.random.randint([], 1, 9, seed=SEED)]
    ),
    "none drawn": lambda x, _: tf.boolean_mask(x, x > 0),
}


@pytest.mark.parametrize(
    ("function", "is_by_values"),
    [
        (function, cases is BY_VALUES)
        for cases in (BY_VALUES, BY_SHAPES)
        for function in cases.values()
    ],
    ids=[*BY_VALUES, *BY_SHAPES],
)
def test_values_that_decide_how_many_numbers_are_drawn(
    function: Function, is_by_values: bool
) -> None:
    specs = [tf.TensorSpec([None, None, 3], tf.float32), tf.TensorSpec([None], tf.int32)]
    graph = tf.function(function, autograph=False).get_concrete_function(*specs).graph
    assert draws_sized_by_values(graph, graph.inputs[:2]) is is_by_values
