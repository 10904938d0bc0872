"""Examples from a `tf.data.Dataset`: read once, front to back, into memory.

A `tf.data.Dataset` has no random access, so any example is available to any trainer only if every
trainer keeps a whole copy in memory and reads the data set once at its start.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError, user_code
from agents.trainer.data.arrays import same_values
from agents.trainer.data.nests import common_length, is_text, parts_arrays, refuse_unlike

#: Most bytes of arrays that a data set may hold.
MATERIALISED_LIMIT_BYTES = 2 * 1024**3
#: Most batches that are read, so that an endless data set of tiny batches ends too.
MATERIALISED_LIMIT_BATCHES = 1_000_000
#: Number of batches that are read twice, to check that two passes agree.
COMPARED_BATCHES = 4
WIDTH_HINT = (
    ": .padded_batch(n, padded_shapes) or .to_tensor(shape=...) with the longest length, not None"
)
BATCH_HINT = "if the tf.data.Dataset gives single examples, add .batch(n) as for fit"


def dataset_read(
    dataset: tf.data.Dataset, field: str, code_dir: Path
) -> tuple[tuple[Any, ...], int]:
    """Read a whole batched data set.

    Returns:
        `(x,)`, `(x, y)` or `(x, y, sample_weight)` of nested arrays; the size of the first batch,
        or of one that differs from it and is no shorter last one.

    Raises:
        JobCodeError: the data set is infinite, too large, not batched, not deterministic, or fails.
    """
    _refuse_by_name(dataset, field)
    with user_code(code_dir, field, "reading the tf.data.Dataset"):
        _refuse_differing_passes(dataset, field)
        batches = _read_all(dataset, field)
    if not batches:
        raise JobCodeError("empty_data", field, "there are no batches in the data")
    joined: tuple[Any, ...] = keras.tree.map_structure(
        lambda *leaves: np.concatenate(leaves), *batches
    )
    first, *others = (len(keras.tree.flatten(batch)[0]) for batch in batches)
    odd = [size for size in others[:-1] if size != first] + [
        size for size in others if size > first
    ]
    return joined, (odd or [first])[0]


def _refuse_by_name(dataset: tf.data.Dataset, field: str) -> None:
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise JobCodeError(
            "infinite_data",
            field,
            "the tf.data.Dataset never ends; remove .repeat() or add .take()",
        )
    if dataset.options().deterministic is False:
        raise JobCodeError(
            "nondeterministic_data",
            field,
            "the tf.data.Dataset has options().deterministic = False; leave it at its default",
        )
    for spec in tf.nest.flatten(dataset.element_spec):
        if isinstance(spec, tf.NoneTensorSpec):  # (x, y, None)
            continue
        if not isinstance(spec, tf.TensorSpec):
            raise JobCodeError(
                "data_type",
                field,
                f"{type(spec).__name__} in the tf.data.Dataset; make it dense: pad ragged rows "
                "with .to_tensor(), or examples with .padded_batch(n, padded_shapes); of sparse "
                "ones make tf.sparse.to_dense(...) in a .map()",
            )
        if spec.shape.rank == 0:
            raise JobCodeError(
                "unbatched_data",
                field,
                "the tf.data.Dataset gives single values, not batches; add .batch(n) as for fit",
            )


def _refuse_differing_passes(dataset: tf.data.Dataset, field: str) -> None:
    once, again = (list(islice(dataset.as_numpy_iterator(), COMPARED_BATCHES)) for _ in range(2))
    if len(once) != len(again) or not same_values(once, again):
        raise JobCodeError(
            "nondeterministic_data",
            field,
            "two passes over the tf.data.Dataset gave different batches; remove .shuffle() or give "
            "shuffle=False (the platform shuffles from the job's seed), and move random "
            "augmentation into the model",
        )


def _read_all(dataset: tf.data.Dataset, field: str) -> list[tuple[Any, ...]]:
    batches: list[tuple[Any, ...]] = []
    num_bytes = 0
    for number, element in enumerate(dataset.as_numpy_iterator()):
        path = f"{field}[{number}]"
        parts = parts_arrays(element, path)
        common_length(parts, path, BATCH_HINT)
        if batches:
            refuse_unlike(parts, batches[0], path, num_axes=1, is_typed=False, hint=WIDTH_HINT)
        num_bytes += sum(map(_num_bytes, keras.tree.flatten(parts)))
        if num_bytes > MATERIALISED_LIMIT_BYTES or number >= MATERIALISED_LIMIT_BATCHES:
            raise JobCodeError(
                "data_too_large",
                field,
                f"the tf.data.Dataset holds more than {MATERIALISED_LIMIT_BYTES >> 20} MiB (read "
                f"up to batch {number}), and every trainer would keep it in memory; give a "
                "keras.utils.PyDataset or an object with __len__ and __getitem__ instead",
            )
        batches.append(parts)
    return batches


def _num_bytes(array: np.ndarray) -> int:
    """Return the bytes of an array in memory, with the texts that it points to."""
    return array.nbytes + (sum(map(sys.getsizeof, array.flat)) if is_text(array) else 0)
