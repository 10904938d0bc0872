"""How many virtual nodes make a slice fit."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimates.memory import (
    GPU_CONTEXT_BYTES,
    TRAINER_BYTES,
    MemoryNeed,
    fit_of,
    largest_slice,
    line_fit,
    memory_need_read,
    virtual_nodes_needed,
)

MB = 1_000_000
#: 600 MB of process, 20 MB whatever the slice, 1 MB an example.
NEED = MemoryNeed(600 * MB, 20 * MB, 1 * MB, 8 * MB)


def memory_for(examples: int) -> int:
    """Give the memory of a CPU accelerator that has room for just so many examples."""
    return round((TRAINER_BYTES + 620 * MB + examples * MB + 1000) / 0.9)


def test_a_line_through_two_points() -> None:
    assert line_fit([(16, 36 * MB), (64, 84 * MB)]) == (20 * MB, 1 * MB)


def test_points_that_make_no_line_give_an_upper_one_through_zero() -> None:
    assert line_fit([(1, 5.0), (2, 5.0)]) == (0.0, 2.5)
    assert line_fit([(1, 1.0), (2, 4.0)]) == (0.0, 2.0)
    assert line_fit([(4, 8.0)]) == (0.0, 2.0)
    assert line_fit([(1, 0.0), (2, 0.0)]) == (0.0, 0.0)
    for points in ([(2, 1.0), (1, 1.0)], [(0, 1.0)], [(2, 1.0), (2, 2.0)], []):
        with pytest.raises(ValueError, match="ascend"):
            line_fit(points)


@pytest.mark.parametrize("extra", list(itertools.product((0, 1), repeat=3)))
def test_a_buffer_more_at_some_sizes_never_hides_what_an_example_needs(
    extra: tuple[int, ...],
) -> None:
    """Each size was seen with one or two buffers of 8 bytes an example, on a base of 16."""
    sizes = (1, 8, 16)
    peaks = [(size, 16.0 + 8 * size * (1 + more)) for size, more in zip(sizes, extra, strict=True)]
    base, slope = line_fit(peaks)
    assert base >= 0
    assert slope >= 7.4  # a buffer more at size 1 alone hides 8/15 of an example
    assert base + slope * 16 >= peaks[-1][1]
    assert base + slope * 64 >= 16 + 7.4 * 64


def test_the_fewest_virtual_nodes_that_fit() -> None:
    """Room for 100 examples: a batch of 1000 in 10 slices, one of 1001 in 11."""
    memory = memory_for(100)
    assert largest_slice(NEED, memory, is_gpu=False) == 100
    assert virtual_nodes_needed(NEED, memory, False, 1000) == 10
    assert virtual_nodes_needed(NEED, memory, False, 1001) == 11
    assert virtual_nodes_needed(NEED, memory, False, 7) == 1
    assert virtual_nodes_needed(NEED, memory_for(0) - 2 * MB, False, 7) is None


def test_a_gpu_holds_variables_and_activations_but_not_the_program() -> None:
    memory = round((GPU_CONTEXT_BYTES + 28 * MB + 50 * MB + 1000) / 0.75)
    assert largest_slice(NEED, memory, is_gpu=True) == 50


@pytest.mark.parametrize(("is_gpu", "share"), [(False, 0.9), (True, 0.75)])
def test_states_that_tuning_keeps_leave_less_for_a_slice(is_gpu: bool, share: float) -> None:
    """Five states of 8 MB take the place of 40 examples of 1 MB."""
    fixed = GPU_CONTEXT_BYTES + 28 * MB if is_gpu else TRAINER_BYTES + 620 * MB
    memory = round((fixed + 100 * MB + 1000) / share)
    assert largest_slice(NEED, memory, is_gpu) == 100
    tuned = replace(NEED, num_kept_states=5)
    assert largest_slice(tuned, memory, is_gpu) == 60
    assert virtual_nodes_needed(tuned, memory, is_gpu, 600) == 10
    assert virtual_nodes_needed(replace(NEED, num_kept_states=13), memory, is_gpu, 600) is None


def test_a_fit_says_what_was_asked_for_and_what_would_do() -> None:
    fit = fit_of(NEED, "cpu", memory_for(100), False, 1000, 4)
    assert (fit.num_virtual_nodes, fit.is_enough) == (10, False)
    assert fit.slice_bytes == TRAINER_BYTES + 870 * MB
    assert fit_of(NEED, "cpu", memory_for(100), False, 1000, 16).is_enough


@given(
    examples=st.integers(1, 500),
    batch=st.integers(1, 100_000),
    slope=st.floats(1e3, 1e7),
)
def test_it_fits_with_that_many_and_not_with_one_less(
    examples: int, batch: int, slope: float
) -> None:
    need = MemoryNeed(600 * MB, 20 * MB, slope)
    memory = round((TRAINER_BYTES + 620 * MB + (examples + 0.5) * slope) / 0.9)
    limit = largest_slice(need, memory, is_gpu=False)
    assert limit == examples
    needed = virtual_nodes_needed(need, memory, False, batch)
    assert needed is not None
    assert -(-batch // needed) <= limit
    assert needed == 1 or -(-batch // (needed - 1)) > limit


def test_facts_without_a_measurement_say_nothing() -> None:
    assert memory_need_read({}) is None
    assert memory_need_read({"memory": None}) is None
    good = {"process_bytes": 5, "base_bytes": 1.5, "bytes_per_example": 2}
    assert memory_need_read({"memory": good, "state_bytes": 3}) == MemoryNeed(5, 1.5, 2, 3)
    for bad in (-1, True, "2", float("nan"), None):
        assert memory_need_read({"memory": good | {"base_bytes": bad}}) is None
