"""Batch sizes of trials: which there are, what they cannot be combined with, and their search."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.protocol.codec import decode, encode
from controlplane.core.protocol.tuning import TunableRange, TuningSpec
from controlplane.core.protocol.wire import StopKind
from controlplane.core.tuning.batch_sizes import SIZES_LIMIT, batch_size_conflict, batch_sizes
from controlplane.core.tuning.course import JobSteps, TuningCourse, course_begin, course_step
from controlplane.core.tuning.search import (
    Search,
    Trial,
    TrialEnd,
    search_begin,
    search_step,
)

SPEC = TuningSpec(space={"batch_size": TunableRange(low=8.0, high=100.0)}, max_trials=8)


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (8, 40, False, (8, 16, 24, 32, 40)),
        (9, 39, False, (16, 24, 32)),
        (9, 300, True, (16, 32, 64, 128, 256)),
        (8, 8 * 47, False, tuple(range(8, 8 * 47 + 1, 16))),  # 47 multiples: every other one
    ],
)
def test_sizes_are_multiples_of_the_virtual_nodes(
    low: int, high: int, log: bool, expected: tuple[int, ...]
) -> None:
    assert batch_sizes(TunableRange(low=low, high=high, log=log), 8) == expected


@given(low=st.integers(1, 10**7), more=st.integers(0, 10**7), nodes=st.integers(1, 4096))
def test_a_search_has_few_sizes_within_its_range(low: int, more: int, nodes: int) -> None:
    for log in (True, False):
        try:
            sizes = batch_sizes(TunableRange(low=low, high=low + more, log=log), nodes)
        except ValueError:
            assert low + more < 2 * nodes * max(1, -(-low // nodes))
            continue
        assert 2 <= len(sizes) <= SIZES_LIMIT
        assert low <= sizes[0] < sizes[-1] <= low + more
        assert not any(size % nodes for size in sizes)


@pytest.mark.parametrize(
    ("high", "stop", "selects", "is_parallel", "message"),
    [
        (64, StopKind.EPOCHS, False, False, None),
        (64, StopKind.METRIC, False, False, None),
        (64, StopKind.STEPS, False, False, "stop after epochs or at a metric"),
        (64, StopKind.EPOCHS, True, False, "leave out batch_size, or selection"),
        (64, StopKind.EPOCHS, False, True, "leave out one of them"),
        (15, StopKind.EPOCHS, False, False, "multiples of the 8 virtual nodes from 8 to 15; give"),
    ],
)
def test_what_it_cannot_be_combined_with_is_told_with_the_fix(
    high: int, stop: StopKind, selects: bool, is_parallel: bool, message: str | None
) -> None:
    span = TunableRange(low=8, high=high)
    found = batch_size_conflict(span, 8, stop, selects=selects, is_parallel=is_parallel)
    assert (found is None) if message is None else (message in (found or ""))


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (0, 64, "low must be at least 1"),
        (8, 2e7, "high must be at most 1e\\+07"),
        (8.5, 64, "needs whole numbers as low and high, got 8.5"),
        (64, 64, "low must be below its high"),
    ],
)
def test_a_wrong_range_is_refused_by_name(low: float, high: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"tuning.space.batch_size.*{message}"):
        TuningSpec(space={"batch_size": TunableRange(low=low, high=high)})


def begun(size: int, **bounds: int) -> Search:
    limits: dict[str, Any] = {
        "limit": 1000,
        "max_trials": 3,
        "max_steps": 1000,
        "step_work": 40,
        **bounds,
    }
    search = search_begin(
        Search(1, trials=(Trial(1, 1, {"batch_size": size}),), running=1, **limits)
    )
    assert search is not None
    return search


def test_trials_of_other_sizes_are_compared_by_examples() -> None:
    """In every step the loss falls by 0.02: per example the smallest batch is the fastest."""
    search, sizes = begun(40), (40, 20, 10)
    while search.trials[-1].end is None:
        trial = search.trial
        size = int(trial.values["batch_size"])
        proposal = {"batch_size": sizes[len(search.trials) % 3]}
        search, _ = search_step(search, SPEC, 5.0 - 0.02 * trial.steps, proposal, size)
        search = decode(Search, json.loads(json.dumps(encode(search))))
    assert [(trial.steps, trial.work) for trial in search.trials] == [
        (10, 400),
        (20, 400),
        (40, 400),
    ]
    # The last tenths have the losses 5 - 0.02 * 9; - 0.02 * 18.5; - 0.02 * 37.5.
    assert [trial.speed for trial in search.trials] == pytest.approx([0.018, 0.037, 0.075])
    assert [trial.end for trial in search.trials][-1] is TrialEnd.KEPT
    assert search.num_steps == 30, "of the job's own batch size"


def test_a_step_counts_in_the_tenths_in_which_its_examples_lie() -> None:
    search = begun(30, max_trials=2)
    losses = [8.0, 4.0, 2.0, 1.0]
    for loss in losses:
        search, turn = search_step(search, SPEC, loss, {"batch_size": 40}, 30)
        assert turn is None
    # 120 examples: tenths of 40 are 30 + 10, 20 + 20 and 10 + 30 of the steps'.
    expected = (30 * 8 + 10 * 4, 20 * 4 + 20 * 2, 10 * 2 + 30 * 1)
    assert search.trial.sums == expected
    for _ in range(9):
        search, turn = search_step(search, SPEC, 0.5, {"batch_size": 40}, 30)
        assert turn is None
    search, turn = search_step(search, SPEC, 0.5, {"batch_size": 40}, 30)
    assert turn is not None, "14 steps have more than 400 examples"
    first = search.trials[0]
    assert first.points == (7.0, 3.0, 1.25, *[0.5] * 7)
    assert first.speed == pytest.approx((8.0 - 0.5) / 10)


@given(
    share=st.floats(0.01, 0.9),
    total=st.integers(1, 3000),
    own=st.integers(1, 200),
    rate=st.sampled_from([0.02, 0.0]),
    proposed=st.lists(st.integers(8, 100), min_size=1, max_size=8),
)
def test_trials_of_any_size_take_no_more_than_their_share(
    share: float, total: int, own: int, rate: float, proposed: list[int]
) -> None:
    spec = TuningSpec(space=SPEC.space, max_share=share, max_trials=8)
    plan = JobSteps(total=total, left=total, per_epoch=50, step_examples=own)
    course = course_begin(TuningCourse(), spec, {"batch_size": own}, plan)
    for number in range(100_000):
        if course.active is None:
            break
        trial = course.active.trial
        size = int(trial.values["batch_size"])
        proposal = {"batch_size": proposed[number % len(proposed)]}
        course, turn = course_step(course, spec, 9.0 - rate * trial.steps, proposal, size)
        if turn is not None:
            course = decode(TuningCourse, json.loads(json.dumps(encode(course))))
    assert course.active is None, "the search does not end"
    assert course.num_steps <= share * total
