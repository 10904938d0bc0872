"""All kinds of data give the same numbered examples for all structures, and train the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.trainer.data.sources import source_open
from agents.trainer.predict.job import prediction_job
from agents.trainer.step.prefetch import JobData
from tests.agents.trainer.data_kinds import (
    KINDS,
    Batches,
    Items,
    Parts,
    examples_of,
    num_rows,
    rows_of,
)
from tests.agents.trainer.step import test_functions
from tests.agents.trainer.step.test_functions import EpochByVirtualNodes
from tests.support.cases import some

HERE = Path(__file__).parent
DTYPES = ("float64", "float32", "float16", "int64", "int32", "uint8", "bool")
SHAPES = ((), (1,), (3,), (2, 3))
MOST_EXAMPLES = 23
#: Of Python's own numbers nothing tells how wide they were.
WIDEST = {"i": "int64", "u": "int64"}


class Pair(NamedTuple):
    """Two inputs by name, in order."""

    first: Any
    second: Any


def numbers_of(num_examples: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    random = np.random.default_rng(len(shape) + num_examples)
    return (random.normal(size=(num_examples, *shape)) * 50 + 100).astype(dtype)


def nests(num_examples: int) -> st.SearchStrategy[Any]:
    leaves = st.builds(
        numbers_of, st.just(num_examples), st.sampled_from(SHAPES), st.sampled_from(DTYPES)
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2)
            | st.lists(inner, min_size=1, max_size=2).map(tuple)
            | st.builds(Pair, inner, inner)
        ),
        max_leaves=3,
    )


@st.composite
def parts_with_any_structure(draw: st.DrawFn) -> Parts:
    """Draw x, (x, y) or (x, y, weight): scalars, per time step, for all outputs or each."""
    num_examples = draw(st.integers(1, MOST_EXAMPLES))
    x, y = draw(nests(num_examples)), draw(nests(num_examples))
    shape = draw(st.sampled_from([(), (3,)]))
    weight = numbers_of(num_examples, shape, "float64")
    per_output = keras.tree.map_structure(lambda array: array.astype("float32") + 1, y)
    return draw(st.sampled_from([(x,), (x, y), (x, y, weight), (x, y, per_output)]))


def expected(parts: Parts, indices: np.ndarray) -> Parts:
    """Take rows of the arrays themselves, in the types that the documentation promises."""
    if len(parts) == 3 and not keras.tree.is_nested(parts[2]):
        x, y, weight = parts
        parts = (x, y, keras.tree.map_structure(lambda _: weight, y))
    taken: Parts = keras.tree.map_structure(
        lambda a: a[indices].astype("float32" if a.dtype.kind == "f" else a.dtype), parts
    )
    return taken


def assert_same(given: Parts, wanted: Parts, kind: str) -> None:
    keras.tree.assert_same_structure(given, wanted)
    leaves = zip(
        keras.tree.flatten_with_path(given), keras.tree.flatten_with_path(wanted), strict=True
    )
    for (path, one), (other_path, other) in leaves:
        assert path == other_path
        is_widened = kind == "list with plain numbers" and other.ndim == 1
        dtype = WIDEST.get(other.dtype.kind, other.dtype.name) if is_widened else other.dtype.name
        assert (one.dtype.name, one.shape) == (dtype, other.shape), path
        assert one.tobytes() == other.astype(dtype).tobytes(), path


@given(
    parts=parts_with_any_structure(),
    batch_size=st.integers(1, MOST_EXAMPLES + 1),
    seed=st.integers(0, 99),
    chosen=st.lists(st.integers(0, MOST_EXAMPLES - 1), max_size=30),
)
def test_every_kind_gives_the_same_examples_in_any_order(
    parts: Parts, batch_size: int, seed: int, chosen: list[int]
) -> None:
    num_examples = num_rows(parts)
    in_order = np.arange(num_examples)
    shuffled = np.random.default_rng(seed).permutation(num_examples)
    picked = np.array([row for row in chosen if row < num_examples], np.int64)
    for kind, make in KINDS.items():
        source = source_open(make(parts, batch_size), "data.train", HERE)
        assert len(source) == num_examples, kind
        assert source.has_sample_weight == (len(parts) == 3), kind
        assert np.array_equal(source.order(seed, 3, shuffle=False), in_order), kind
        assert sorted(source.order(seed, 3, shuffle=True)) == in_order.tolist(), kind
        for indices in (in_order, shuffled, picked):
            assert_same(source.fetch(indices), expected(parts, indices), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_the_same_in_every_kind(kind: str) -> None:
    texts = np.array([f"{row} \u00e9\0".encode() * row for row in range(7)], object)
    x = {"one": texts, "several": np.stack([texts, texts[::-1]], 1)}
    source = source_open(KINDS[kind]((x, numbers_of(7, (), "int64")), 3), "data.train", HERE)
    chosen = np.array([5, 0, 6, 5])
    given, wanted = source.fetch(chosen)[0], rows_of((x,), chosen)[0]
    assert {name: array.tolist() for name, array in given.items()} == {
        name: array.tolist() for name, array in wanted.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_none_are_none_in_every_kind(kind: str) -> None:
    parts = ({"a": numbers_of(7, (2,), "float64")}, numbers_of(7, (), "int64"))
    data = KINDS[kind](parts, 3)
    if kind == "arrays":
        data = (*parts, None)
    elif kind.startswith("list of"):
        data = [(*example, None) for example in examples_of(parts)]
    elif kind == "PyDataset":
        data = NoWeightBatches(parts, 3)
    elif kind == "object":
        data = NoWeightItems(parts)
    elif kind == "tf.data.Dataset":
        data = data.map(lambda x, y: (x, y, None))
    source = source_open(data, "data.train", HERE)
    assert not source.has_sample_weight
    assert_same(source.fetch(np.array([6, 0])), expected(parts, np.array([6, 0])), kind)


class NoWeightItems(Items):
    def __getitem__(self, index: int) -> Parts:
        return (*super().__getitem__(index), None)


class NoWeightBatches(Batches):
    def __getitem__(self, index: int) -> Parts:
        return (*super().__getitem__(index), None)


# Prediction: inputs alone need no tuple


@pytest.mark.parametrize("is_labelled", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_takes_the_inputs_of_every_kind(kind: str, is_labelled: bool) -> None:
    x = {"a": numbers_of(11, (2,), "float64"), "b": numbers_of(11, (), "float64")}
    parts = (x, numbers_of(11, (), "int64")) if is_labelled else (x,)
    _, source = prediction_job((keras.Sequential(), KINDS[kind](parts, 4)), HERE, None)
    assert len(source) == 11
    assert_same(source.fetch(np.array([10, 3])), expected((x,), np.array([10, 3])), kind)


@pytest.mark.parametrize("shape", SHAPES)
def test_inputs_alone_need_no_tuple(shape: tuple[int, ...]) -> None:
    array = numbers_of(11, shape, "float64")
    bare: tuple[Any, ...] = (array, list(array), tuple_less(array), array.tolist())
    if len(shape) == 2:
        bare = bare[:3]  # in a list of lists of lists an example would be (x, y)
    for data in bare:
        source = source_open(data, "data.train", HERE)
        assert_same(source.fetch(np.array([10, 3])), expected((array,), np.array([10, 3])), "")


def tuple_less(array: np.ndarray) -> Any:
    items = Items((array,))
    return type("Bare", (), {"__len__": lambda _: len(array), "__getitem__": bare_item(items)})()


def bare_item(items: Items) -> Callable[[Any, int], Any]:
    return lambda _, index: items[index][0]


# Training

NUM_EXAMPLES = 18  # the second batch has 2 examples for 3 virtual nodes
NUM_VIRTUAL_NODES = 3


def nested_inputs() -> keras.Model:
    """Take `{"pixels": ..., "more": (codes, flags)}`; give one value per time step."""
    pixels = keras.Input((3, 4), dtype="uint8", name="pixels")
    codes = keras.Input((), dtype="int32", name="codes")
    flags = keras.Input((3,), dtype="bool", name="flags")
    embedded = keras.layers.RepeatVector(3)(keras.layers.Embedding(9, 2)(codes))
    marked = keras.layers.Reshape((3, 1))(flags)
    joined = keras.layers.Concatenate()([pixels, embedded, marked])
    outputs = keras.layers.Dense(1)(keras.layers.Dense(3, activation="tanh")(joined))
    model = keras.Model({"pixels": pixels, "more": (codes, flags)}, outputs)
    model.compile("adam", "mse", weighted_metrics=["mae"])
    return model


def tuple_outputs() -> keras.Model:
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    yes = keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = keras.Model(inputs, (yes, keras.layers.Dense(1)(hidden)))
    model.compile(keras.optimizers.SGD(0.1), ["binary_crossentropy", "mse"])
    return model


RANDOM = np.random.default_rng(8)
VALUES = RANDOM.normal(size=(NUM_EXAMPLES, 4))
FLAGS = RANDOM.random((NUM_EXAMPLES, 3)) > 0.5
NESTED = {
    "pixels": RANDOM.integers(0, 255, (NUM_EXAMPLES, 3, 4)).astype("uint8"),
    "more": (RANDOM.integers(0, 9, NUM_EXAMPLES), FLAGS),
}
FIRST, SECOND = {"first": VALUES, "second": VALUES**2}, VALUES[:, :1] > 0
CASES: dict[str, tuple[Callable[[], keras.Model], Parts]] = {
    "plain": (test_functions.plain, (VALUES, VALUES[:, :1])),
    "weights of time steps": (nested_inputs, (NESTED, VALUES[:, :3, None], FLAGS * 2.0)),
    "weights for all outputs": (
        test_functions.two_outputs,
        (FIRST, {"low": VALUES[:, :1], "high": SECOND.astype("uint8")}, VALUES[:, 1] ** 2),
    ),
    "weights of each output": (
        tuple_outputs,
        (VALUES, (SECOND, VALUES[:, 1:2]), (VALUES[:, 1] ** 2, VALUES[:, 2] ** 2)),
    ),
}


@pytest.mark.parametrize("case", some(CASES, CASES.keys() - {"weights of time steps"}))
def test_every_kind_trains_the_same_bits(case: str) -> None:
    build, parts = CASES[case]
    keras.utils.set_random_seed(4)
    epoch = EpochByVirtualNodes(build(), parts, NUM_VIRTUAL_NODES)
    before = [np.asarray(variable.value).copy() for variable in epoch.state.variables]
    seen = {}
    for kind, make in KINDS.items():
        epoch.state.put(before)
        epoch.data = of_kind(epoch.data, make(parts, 5))
        logs = epoch.run()
        assert np.isfinite(list(logs.values())).all()
        seen[kind] = [np.asarray(value).tobytes() for value in epoch.state.capture()], logs
    assert seen["arrays"][0] != [value.tobytes() for value in before]
    assert {kind: bits == seen["arrays"] for kind, bits in seen.items()} == dict.fromkeys(
        KINDS, True
    )


def of_kind(data: JobData, given: Any) -> JobData:
    """Give the same job with its examples, for training and validation, from another kind."""
    source = source_open(given, "data.train", HERE)
    return JobData(data.spec, data.schedule, source, source, data.example_specs, data.num_seeds)
