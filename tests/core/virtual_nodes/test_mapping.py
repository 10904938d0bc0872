"""Splitting batches and spreading virtual nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.virtual_nodes.mapping import even_bounds, even_mapping


def test_uneven_batch_by_hand() -> None:
    assert even_bounds(10, 4) == ((0, 2), (2, 5), (5, 7), (7, 10))


def test_short_last_batch_leaves_some_virtual_nodes_empty() -> None:
    assert even_bounds(2, 4) == ((0, 0), (0, 1), (1, 1), (1, 2))


def test_mapping_of_eight_on_three() -> None:
    assert even_mapping(8, 3) == ((0, 1), (2, 3, 4), (5, 6, 7))


def test_idle_accelerator_is_refused() -> None:
    with pytest.raises(ValueError, match="use at most as many accelerators as virtual nodes"):
        even_mapping(2, 3)


@given(total=st.integers(0, 500), parts=st.integers(1, 60))
def test_ranges_tile_the_whole_and_differ_by_at_most_one(total: int, parts: int) -> None:
    bounds = even_bounds(total, parts)
    assert [index for low, high in bounds for index in range(low, high)] == list(range(total))
    lengths = [high - low for low, high in bounds]
    assert max(lengths) - min(lengths) <= 1
