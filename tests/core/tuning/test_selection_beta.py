"""Trials that differ in the exponent of their selection: what they need, and how they count."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.protocol.codec import decode, encode
from controlplane.core.protocol.selection import SelectionMethod
from controlplane.core.protocol.tuning import TunableRange, TuningSpec
from controlplane.core.protocol.wire import StopKind
from controlplane.core.tuning.course import (
    JobSteps,
    TuningCourse,
    course_begin,
    course_epoch,
    course_pass,
    course_step,
)
from controlplane.core.tuning.search import Search, TrialEnd
from controlplane.core.tuning.selection_beta import selection_beta_conflict

SPEC = TuningSpec(
    space={"selection_beta": TunableRange(low=0.2, high=5.0)}, max_trials=3, max_share=0.9
)
BATCH = 10
ONE, TWO = {"selection_beta": 1.0}, {"selection_beta": 2.0}


def begun(spec: TuningSpec = SPEC, total: int = 1000) -> TuningCourse:
    plan = JobSteps(total=total, left=total, per_epoch=50, step_examples=BATCH)
    return course_begin(TuningCourse(), spec, ONE, plan)


def search_of(course: TuningCourse) -> Search:
    assert course.active is not None
    return course.active


@pytest.mark.parametrize(
    ("method", "stop", "more", "message"),
    [
        ("selective_backprop", StopKind.EPOCHS, {}, None),
        ("stale_selective_backprop", StopKind.METRIC, {}, None),
        ("none", StopKind.EPOCHS, {}, "needs a selection by losses; give selection.method"),
        ("random", StopKind.EPOCHS, {}, "needs a selection by losses; give selection.method"),
        ("selective_backprop", StopKind.STEPS, {}, "stop after epochs or at a metric"),
        ("selective_backprop", StopKind.EPOCHS, {"has_end": True}, "with selection.end"),
        ("selective_backprop", StopKind.EPOCHS, {"has_controls": True}, "selection.control_every"),
        ("selective_backprop", StopKind.EPOCHS, {"is_parallel": True}, "with tuning.parallel"),
    ],
)
def test_what_it_cannot_be_combined_with_is_told_with_the_fix(
    method: str, stop: StopKind, more: dict[str, bool], message: str | None
) -> None:
    flags = {"has_end": False, "has_controls": False, "is_parallel": False, **more}
    found = selection_beta_conflict(SelectionMethod(method), stop, **flags)
    assert (found is None) if message is None else (message in (found or ""))


@pytest.mark.parametrize(
    ("low", "high", "message"), [(0.05, 5, "at least 0.1"), (0.2, 11, "at most 10")]
)
def test_its_range_is_that_of_a_selection(low: float, high: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"tuning.space.selection_beta.*{message}"):
        TuningSpec(space={"selection_beta": TunableRange(low=low, high=high)})


def test_steps_have_the_loss_of_the_pass_before_them_and_three_times_its_work() -> None:
    course = begun()
    for loss in (8.0, 6.0):
        course, turn = course_pass(course, SPEC, loss, TWO, BATCH)
        assert turn is None
    course, turn = course_step(course, SPEC, 99.0, TWO, BATCH)
    assert turn is None
    # A tenth of ten steps is 30 forward passes: 10 of the first pass, 10 of the second and a third
    # of the step; its rest lies in the next one.
    trial = search_of(course).trial
    assert trial.sums == (10 * 8.0 + 20 * 6.0, 20 * 6.0)
    assert (trial.steps, trial.work, search_of(course).start_loss) == (1, 50, 8.0)


def test_a_trial_that_needs_more_passes_for_a_step_does_fewer_steps() -> None:
    """Both trials converge equally fast for their work: 0.02 a step, and 0.025 a dearer one."""
    course, ends = begun(replace(SPEC, max_trials=2)), {}
    while course.active is not None:
        trial = course.active.trial
        loss = 5.0 - (0.02 if trial.values == ONE else 0.025) * trial.steps
        for _ in range(1 if trial.values == ONE else 2):
            if course.active is not None and course.active.trial.number == trial.number:
                course, _ = course_pass(course, SPEC, loss, TWO, BATCH)
        if course.active is not None and course.active.trial.number == trial.number:
            course, _ = course_step(course, SPEC, 1.0 + trial.steps, TWO, BATCH)
        course = decode(TuningCourse, json.loads(json.dumps(encode(course))))
        assert course.search is not None
        ends = {each.number: each for each in course.search.trials}
    # 300 forward passes are 7.5 times 10 + 30, or 6 times 20 + 30.
    assert [(ends[number].steps, ends[number].work) for number in (1, 2)] == [(8, 320), (6, 300)]
    assert ends[1].speed == pytest.approx(ends[2].speed, rel=0.1)
    assert {ends[1].end, ends[2].end} == {TrialEnd.KEPT, TrialEnd.SLOWER}


@pytest.mark.parametrize("is_pass", [True, False])
def test_a_loss_that_is_not_finite_ends_the_trial(is_pass: bool) -> None:
    course, _ = course_pass(begun(), SPEC, 4.0, TWO, BATCH)
    if is_pass:
        course, turn = course_pass(course, SPEC, float("inf"), TWO, BATCH)
    else:
        course, turn = course_step(course, SPEC, float("nan"), TWO, BATCH)
    assert turn is not None
    assert turn.values == TWO
    assert search_of(course).trials[0].end is TrialEnd.DIVERGED


def test_a_search_starts_from_the_losses_of_the_passes_just_before_it() -> None:
    course = TuningCourse(is_due=False)
    for loss in (3.0, 2.0):
        course, _ = course_pass(course, SPEC, loss, {}, BATCH)
        course, _ = course_step(course, SPEC, 50.0, {}, BATCH)
    assert course.losses == (3.0, 2.0), "those of chosen examples are left out"
    course, _ = course_pass(course, SPEC, None, {}, BATCH)
    assert course.losses == (), "they are of an epoch before"


def test_a_search_that_is_due_waits_for_an_epoch_that_selects() -> None:
    waiting = course_epoch(TuningCourse(), SPEC, {"val_loss": 1.0})
    assert waiting == TuningCourse()


@given(
    share=st.floats(0.01, 0.9),
    total=st.integers(1, 500),
    rate=st.sampled_from([0.02, 0.0]),
    chosen=st.lists(st.integers(0, BATCH), min_size=1, max_size=8),
)
def test_trials_take_no_more_than_their_share(
    share: float, total: int, rate: float, chosen: list[int]
) -> None:
    spec = replace(SPEC, max_share=share, max_trials=8)
    course, queued = begun(spec, total), 0
    for number in range(100_000):
        if course.active is None:
            break
        loss = 9.0 - rate * course.active.trial.steps
        if queued >= BATCH:
            queued -= BATCH
            course, turn = course_step(course, spec, 1.0, TWO, BATCH)
        else:
            queued += chosen[number % len(chosen)]
            course, turn = course_pass(course, spec, loss, TWO, BATCH)
        queued = 0 if turn is not None else queued
    assert course.active is None, "the search does not end"
    assert course.num_steps <= share * total
