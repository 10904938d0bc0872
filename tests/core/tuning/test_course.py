"""Course of a tuned job: when it searches, and the bounds of what that costs."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.protocol.codec import decode, encode
from controlplane.core.protocol.tuning import TunableRange, TuningSpec
from controlplane.core.tuning.course import (
    JobSteps,
    TuningCourse,
    course_begin,
    course_epoch,
    course_step,
    course_stop,
    trials_turned,
)
from controlplane.core.tuning.search import SearchEnd

SPACE = {"learning_rate": TunableRange(low=1e-3, high=1.0, log=True)}
VALUES = {"learning_rate": 0.1}
PLAN = JobSteps(total=1000, left=1000, per_epoch=50)


def searched(
    course: TuningCourse, spec: TuningSpec, plan: JobSteps, rate: float = 0.02
) -> TuningCourse:
    """Run a whole search; in each trial the loss falls from 1 by `rate` per step."""
    course = course_begin(course, spec, VALUES, plan)
    for _ in range(10_000):
        if course.active is None:
            return course
        course, turn = course_step(
            course, spec, 1.0 - rate * course.active.trial.steps, {"learning_rate": 0.2}
        )
        if turn is not None:
            course = decode(TuningCourse, json.loads(json.dumps(encode(course))))
    raise AssertionError("the search does not end")


@given(
    share=st.floats(0.01, 0.9),
    total=st.integers(1, 800),
    done=st.floats(0.0, 1.0),
    per_epoch=st.integers(1, 500),
    rate=st.sampled_from([0.02, 0.0]),
)
def test_trials_take_no_more_than_their_share_nor_than_what_is_left(
    share: float, total: int, done: float, per_epoch: int, rate: float
) -> None:
    spec = TuningSpec(space=SPACE, max_share=share, max_trials=8)
    plan = JobSteps(total=total, left=total - int(done * total), per_epoch=per_epoch)
    course = searched(TuningCourse(), spec, plan, rate)
    assert course.num_steps <= min(share * total, plan.left)
    assert not course.is_due
    if course.num_steps == 0:
        assert course.plateau.is_done, "too few steps are left for ever"


def test_a_plateau_begins_another_search_with_no_more_trials_and_half_the_time() -> None:
    spec = TuningSpec(space=SPACE, max_trials=3, max_share=0.9)
    course = searched(TuningCourse(), spec, PLAN)
    assert course.search is not None
    assert (course.end, len(course.search.trials)) == (SearchEnd.TRIALS, 3)
    course = course_epoch(course, spec, {"val_loss": 9.0})  # has trials: not compared
    for _ in range(5):
        assert not course.is_due
        course = course_epoch(course, spec, {"val_loss": 1.0})
    assert course.is_due
    course = course_begin(course, spec, VALUES, PLAN)
    assert course.active is not None
    assert (course.active.number, course.active.running, course.active.max_trials) == (2, 4, 3)


def test_an_epoch_with_a_search_is_known_from_its_begin_to_its_end() -> None:
    spec = TuningSpec(space=SPACE, max_trials=3, max_share=0.9)
    begun = course_begin(TuningCourse(), spec, VALUES, PLAN)
    course = searched(TuningCourse(), spec, PLAN)
    none_fits = course_begin(TuningCourse(), spec, VALUES, JobSteps(total=5, left=5, per_epoch=5))
    assert none_fits.active is None
    for each in (TuningCourse(), begun, course, none_fits):
        assert each.is_searching
    assert course_epoch(begun, spec, {"val_loss": 1.0}).is_searching, "it goes on"
    for each in (course, none_fits):
        assert not course_epoch(each, spec, {"val_loss": 1.0}).is_searching


@pytest.mark.parametrize(
    ("spec", "logs"),
    [
        (TuningSpec(space=SPACE, max_trials=3, retune=False), {"val_loss": 1.0}),
        (TuningSpec(space=SPACE, max_trials=3), None),
    ],
)
def test_no_other_search_begins(spec: TuningSpec, logs: dict[str, float] | None) -> None:
    course = searched(TuningCourse(), spec, PLAN)
    for epoch in range(12):
        course = course_epoch(course, spec, logs or {"val_loss": 1.0 / (1 + epoch)})
        assert not course.is_due


def test_a_search_begins_from_the_mean_of_the_newest_losses() -> None:
    spec = TuningSpec(space=SPACE, max_trials=2)
    course = TuningCourse(is_due=False)
    for loss in (9.0, math.nan, *[2.0] * 5, *[1.0] * 5):
        course, turn = course_step(course, spec, loss, VALUES)
        assert turn is None
    course = course_begin(TuningCourse(losses=course.losses), spec, VALUES, PLAN)
    assert course.active is not None
    assert course.active.start_loss == 1.5


def test_the_jobs_end_ends_its_search() -> None:
    spec = TuningSpec(space=SPACE)
    course = course_begin(TuningCourse(), spec, VALUES, PLAN)
    assert course.parked == (0,)
    stopped = course_stop(course)
    assert (stopped.end, stopped.parked) == (SearchEnd.JOB_ENDED, ())
    assert course_stop(stopped) == stopped


def test_a_step_reports_the_trials_that_it_begins_ends_or_leaves() -> None:
    spec = TuningSpec(space=SPACE, max_trials=3)
    course = course_begin(TuningCourse(), spec, VALUES, PLAN)
    told = []
    while course.active is not None:
        before = course
        course, _ = course_step(
            course, spec, 1.0 - 0.02 * course.active.trial.steps, {"learning_rate": 0.2}
        )
        told.append([trial.number for trial in trials_turned(before, course)])
    assert [numbers for numbers in told if numbers] == [[1, 2], [2, 3], [1, 3]]
    assert trials_turned(None, course) == ()
