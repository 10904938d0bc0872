"""Nests of arrays of numbers, or text in x, as in items of a job's data; errors name the path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError

PART_NAMES = ("x", "y", "sample_weight")
#: Booleans, signed and unsigned integers, floats.
NUMBER_KINDS = frozenset("biuf")
#: Text and bytes of fixed width, text of any width.
TEXT_KINDS = frozenset("UST")
STACK_HINT = "a list of arrays or lists is several inputs or outputs; np.stack makes one of it"


def parts_arrays(item: Any, path: str, min_rank: int = 1) -> tuple[Any, ...]:
    """Convert one item of a data set to `(x,)`, `(x, y)` or `(x, y, sample_weight)` of arrays.

    Args:
        item: an example, a batch, or, for data in arrays, the whole data.
        path: the item's place, for error messages.
        min_rank: 0 for an example, 1 for an item with a row per example.

    Raises:
        JobCodeError: the item has other parts, or a part holds values other than numbers; x may
            hold text.
    """
    arrays: tuple[Any, ...] = ()
    for part, name in zip(parts_split(item, path), PART_NAMES, strict=False):
        is_x = name == "x"
        given = part if is_x else _no_numbers_for_none(part, arrays[0], min_rank)
        arrays += (nested_arrays(given, f"{path}.{name}", min_rank, takes_text=is_x),)
    if len(arrays) == len(PART_NAMES):  # 1 in one place and 0.5 in another are of one type
        floatx = keras.config.floatx()
        weights = keras.tree.map_structure(lambda leaf: leaf.astype(floatx, copy=False), arrays[2])
        arrays = (*arrays[:2], weights)
    return weights_spread(arrays, path) if len(arrays) == len(PART_NAMES) else arrays


def parts_split(item: Any, path: str) -> tuple[Any, ...]:
    """Split an item as Keras does: a tuple or list is (x,), (x, y) or (x, y, w), all else is x.

    A list of plain numbers, or of plain texts, counts as one array, so it is x.

    Raises:
        JobCodeError: there are no parts or too many.
    """
    if not isinstance(item, (tuple, list)) or (isinstance(item, list) and is_value_list(item)):
        return (item,)
    parts = tuple(item)
    while len(parts) > 1 and parts[-1] is None:  # (x, y, None), as pack_x_y_sample_weight makes it
        parts = parts[:-1]
    if not 1 <= len(parts) <= len(PART_NAMES):
        raise JobCodeError(
            "data_structure",
            path,
            f"expected (x, y) or (x, y, sample_weight), got {len(parts)} parts; put several inputs "
            "into one tuple or dict: ((a, b), y), numbers of one input into an array, and examples "
            "into a list: [(x0, y0), (x1, y1)]",
        )
    return parts


def _no_numbers_for_none(part: Any, x: Any, min_rank: int) -> Any:
    """Replace None, for an output without labels or weights, by arrays of no numbers.

    `keras_private.batch_of` gives None to Keras again.
    """
    is_nest = isinstance(part, (dict, tuple, list)) and not is_value_list(part)
    if not is_nest or all(leaf is not None for leaf in keras.tree.flatten(part)):
        return part
    num_rows = keras.tree.flatten(x)[0].shape[:min_rank]
    absent = np.zeros((*num_rows, 0), keras.config.floatx())
    return keras.tree.map_structure(lambda leaf: absent if leaf is None else leaf, part)


def _tuple_like(value: Any, items: Iterable[Any]) -> Any:
    """Make a tuple, a named one if `value` is one."""
    named: Callable[[Iterable[Any]], Any] = getattr(type(value), "_make", tuple)
    return named(items)


def nested_arrays(value: Any, path: str, min_rank: int = 1, *, takes_text: bool) -> Any:
    """Convert nested dicts, tuples and lists to the same nest with arrays as leaves.

    Lists become tuples, as in Keras; named tuples stay; a list of plain numbers or texts is one
    array.

    Args:
        value: the user's data.
        path: its place, for error messages.
        min_rank: 1 for a batch of examples, 0 for a single example.
        takes_text: arrays of text are taken, too, as arrays of objects: bytes in UTF-8.

    Raises:
        JobCodeError: a leaf is not an array of numbers, or text, or has fewer dimensions.
    """
    inner = partial(nested_arrays, min_rank=min_rank, takes_text=takes_text)
    if isinstance(value, (Mapping, tuple, list)) and not value:
        raise JobCodeError("empty_data", path, f"an empty {type(value).__name__} holds no data")
    if isinstance(value, Mapping):
        return {key: inner(item, f"{path}[{key!r}]") for key, item in value.items()}
    is_structure = isinstance(value, tuple) and min_rank == 0  # (1.0, 2.0): two outputs' targets
    if isinstance(value, (tuple, list)) and (is_structure or not is_value_list(value)):
        items = (inner(item, f"{path}[{i}]") for i, item in enumerate(value))
        return _tuple_like(value, items)
    array = leaf_array(value, path, takes_text)
    if array.ndim < min_rank:
        raise JobCodeError(
            "data_structure", path, f"got the single value {value!r:.60}; give one per example"
        )
    return array


def leaf_array(value: Any, path: str, takes_text: bool) -> np.ndarray:
    """Convert one leaf to an array of numbers, or of text where `takes_text`.

    Raises:
        JobCodeError: the leaf is neither.
    """
    is_plain = isinstance(value, (int, float, complex, str, bytes, np.generic, tuple, list))
    if not is_plain and not hasattr(value, "__array__"):
        hint = f"turn it into a dense NumPy array in build{_dense_call(value)}"
        if value is None:
            hint = (
                "it may stand only at the end of (x, y, None), for the labels of an output without "
                "a loss and for the weights of one output; leave an optional input that is not "
                "given out of the model"
            )
        name = "None" if value is None else type(value).__name__
        raise JobCodeError("data_type", path, f"{name} is not an array; {hint}")
    try:
        array = np.asarray(value, object if takes_text and _is_text_value(value) else None)
    except Exception as error:  # the conversion runs the object's own code, which may fail
        reason = f"{type(value).__name__} cannot be turned into a NumPy array ({error!s:.200})"
        raise JobCodeError("data_type", path, f"{reason}; do it in build") from error
    if array.dtype.kind in NUMBER_KINDS:
        return array
    if array.dtype.name == "bfloat16":  # not one of NumPy's number kinds
        return array.astype(keras.config.floatx())
    if takes_text and (array.dtype.kind in TEXT_KINDS or _holds_text(array)):
        return _text_array(array, path)
    raise JobCodeError(
        "data_type",
        path,
        f"values of type {array.dtype} cannot be trained on; {_type_hint(array.dtype)}",
    )


def _is_text_value(value: Any) -> bool:
    """Return whether a value is text, of which an array of fixed width would cut off last zeros."""
    of = value[0] if isinstance(value, (tuple, list)) and value else value
    return isinstance(of, (str, bytes)) or getattr(value, "dtype", None) == tf.string


def _holds_text(array: np.ndarray) -> bool:
    is_object = array.dtype.kind == "O"
    return is_object and any(isinstance(value, (str, bytes)) for value in array.flat)


def _text_array(array: np.ndarray, path: str) -> np.ndarray:
    """Return an array of text as objects, bytes in UTF-8: what TensorFlow takes as `tf.string`."""
    texts = array.ravel().tolist()
    for value in texts:
        if not isinstance(value, (str, bytes)):
            raise JobCodeError(
                "data_type",
                path,
                f"holds {value!r:.60} ({type(value).__name__}) among text; put text in the place "
                "of what is missing, and give numbers as an input of their own",
            )
    try:
        encoded = [value.encode() if isinstance(value, str) else value for value in texts]
    except UnicodeEncodeError as error:
        reason = f"holds text that UTF-8 cannot encode ({error!s:.100}); take those characters out"
        raise JobCodeError("data_type", path, reason) from error
    objects = np.empty(len(encoded), object)
    objects[:] = encoded
    return objects.reshape(array.shape)


def _dense_call(value: Any) -> str:
    """Name the call that makes an array of a sparse or ragged object, if it is a known one."""
    if hasattr(value, "toarray"):  # SciPy's sparse matrices
        return ": .toarray()"
    calls = {
        "SparseTensor": ": tf.sparse.to_dense(...).numpy()",
        "RaggedTensor": ": .to_tensor().numpy(), and mask the padding (Embedding(mask_zero=True))",
    }
    return calls.get(type(value).__name__, "")


def _type_hint(dtype: np.dtype) -> str:
    if dtype.names:
        return "give its fields as a dict: {name: data[name] for name in data.dtype.names}"
    text = "text may stand in x alone; turn other text into numbers in build, as by StringLookup"
    if dtype.kind in TEXT_KINDS:
        return text
    if dtype.kind == "O":
        return f"pad or crop rows of different lengths to one; {text}"
    if dtype.kind == "c":
        return "give the real and the imaginary part as two arrays, x.real and x.imag"
    return "turn them into numbers in build"


def as_floatx(array: np.ndarray) -> np.ndarray:
    """Cast floats to Keras's `floatx`; leave other numbers as they are."""
    if array.dtype.kind == "f":
        return array.astype(keras.config.floatx(), copy=False)
    return array


def common_length(parts: tuple[Any, ...], field: str, hint: str = STACK_HINT) -> int:
    """Return dimension 0 of all arrays in `parts`.

    Args:
        hint: what may be wrong where the lengths differ.

    Raises:
        JobCodeError: the lengths differ, or there are no examples.
    """
    lengths = {len(leaf) for part in parts for leaf in keras.tree.flatten(part)}
    if len(lengths) > 1:
        sizes = [
            f"{name}: {', '.join(str(len(leaf)) for leaf in keras.tree.flatten(part)):.100}"
            for part, name in zip(parts, PART_NAMES, strict=False)
        ]
        raise JobCodeError(
            "length_mismatch",
            field,
            f"all arrays must have the same number of examples, got {'; '.join(sizes)} ({hint})",
        )
    length = lengths.pop() if lengths else 0
    if length == 0:
        raise JobCodeError("empty_data", field, "there are no examples in the data")
    return length


def weights_spread(parts: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    """Repeat the sample weights for every output when one array is given for several outputs.

    Raises:
        JobCodeError: there are several arrays of weights, but not one for each output.
    """
    x, y, weight = parts
    if keras.tree.is_nested(y) and not keras.tree.is_nested(weight):
        weight = keras.tree.map_structure(lambda _: weight, y)
    places, outputs = ([place for place, _ in keras.tree.flatten_with_path(part)]
                       for part in (weight, y))  # fmt: skip
    if keras.tree.is_nested(y) and places != outputs:
        raise JobCodeError(
            "data_structure",
            f"{path}.sample_weight",
            f"there are weights for {_places(places)}, but outputs {_places(outputs)}; give one "
            "array for all, or one for each output, None where there are none",
        )
    return x, y, weight


def _places(places: list[tuple[Any, ...]]) -> str:
    return ", ".join(".".join(map(str, place)) for place in places)


def is_value_list(value: Any) -> bool:
    """Return whether all entries are single numbers, or all text, so that they form one array."""
    if not isinstance(value, (tuple, list)):
        return False
    are_text = {isinstance(item, (str, bytes)) for item in value}
    return are_text == {True} or (
        are_text == {False} and all(isinstance(item, (int, float, np.generic)) for item in value)
    )


def refuse_unlike(
    item: tuple[Any, ...],
    first: tuple[Any, ...],
    path: str,
    num_axes: int = 0,
    is_typed: bool = True,
    hint: str = "",
) -> None:
    """Check that the parts of an item match the parts of the first item.

    Args:
        num_axes: number of leading dimensions that may differ: 0 for examples, 1 for batches.
        is_typed: also require that the first item's types can hold this item's values. Text and
            numbers are never of one type.
        hint: how to give arrays one shape.

    Raises:
        JobCodeError: the parts, their structure, shapes or types do not match.
    """
    if len(item) != len(first):
        given, wanted = (f"({', '.join(PART_NAMES[: len(parts)])})" for parts in (item, first))
        raise JobCodeError(
            "data_structure",
            path,
            f"holds {given}, the first item {wanted}; give every item the same parts",
        )
    for value, wanted_value, name in zip(item, first, PART_NAMES, strict=False):
        for leaf, wanted_leaf, place in _leaf_pairs(value, wanted_value, f"{path}.{name}"):
            _refuse_unlike_leaf(leaf, wanted_leaf, place, num_axes, is_typed, hint)


def _leaf_pairs(value: Any, first: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    """Walk two nests in parallel; yields pairs of arrays or of parts that differ in structure."""
    if isinstance(value, dict) and isinstance(first, dict) and value.keys() == first.keys():
        for key in value:
            yield from _leaf_pairs(value[key], first[key], f"{path}[{key!r}]")
    elif isinstance(value, tuple) and isinstance(first, tuple) and len(value) == len(first):
        for place, entries in enumerate(zip(value, first, strict=True)):
            yield from _leaf_pairs(*entries, f"{path}[{place}]")
    else:
        yield value, first, path


def _refuse_unlike_leaf(
    value: Any, first: Any, path: str, num_axes: int, is_typed: bool, hint: str
) -> None:
    is_array = isinstance(value, np.ndarray) and isinstance(first, np.ndarray)
    if not is_array or value.shape[num_axes:] != first.shape[num_axes:]:
        raise JobCodeError(
            "data_shape" if is_array else "data_structure",
            path,
            f"is {_described(value, num_axes)}, but {_described(first, num_axes)} in the first "
            f"item; give every item the same structure, padded or cropped to one shape{hint}",
        )
    if is_text(value) != is_text(first):
        raise JobCodeError(
            "data_type",
            path,
            f"is {_kind(value)}, but {_kind(first)} in the first item; give every item the same "
            "type",
        )
    if is_typed and first.dtype.kind != "f" and not np.can_cast(value.dtype, first.dtype, "safe"):
        raise JobCodeError(
            "data_type",
            path,
            f"is of type {value.dtype}, but of {first.dtype} in the first item; give every item "
            f"the same type, for example np.asarray(value, {value.dtype.name!r})",
        )


def is_text(array: np.ndarray) -> bool:
    """Return whether an array that was taken as data holds text, not numbers."""
    return array.dtype.kind == "O"


def _kind(array: np.ndarray) -> str:
    return "text" if is_text(array) else "numbers"


def array_bytes(array: np.ndarray) -> bytes:
    """Return the bytes of an array's values; an array of text holds only their addresses."""
    return repr(array.tolist()).encode() if is_text(array) else array.tobytes()


def _described(value: Any, num_axes: int) -> str:
    if isinstance(value, dict):
        return f"a dict with the keys {list(value)!s:.200}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    shape = value.shape[num_axes:]
    return f"an array of shape {shape}" if shape else "a single number"
