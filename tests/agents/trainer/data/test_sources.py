"""Every kind of data gives the same numbered examples, in the same order, wherever it is read."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.data import pydataset
from agents.trainer.data.arrays import (
    ArraySource,
    ClassWeightedSource,
    UnitWeightedSource,
    example_order,
    extreme_examples,
)
from tests.agents.trainer.data.opened_data import opened, refusal, whole

ORDER_OF_SEED_7 = [4, 1, 6, 3, 2, 7, 5, 0]


class Rows(keras.utils.PyDataset):
    """Numbers 0..num_rows-1 as x and their squares as y, in batches."""

    def __init__(self, num_rows: int, batch_size: int) -> None:
        super().__init__()
        self.num_rows, self.batch_size = num_rows, batch_size
        self.reads: list[int] = []

    def __len__(self) -> int:
        return -(-self.num_rows // self.batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        self.reads.append(index)
        low = index * self.batch_size
        x = np.arange(low, min(low + self.batch_size, self.num_rows), dtype="float32")
        return x[:, None], x**2


class Pairs:
    """Item i is the example (i, (i, i + 1)) with weight 2 i."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return np.float64(index), (index, index + 1), 2.0 * index


# Order


@given(
    num_examples=st.integers(1, 300),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 10_000),
)
def test_an_order_is_a_permutation_and_a_function_of_its_arguments(
    num_examples: int, seed: int, epoch: int
) -> None:
    order = example_order(num_examples, seed, epoch, shuffle=True)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(num_examples))
    assert np.array_equal(order, example_order(num_examples, seed, epoch, shuffle=True))


def test_orders_differ_by_seed_and_epoch_and_stay_the_same_for_ever() -> None:
    # Written down once: a different order would break every saved checkpoint's data cursor.
    assert example_order(8, 7, 0, shuffle=True).tolist() == ORDER_OF_SEED_7
    assert example_order(8, 7, 1, shuffle=True).tolist() != ORDER_OF_SEED_7
    assert example_order(8, 8, 0, shuffle=True).tolist() != ORDER_OF_SEED_7
    assert example_order(4, 7, 3, shuffle=False).tolist() == [0, 1, 2, 3]


# Arrays


def test_arrays_keep_their_nest_and_floats_become_floatx() -> None:
    pixels = np.arange(12, dtype="float64").reshape(4, 3)
    source = opened(({"pixels": pixels, "codes": [1, 2, 3, 4]}, (np.ones(4, "int32"), pixels)))
    assert (len(source), source.has_sample_weight) == (4, False)
    x, y = source.fetch(np.array([3, 0]))
    assert x["pixels"].dtype == np.float32
    assert x["pixels"].tolist() == [[9.0, 10.0, 11.0], [0.0, 1.0, 2.0]]
    assert x["codes"].tolist() == [4, 1]
    assert x["codes"].dtype == np.int64
    assert isinstance(y, tuple)
    assert y[0].dtype == np.int32
    assert y[1].shape == (2, 3)


class Listed:
    """Examples of a list, read one by one."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def test_examples_with_extreme_labels_and_weights_are_found() -> None:
    labels = np.array([[1, 1], [1, 7], [-1, 1], [1, 1]])
    source = ArraySource((np.zeros((4, 1)), {"a": labels, "b": None}), "data.train")
    assert extreme_examples(UnitWeightedSource(source, ())).tolist() == [0, 1, 2]
    hidden = np.array([[0, 5], [0, 9], [-9, 5], [9, 5], [0, -1], [0, 5]])  # -1 means no label
    assert 4 in extreme_examples(ArraySource((hidden, hidden / 9), "data.train"))
    items = [(np.zeros(1), row / 9) for row in hidden]
    assert 4 in extreme_examples(opened(Listed(items)))
    weighted = ArraySource((np.zeros(4), np.zeros(4), np.array([1, 1, 1, np.nan])), "data.train")
    assert extreme_examples(weighted).tolist() == [0, 3]
    assert extreme_examples(ArraySource(np.eye(3), "data.train")).tolist() == []
    words = {"ages": np.arange(4), "words": np.array([[7, 3], [2, 4], [2, 0], [5, 5]])}
    assert extreme_examples(ArraySource((words,), "data.train")).tolist() == [0, 1, 2, 3]
    assert extreme_examples(opened(Pairs())).tolist() == [0, 4]
    many = Rows(4_405, 8)
    assert extreme_examples(opened(many)).tolist() == [0, 4_404]
    assert len(set(many.reads)) == 32


def test_inputs_alone_and_tensors_are_accepted() -> None:
    (x,) = whole(opened(np.zeros((3, 2), "float32")))
    assert x.shape == (3, 2)
    (named,) = whole(opened({"a": np.zeros(3)}))
    assert named["a"].shape == (3,)
    x, y = whole(opened([tf.ones((2, 5)), np.array([True, False])]))
    assert x.shape == (2, 5)
    assert y.dtype == bool


def test_one_array_of_weights_counts_for_every_output() -> None:
    source = opened((np.ones(3), {"a": np.ones(3), "b": np.zeros(3)}, np.array([1.0, 2.0, 3.0])))
    assert source.has_sample_weight
    _, _, weight = source.fetch(np.array([2]))
    assert {name: array.tolist() for name, array in weight.items()} == {"a": [3.0], "b": [3.0]}


A, B = np.ones((3, 2)), np.zeros(3, "int32")
WEIGHTS_OF_A = np.array([2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    "data",
    [
        (A, {"a": A, "b": B}, {"a": WEIGHTS_OF_A, "b": None}),
        (A, (A, B), [WEIGHTS_OF_A, None]),
        [(A[0], (A[0], B[0]), (weight, None)) for weight in WEIGHTS_OF_A],
        tf.data.Dataset.from_tensors((A, {"a": A, "b": B}, {"a": WEIGHTS_OF_A, "b": None})),
    ],
    ids=["dict", "list", "examples", "tf.data"],
)
def test_an_output_without_weights_has_weights_of_no_numbers(data: Any) -> None:
    weights = keras.tree.flatten(whole(opened(data))[2])
    assert [weight.tolist() for weight in weights] == [[2.0, 3.0, 4.0], [[], [], []]]
    assert {weight.dtype for weight in weights} == {np.dtype("float32")}


@pytest.mark.parametrize(
    "data",
    [
        (A, {"a": A, "b": None}),
        (A, [A, None]),
        [(A[0], (A[0], None))] * 3,
        tf.data.Dataset.from_tensors((A, {"a": A, "b": None})),
    ],
    ids=["dict", "list", "examples", "tf.data"],
)
def test_an_output_without_labels_has_labels_of_no_numbers(data: Any) -> None:
    given, absent = keras.tree.flatten(whole(opened(data))[1])
    assert given.tolist() == A.tolist()
    assert absent.shape == (3, 0)


@pytest.mark.parametrize(
    ("data", "code", "field"),
    [
        ((np.ones(3), np.ones(4)), "length_mismatch", "data.train"),
        ((np.ones((0, 2)), np.ones(0)), "empty_data", "data.train"),
        ((np.ones(3), np.float32(1)), "data_structure", "data.train.y"),
        ((np.ones(2), np.array(["cat", "dog"])), "data_type", "data.train.y"),
        (({"a": object()}, np.ones(2)), "data_type", "data.train.x['a']"),
        ((np.ones(2), np.array([1j, 2j])), "data_type", "data.train.y"),
        ((np.ones(2), tf.ragged.constant([[1], [2, 3]])), "data_type", "data.train.y"),
        ((1, 2, 3, 4), "data_structure", "data.train"),
        (iter([1, 2]), "unknown_data", "data.train"),
        (42, "unknown_data", "data.train"),
    ],
)
def test_unusable_arrays_are_refused_by_name(data: Any, code: str, field: str) -> None:
    error = refusal(data)
    assert (error.code, error.field) == (code, field)


def test_a_length_mismatch_says_the_lengths() -> None:
    message = refusal(((np.ones(3), np.ones(3)), np.ones(4))).message
    assert "x: 3, 3; y: 4" in message


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        ({"a": np.ones(3)}, "weights for a, but outputs a, b"),
        ({"a": np.ones(3), "c": np.ones(3)}, "weights for a, c, but outputs a, b"),
        ((np.ones(3), np.ones(3)), "weights for 0, 1, but outputs a, b"),
    ],
)
def test_weights_that_do_not_fit_the_outputs_are_refused(weights: Any, named: str) -> None:
    error = refusal((np.ones(3), {"a": np.ones(3), "b": np.zeros(3)}, weights))
    assert (error.code, error.field) == ("data_structure", "data.train.sample_weight")
    assert named in error.message


# Class weights


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 2, 1]),
        np.array([[0], [2], [1]]),
        np.array([[1.0, 0, 0], [0, 0, 1.0], [0, 1.0, 0]]),
    ],
)
def test_class_weights_become_sample_weights(labels: np.ndarray) -> None:
    source = ClassWeightedSource(opened((np.ones(3), labels)), {0: 3.0, 2: 0.5})
    assert source.has_sample_weight
    weights = whole(source)[2]
    assert weights.tolist() == [3.0, 0.5, 1.0]
    assert weights.dtype == np.float32


@pytest.mark.parametrize(
    "data",
    [
        (np.ones(2), np.ones(2), np.ones(2)),
        (np.ones(2), {"a": np.ones(2)}),
        (np.ones(2), np.ones((2, 3, 3))),  # a label for each pixel
        np.ones(2),
    ],
)
def test_class_weights_need_plain_labels(data: Any) -> None:
    with pytest.raises(JobCodeError) as caught:
        ClassWeightedSource(opened(data), {0: 2.0})
    assert caught.value.code == "class_weight"


# PyDataset


@given(num_rows=st.integers(1, 40), batch_size=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_pydataset_is_numbered_by_rows(num_rows: int, batch_size: int, seed: int) -> None:
    source = opened(Rows(num_rows, batch_size))
    assert len(source) == num_rows
    order = source.order(seed, 0, shuffle=True)
    assert sorted(order.tolist()) == list(range(num_rows))
    x, y = source.fetch(order)
    assert x[:, 0].tolist() == order.tolist()
    assert y.tolist() == (order.astype("float32") ** 2).tolist()


def test_a_pydataset_is_shuffled_by_whole_batches() -> None:
    order = opened(Rows(23, 5)).order(3, 1, shuffle=True)
    batches = list(dict.fromkeys((order // 5).tolist()))
    assert sorted(batches) == [0, 1, 2, 3, 4]
    assert batches != [0, 1, 2, 3, 4]
    expected = [row for batch in batches for row in range(5 * batch, min(5 * batch + 5, 23))]
    assert order.tolist() == expected
    assert opened(Rows(6, 4)).order(3, 1, shuffle=False).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_pydataset_reads_a_batch_once_for_many_slices() -> None:
    rows = Rows(100, 10)
    source = opened(rows)
    rows.reads.clear()
    for low in range(0, 20, 4):
        source.fetch(np.arange(low, low + 4))
    assert rows.reads == [0, 1]
    for index in range(100):
        source.fetch(np.array([index]))
    assert len(source._cache) == pydataset.CACHED_BATCHES  # type: ignore[attr-defined]


class Uneven(Rows):
    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        size = (4, 3, 4)[index]
        return np.ones((size, 1)), np.ones(size)


class Growing(Rows):
    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return np.ones((2 + index, 1)), np.ones(2 + index)


class Endless(Rows):
    @property
    def num_batches(self) -> None:
        return None


class Reshuffled(Rows):
    def on_epoch_end(self) -> None:
        self.reads.reverse()


def test_a_pydataset_with_uneven_batches_is_refused_when_it_shows() -> None:
    assert refusal(Growing(4, 2)).code == "unequal_batches"
    source = opened(Uneven(12, 4))
    with pytest.raises(JobCodeError, match="batch 1 has 3 examples, batch 0 has 4"):
        source.fetch(np.array([5]))


def test_an_endless_or_changing_pydataset_is_refused() -> None:
    assert refusal(Endless(4, 2)).code == "infinite_data"
    error = refusal(Reshuffled(4, 2))
    assert error.code == "changing_data"
    assert "Reshuffled defines on_epoch_end" in error.message


# Objects with items


def test_items_are_stacked_to_batches() -> None:
    source = opened(Pairs())
    assert (len(source), source.has_sample_weight) == (5, True)
    x, y, weight = source.fetch(np.array([4, 1]))
    assert x.dtype == np.float32
    assert x.tolist() == [4.0, 1.0]
    assert [part.tolist() for part in y] == [[4, 1], [5, 2]]
    assert [part.tolist() for part in weight] == [[8.0, 2.0], [8.0, 2.0]]


class Ragged(Pairs):
    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return np.ones(index + 1), 0


class Broken(Pairs):
    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return {"table": [1, 2, 3]}["tabel"], index


class Nothing(Pairs):
    def __len__(self) -> int:
        return 0


def test_items_of_different_shapes_are_refused_when_read_together() -> None:
    with pytest.raises(JobCodeError) as caught:
        opened(Ragged()).fetch(np.array([0, 1]))
    assert caught.value.code == "data_shape"


def test_a_failing_item_shows_the_users_own_line() -> None:
    error = refusal(Broken())
    assert (error.code, error.field) == ("user_code", "data.train")
    assert "data[0] raised KeyError: 'tabel'" in error.message
    assert 'File "test_sources.py"' in error.traceback
    assert "data/items.py" not in error.traceback


def test_an_object_without_items_is_refused() -> None:
    assert refusal(Nothing()).code == "empty_data"
