"""Parts of predictions: which of them make a whole, and the whole that they make."""

from __future__ import annotations

import io
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.protocol.prediction_parts import (
    PartShare,
    PredictionPart,
    examples_safe,
    part_of,
    parts_join,
    parts_shares,
)


def test_a_part_is_read_from_its_own_name_only() -> None:
    assert part_of("predictions-20-40.npz") == PredictionPart(20, 40)
    assert PredictionPart(20, 40).name == "predictions-20-40.npz"
    for name in ("predictions.npz", "predictions-40-20.npz", "predictions-5-5.npz"):
        assert part_of(name) is None
    for name in ("predictions-020-40.npz", "../predictions-0-4.npz", "predictions-0-4.npz\n"):
        assert part_of(name) is None


def test_parts_count_as_far_as_there_is_no_gap() -> None:
    assert examples_safe([]) == 0
    assert examples_safe([PredictionPart(5, 9)]) == 0
    assert examples_safe([PredictionPart(9, 12), PredictionPart(0, 4), PredictionPart(4, 8)]) == 8
    overlapping = [
        PredictionPart(0, 6),
        PredictionPart(4, 10),
        PredictionPart(0, 3),
        PredictionPart(6, 9),
        PredictionPart(10, 11),
    ]
    assert parts_shares(overlapping) == [
        PartShare(PredictionPart(0, 6), 0),
        PartShare(PredictionPart(4, 10), 2),
        PartShare(PredictionPart(10, 11), 0),
    ]


def files_of(whole: dict[str, Any], parts: list[PredictionPart]) -> dict[PredictionPart, bytes]:
    files = {}
    for part in parts:
        stream = io.BytesIO()
        np.savez(stream, **{name: rows[part.first : part.end] for name, rows in whole.items()})
        files[part] = stream.getvalue()
    return files


def joined(files: dict[PredictionPart, bytes], num_examples: int) -> bytes:
    target = io.BytesIO()
    parts_join(files, num_examples, lambda part: io.BytesIO(files[part]), target)
    return target.getvalue()


@given(
    cuts=st.sets(st.integers(1, 16), max_size=5),
    extra=st.lists(st.tuples(st.integers(0, 15), st.integers(1, 17)), max_size=3),
)
def test_the_whole_has_every_row_once_whatever_the_cuts(
    cuts: set[int], extra: list[tuple[int, int]]
) -> None:
    generator = np.random.default_rng(0)
    whole: dict[str, Any] = {
        "label": np.arange(17, dtype=np.int64),
        "scores": generator.normal(size=(17, 2, 3)).astype(np.float32),
        "nothing": np.zeros((17, 0), np.float16),
    }
    edges = [0, *sorted(cuts), 17]
    parts = [PredictionPart(low, high) for low, high in itertools.pairwise(edges)]
    parts += [PredictionPart(first, end) for first, end in extra if first < end]
    content = joined(files_of(whole, parts), 17)
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        assert sorted(archive.files) == sorted(whole)
        for name, rows in whole.items():
            assert archive[name].dtype == rows.dtype
            np.testing.assert_array_equal(archive[name], rows)
    assert content == joined(files_of(whole, [PredictionPart(0, 17)]), 17)


def test_a_gap_or_a_part_of_another_shape_makes_no_whole() -> None:
    whole = {"scores": np.zeros((10, 3), np.float32)}
    files = files_of(whole, [PredictionPart(0, 4), PredictionPart(5, 10)])
    with pytest.raises(ValueError, match="4 of 10 examples"):
        joined(files, 10)
    files = files_of(whole, [PredictionPart(0, 4)])
    files |= files_of({"scores": np.zeros((10, 2), np.float32)}, [PredictionPart(4, 10)])
    with pytest.raises(ValueError, match="predictions-4-10"):
        joined(files, 10)
    short = files_of(whole, [PredictionPart(0, 4)])[PredictionPart(0, 4)]
    with pytest.raises(ValueError, match="predictions-0-10"):
        joined({PredictionPart(0, 10): short}, 10)
