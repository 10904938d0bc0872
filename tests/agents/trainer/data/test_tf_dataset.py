"""Data sets of tf.data, read into memory."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.data import tf_dataset
from tests.agents.trainer.data.opened_data import opened, refusal, whole


def numbers(num_rows: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(
        (np.arange(num_rows, dtype="float64"), {"double": 2 * np.arange(num_rows)})
    )


def test_a_tf_data_set_is_read_into_memory() -> None:
    source = opened(numbers(7).batch(3))
    assert len(source) == 7
    x, y = source.fetch(np.array([6, 2]))
    assert x.tolist() == [6.0, 2.0]
    assert x.dtype == np.float32
    assert y["double"].tolist() == [12, 4]


@pytest.mark.parametrize(
    ("sizes", "told"), [((3, 3, 1), 3), ((3, 3, 1, 3), 1), ((3, 1, 3, 1), 1), ((2, 3), 3)]
)
def test_a_batch_of_another_size_than_the_first_is_told(sizes: tuple[int, ...], told: int) -> None:
    first, *others = (numbers(size).batch(size) for size in sizes)
    joined = functools.reduce(tf.data.Dataset.concatenate, others, first)
    assert opened(joined).batch_size == told


def test_a_seeded_shuffle_that_stays_the_same_is_accepted() -> None:
    fixed = numbers(20).shuffle(20, seed=5, reshuffle_each_iteration=False).batch(4)
    assert sorted(whole(opened(fixed))[0].tolist()) == list(range(20))


def free_running() -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    return numbers(4).batch(2).with_options(options)


def random_noise() -> tf.data.Dataset:
    return numbers(4).batch(2).map(lambda x, y: (x + tf.random.uniform((), dtype=x.dtype), y))


def in_rows_of_one(x: tf.Tensor, _: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(x, [1, 1])


def of_lengths(*lengths: int) -> tf.data.Dataset:
    """Make rows of these lengths, padded by two to the longer one."""
    return tf.data.Dataset.from_tensor_slices([*lengths]).map(tf.range).padded_batch(2)


def as_text(x: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return x, tf.as_string(x)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: numbers(20).shuffle(20, seed=5).batch(4), "nondeterministic_data"),
        (random_noise, "nondeterministic_data"),
        (free_running, "nondeterministic_data"),
        (lambda: numbers(4).batch(2).repeat(), "infinite_data"),
        (lambda: numbers(4), "unbatched_data"),
        (lambda: numbers(4).batch(2).filter(lambda x, y: x[0] > 99), "empty_data"),
        (lambda: numbers(4).batch(2).map(in_rows_of_one), "data_type"),
        (lambda: numbers(4).batch(2).map(as_text), "data_type"),
    ],
)
def test_other_tf_data_sets_are_refused_by_name(make: Any, code: str) -> None:
    assert refusal(make()).code == code


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda: numbers(4), "add .batch(n)"),
        (
            lambda: tf.data.Dataset.from_tensor_slices((np.ones((6, 8, 8)), np.ones((6, 10)))),
            "add .batch(n)",
        ),
        (lambda: numbers(4).batch(2).map(in_rows_of_one), ".to_tensor()"),
        (
            lambda: numbers(4).batch(2).map(lambda x, _: tf.sparse.from_dense(x)),
            "tf.sparse.to_dense(",
        ),
        (lambda: of_lengths(1, 2, 3, 4), "shape (4,), but an array of shape (2,) in the first"),
        (lambda: of_lengths(1, 2, 3, 4), ".padded_batch(n, padded_shapes)"),
    ],
)
def test_a_refused_tf_data_set_is_told_the_fix(make: Any, fix: str) -> None:
    assert fix in refusal(make()).message


def test_a_tf_data_set_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_dataset, "MATERIALISED_LIMIT_BYTES", 100)
    assert refusal(numbers(20).batch(2)).code == "data_too_large"


def test_the_length_of_text_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = tf.data.Dataset.from_tensor_slices(["a" * 900] * 20).batch(2)
    assert len(opened(texts)) == 20
    monkeypatch.setattr(tf_dataset, "MATERIALISED_LIMIT_BYTES", 9000)
    assert refusal(texts).code == "data_too_large"


def test_a_tf_data_set_of_unknown_length_ends_by_the_limit_on_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forever() -> Iterator[Any]:
        while True:
            yield np.zeros(1)

    monkeypatch.setattr(tf_dataset, "MATERIALISED_LIMIT_BATCHES", 10)
    endless = tf.data.Dataset.from_generator(forever, output_signature=tf.TensorSpec((1,)))
    assert refusal(endless).code == "data_too_large"


def test_a_failing_tf_data_function_is_the_users_fault() -> None:
    broken = numbers(4).batch(2).map(lambda x, _: tf.debugging.check_numerics(x / 0, "not finite"))
    error = refusal(broken)
    assert error.code == "user_code"
    assert "not finite" in error.message
