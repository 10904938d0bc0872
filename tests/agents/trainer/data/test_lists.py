"""Lists, and all else with a length and items: what they mean, and what is refused by name."""

from __future__ import annotations

from array import array as packed
from collections import UserDict, UserList, deque, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.sparse import csr_matrix

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.data.sources import source_open
from tests.agents.trainer.data_kinds import Batches, Items, Parts, RefilledBatches, RefilledItems

HERE = Path(__file__).parent
Pair = namedtuple("Pair", "x y")


def column(num_rows: int, width: int) -> np.ndarray:
    return np.arange(num_rows * width, dtype="float64").reshape(num_rows, width)


def layout(data: Any) -> str:
    """Read the whole data; give types and shapes."""
    source = source_open(data, "data.train", HERE)
    parts = source.fetch(np.arange(len(source)))
    described = keras.tree.map_structure(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", parts)
    return str(described).replace("'", "").replace("float32", "").replace(",)", ")")


def refusal(data: Any) -> JobCodeError:
    with pytest.raises(JobCodeError) as caught:
        layout(data)
    return caught.value


class Doubled(list[float]):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) * 2, index


class ArrayLike:
    """A table of columns: only as an array it has rows."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, name: Any) -> Any:
        raise KeyError(name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values


VECTOR, X, Y = column(4, 1)[:, 0], column(5, 2), column(5, 1)[:, 0]


class Keyed(Items):
    """Finds items by name: the error comes from no line of the job's code."""

    __getitem__ = {"a": (X,)}.__getitem__  # type: ignore[assignment]


READINGS: dict[str, tuple[Any, str]] = {
    # A list is examples.
    "many": ([(VECTOR, 1)] * 800, "([800, 4], int64[800])"),
    "weighted": ([(VECTOR, 1, 0.5)] * 9, "([9, 4], int64[9], [9])"),
    "nested dicts": (
        [({"a": VECTOR, "b": {"c": 1, "d": (True, 2.0)}}, {"e": 1})] * 5,
        "({a: [5, 4], b: {c: int64[5], d: (bool[5], [5])}}, {e: int64[5]})",
    ),
    "three": ([(VECTOR, 1)] * 3, "([3, 4], int64[3])"),
    "two": ([(VECTOR, 1)] * 2, "([2, 4], int64[2])"),
    "two, each of two equal vectors": ([(VECTOR, VECTOR)] * 2, "([2, 4], [2, 4])"),
    "one": ([(VECTOR, 1)], "([1, 4], int64[1])"),
    "one input": ([(VECTOR,)], "([1, 4])"),
    "named tuples": ([Pair(VECTOR, 1)] * 2, "([2, 4], int64[2])"),
    "pairs in lists": ([[[1, 2, 3], 0], [[1, 2, 4], 1]], "(int64[2, 3], int64[2])"),
    "numbers": ([1, 2, 3], "(int64[3])"),
    "numbers without dimensions": ([np.array(1.0)] * 2, "([2])"),
    "rows of numbers": ([[1.0, 2.0, 3.0]] * 4, "([4, 3])"),
    "arrays": ([VECTOR] * 4, "([4, 4])"),
    "dicts of numbers": ([{"a": 1, "b": [1, 2]}] * 2, "({a: int64[2], b: int64[2, 2]})"),
    "dicts of arrays": ([{"a": VECTOR}] * 4, "({a: [4, 4]})"),
    "tensors": ([(tf.ones(2), tf.constant(1))] * 4, "([4, 2], int32[4])"),
    "whole and broken numbers": ([(1, True), (0.5, 2)], "([2], int64[2])"),
    "text": ([("cat", 1)] * 4, "(object[4], int64[4])"),
    "bytes": ([(b"cat", 1)] * 4, "(object[4], int64[4])"),
    "text alone": (["cat", "a dog"], "(object[2])"),
    "a list of text, and labels": ((["cat", "a dog"], [0, 1]), "(object[2], int64[2])"),
    "rows of text": ([["cat", "dog"]] * 4, "(object[4, 2])"),
    "text and a number in lists": ([["cat", 1]] * 4, "(object[4], int64[4])"),
    "tensors of text": ([(tf.constant("a"), 1)] * 4, "(object[4], int64[4])"),
    "text beside numbers": ([({"a": "cat", "b": 1.0},)] * 4, "({a: object[4], b: [4]})"),
    # Keras reads lists of whole arrays like this, and no examples look like this.
    "x and y": ([X, Y], "([5, 2], [5])"),
    "x, y and weights": ([X, Y[:, None], Y], "([5, 2], [5, 1], [5])"),
    "x, y and None": ([X, Y, None], "([5, 2], [5])"),
    "two inputs and y": ([(X, X), Y], "(([5, 2], [5, 2]), [5])"),
    # A tuple is whole arrays.
    "tuple": ((X, X), "([5, 2], [5, 2])"),
    "tuple of one": ((X,), "([5, 2])"),
    "named tuple": (Pair(X, Y), "([5, 2], [5])"),
    # So is what names its inputs, or is an array itself.
    "mapping": (UserDict(a=X), "({a: [5, 2]})"),
    "table": (ArrayLike(X), "([5, 2])"),
    "small floats": ((tf.ones((3, 2), tf.bfloat16), X[:3].astype("float16")), "([3, 2], [3, 2])"),
    # All else with a length and items is examples.
    "deque": (deque([(VECTOR, 1)] * 2), "([2, 4], int64[2])"),
    "deque of two arrays": (deque([VECTOR, VECTOR]), "([2, 4])"),
    "user list": (UserList([VECTOR, VECTOR]), "([2, 4])"),
    "list with items of its own": (Doubled([1.0, 2.0]), "([2], int64[2])"),
    "range": (range(5), "(int64[5])"),
    "packed": (packed("d", [1, 2, 3]), "([3])"),
}


@pytest.mark.parametrize("case", READINGS)
def test_data_is_read_as_documented(case: str) -> None:
    data, expected = READINGS[case]
    assert layout(data) == expected


def test_a_list_gives_its_items_in_their_order() -> None:
    examples = [({"a": VECTOR + row, "b": {"c": row}}, row % 2, row / 2) for row in range(7)]
    source = source_open(examples, "data.train", HERE)
    x, y, weight = source.fetch(np.array([6, 1]))
    assert x["a"].tolist() == [(VECTOR + 6).tolist(), (VECTOR + 1).tolist()]
    assert (x["b"]["c"].tolist(), y.tolist(), weight.tolist()) == ([6, 1], [0, 1], [3.0, 0.5])


RAGGED_ROWS = np.array([[1, 2], [3]], dtype=object)
STRUCTURED = np.zeros(4, [("a", "f4"), ("b", "i4")])
REFUSALS: dict[str, tuple[Any, str, str, str]] = {
    "equal arrays": ([X, X], "ambiguous_data", "", r"\(x, y\).*\[\(x0,\), \(x1,\)\]"),
    "three equal arrays": ([X] * 3, "ambiguous_data", "", "examples or whole arrays"),
    "one array": ([X], "ambiguous_data", "", r"\(x,\)"),
    "equal dicts": ([{"a": X}] * 2, "ambiguous_data", "", "tuples in a list"),
    "rows of numbers": ([[1, 2], [3, 4]], "ambiguous_data", "", "tuples in a list"),
    "arrays of two lengths": ([X, Y[:3]], "data_shape", "[1].x", "Nor can .* x: 5; y: 3"),
    "tuple of examples": (((VECTOR, 1),) * 9, "data_structure", "", "got 9 parts.*examples into a"),
    "tuples of four": ([(1, 2, 3, 4)] * 5, "data_structure", "[0]", "into an array"),
    "list of inputs": (([VECTOR] * 9, np.arange(9)), "length_mismatch", "", "np.stack"),
    "nothing": ([], "empty_data", "", "no examples"),
    "no labels": ((X, []), "empty_data", ".y", "empty list"),
    "no inputs": ([({}, 1)] * 4, "empty_data", "[0].x", "empty dict"),
    "text for labels": ([(1, "a")] * 4, "data_type", "[0].y", "in x alone; turn .* into numbers"),
    "text in the middle": ([(1, 1), (1, "a")] * 4, "data_type", "[1].y", "text into numbers"),
    "text for weights": ([(1, 1, "a")] * 4, "data_type", "[0].sample_weight", "text into numbers"),
    "text, then a number": ([("a", 1), (2.0, 1)], "data_type", "[1].x", "numbers, but text in"),
    "a number, then text": ([(2.0, 1), ("a", 1)], "data_type", "[1].x", "text, but numbers in"),
    "text and numbers": (np.array(["a", 2], object), "data_type", ".x", r"2 \(int\) among text"),
    "text and None": (np.array([b"a", None], object), "data_type", ".x", "None .* among text"),
    "text and nan": (np.array([np.nan, "a"], object), "data_type", ".x", r"nan \(float\) among"),
    "half a character": (["a", "\ud800"], "data_type", ".x", "UTF-8 cannot encode"),
    "a text": ("cat", "unknown_data", "", "a list of examples"),
    "bytes": (b"cat", "unknown_data", "", "a list of examples"),
    "a text of NumPy's": (np.str_("cat"), "unknown_data", "", "a list of examples"),
    "no weight of no output": (
        [(1, (2, 3), (1.0, (None,)))] * 4,
        "data_structure",
        "[0].sample_weight",
        "weights for 0, 1.0, but outputs 0, 1; .* None where there are none",
    ),
    "no input": ([((1, None), 2)] * 4, "data_type", "[0].x[1]", "leave an optional input .* out"),
    "complex numbers": ([1j, 2j], "data_type", "[0].x", r"complex128 .*x\.real and x\.imag"),
    "sparse matrix": ((csr_matrix(X), Y), "data_type", ".x", r"in build: \.toarray\(\)"),
    "huge numbers": ([(1, 2**70)] * 4, "data_type", "[0].y", "object"),
    "structured array": (STRUCTURED, "data_type", ".x", r"name: data\[name\]"),
    "ragged array": (RAGGED_ROWS, "data_type", ".x", "pad or crop rows"),
    "a class": (Items, "user_code", "", r"len\(data\) raised TypeError"),
    "names for items": (Keyed((X,)), "user_code", "", r"data\[0\] raised KeyError"),
    "set": ({1, 2}, "unknown_data", "", r"list of examples \[\(x0, y0\)"),
    "generator": ((row for row in X), "unknown_data", "", "iterator.*only once"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_data_without_one_meaning_is_refused_by_name(case: str) -> None:
    data, code, place, message = REFUSALS[case]
    error = refusal(data)
    assert (error.code, error.field) == (code, f"data.train{place}")
    with pytest.raises(JobCodeError, match=message):
        raise error


# Items that differ from the first one


class Differing(Items):
    """Changes what item 2 of 4 holds."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__(({"a": column(4, 2)}, np.arange(4)))
        self.change = change

    def __getitem__(self, index: int) -> Parts:
        example = super().__getitem__(index)
        changed: Parts = self.change(example) if index == 2 else example
        return changed


class DifferingBatches(Batches):
    """Changes what batch 2 of 4 holds; a batch is one example."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__(({"a": column(4, 2)}, np.arange(4)), 1)
        self.change = change

    def __getitem__(self, index: int) -> Parts:
        batch = super().__getitem__(index)
        if index != 2:
            return batch
        changed = self.change(keras.tree.map_structure(lambda leaf: leaf[0], batch))
        stacked: Parts = keras.tree.map_structure(lambda leaf: np.asarray(leaf)[None], changed)
        return stacked


def listed(change: Callable[[Any], Any]) -> list[Any]:
    items = Differing(change)
    return [items[row] for row in range(len(items))]


CHANGES: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "longer": (lambda e: ({"a": np.ones(3)}, e[1]), "data_shape", ".x['a']"),
    "flatter": (lambda e: ({"a": np.float64(1)}, e[1]), "data_shape", ".x['a']"),
    "other keys": (lambda e: ({"b": e[0]["a"]}, e[1]), "data_structure", ".x"),
    "no dict": (lambda e: (e[0]["a"], e[1]), "data_structure", ".x"),
    "two labels": (lambda e: (e[0], (e[1], e[1])), "data_structure", ".y"),
    "weighted": (lambda e: (*e, np.float64(1)), "data_structure", ""),
    "inputs alone": (lambda e: (e[0],), "data_structure", ""),
    "broken number": (lambda e: (e[0], np.float64(0.5)), "data_type", ".y"),
}


@pytest.mark.parametrize("make", [listed, Differing, DifferingBatches])
@pytest.mark.parametrize("change", CHANGES)
def test_an_item_that_differs_from_the_first_is_named(
    change: str, make: Callable[[Callable[[Any], Any]], Any]
) -> None:
    differ, code, place = CHANGES[change]
    if (change, make) == ("broken number", listed):  # a list is looked at as a whole
        assert layout(make(differ)) == "({a: [4, 2]}, [4])"
        return
    with pytest.raises(JobCodeError, match="the first item") as caught:
        source_open(make(differ), "data.train", HERE).fetch(np.array([2]))
    assert (caught.value.code, caught.value.field) == (code, f"data.train[2]{place}")


@pytest.mark.parametrize("make", [Differing, DifferingBatches])
def test_smaller_types_are_widened_to_those_of_the_first_item(
    make: Callable[[Callable[[Any], Any]], Any],
) -> None:
    data = make(lambda e: ({"a": e[0]["a"].astype("int32")}, np.uint8(e[1])))
    x, y = source_open(data, "data.train", HERE).fetch(np.array([2]))
    assert (x["a"].dtype, y.dtype) == (np.float32, np.int64)
    assert (x["a"].tolist(), y.tolist()) == ([[4.0, 5.0]], [2])


# Arrays that are filled anew


class NoisyItems(RefilledItems):
    def __getitem__(self, index: int) -> Parts:
        self.parts[0][:] += 1.0
        return super().__getitem__(index)


class NoisyBatches(RefilledBatches):
    def __getitem__(self, index: int) -> Parts:
        self.parts[0][:] += 1.0
        return super().__getitem__(index)


@pytest.mark.parametrize("make", [NoisyItems, lambda parts: NoisyBatches(parts, 2)])
def test_changing_values_show_in_arrays_that_are_filled_anew(make: Callable[[Parts], Any]) -> None:
    assert refusal(make((column(5, 2),))).code == "nondeterministic_data"
