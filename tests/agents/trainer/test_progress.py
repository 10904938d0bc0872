"""The cursor of a job: forward only, through epochs, validation and every way to end."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.trainer.progress import Activity, Course, EpochRow, Progress
from controlplane.core.wire import StopCondition, StopKind


def run_through(course: Course, logs: dict[str, float]) -> tuple[list[Progress], Progress]:
    seen = []
    progress = Progress()
    while not progress.is_over:
        seen.append(progress)
        progress = course.after_batch(progress, seconds=1.0)
        if course.is_activity_over(progress):
            progress = course.after_activity(progress, logs)
    return seen, progress


def test_two_epochs_with_validation() -> None:
    course = Course(5, 3, 2, StopCondition(kind=StopKind.EPOCHS, limit=2))
    seen, end = run_through(course, {"loss": 0.5})
    places = [(p.activity.value, p.epoch, p.batch, course.bounds(p)) for p in seen]
    epoch = [
        ("train", 0, (0, 2)),
        ("train", 1, (2, 4)),
        ("train", 2, (4, 5)),
        ("validate", 0, (0, 2)),
        ("validate", 1, (2, 3)),
    ]
    assert places == [(a, e, b, bounds) for e in (0, 1) for a, b, bounds in epoch]
    assert end.ended_by is StopKind.EPOCHS
    assert end.history == (
        EpochRow(0, 3, {"loss": 0.5, "val_loss": 0.5}),
        EpochRow(1, 6, {"loss": 0.5, "val_loss": 0.5}),
    )
    assert end.training_s == 10.0


def test_a_step_limit_cuts_the_epoch_but_not_its_validation() -> None:
    course = Course(10, 2, 2, StopCondition(kind=StopKind.STEPS, limit=7))
    seen, end = run_through(course, {"loss": 1.0})
    assert [p.activity for p in seen].count(Activity.TRAIN) == 7
    assert seen[-1].activity is Activity.VALIDATE
    assert (end.step, end.epoch, end.ended_by) == (7, 2, StopKind.STEPS)


@pytest.mark.parametrize(
    ("value", "higher", "ended_by", "epochs"),
    [
        (0.9, True, StopKind.METRIC, 1),
        (0.8, True, StopKind.METRIC, 1),
        (0.7, True, StopKind.EPOCHS, 4),
        (0.7, False, StopKind.METRIC, 1),
        (0.9, False, StopKind.EPOCHS, 4),
    ],
)
def test_a_metric_stop_looks_at_each_epochs_end(
    value: float, higher: bool, ended_by: StopKind, epochs: int
) -> None:
    stop = StopCondition(
        kind=StopKind.METRIC, limit=4, metric="accuracy", target=0.8, higher_is_better=higher
    )
    _, end = run_through(Course(4, 0, 2, stop), {"accuracy": value})
    assert (end.ended_by, end.epoch) == (ended_by, epochs)


def test_a_metric_that_is_not_there_is_named() -> None:
    stop = StopCondition(kind=StopKind.METRIC, limit=4, metric="acuracy", target=0.8)
    with pytest.raises(KeyError, match="acuracy"):
        run_through(Course(4, 0, 2, stop), {"accuracy": 0.5})


@given(
    st.integers(1, 20),
    st.integers(0, 8),
    st.integers(1, 7),
    st.sampled_from([StopKind.STEPS, StopKind.EPOCHS]),
    st.integers(1, 30),
    st.data(),
)
def test_running_ahead_sees_what_will_happen_from_any_point(
    train: int, validation: int, batch: int, kind: StopKind, limit: int, data: st.DataObject
) -> None:
    course = Course(train, validation, batch, StopCondition(kind=kind, limit=limit))
    seen, _ = run_through(course, {})
    start = data.draw(st.integers(0, len(seen) - 1))
    ahead = [position.place for position in course.positions(seen[start])]
    assert ahead == [progress.place for progress in seen[start:]]


def test_json_keeps_everything() -> None:
    progress = Progress(
        step=7,
        epoch=2,
        activity=Activity.VALIDATE,
        batch=1,
        train_logs={"loss": 0.1 + 0.2},
        history=(EpochRow(0, 3, {"loss": 1e-300}), EpochRow(1, 6, {"loss": 1 / 3})),
        training_s=12.5,
        ended_by=StopKind.STEPS,
    )
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0, 2, 1), "at least one example"),
        ((1, 0, 0, 1), "global_batch_size must be at least 1"),
        ((1, 0, 2, 0), "stop.limit must be at least 1"),
    ],
)
def test_a_frame_without_room_is_refused(
    arguments: tuple[int, int, int, int], message: str
) -> None:
    *sizes, limit = arguments
    with pytest.raises(ValueError, match=message):
        Course(*sizes, StopCondition(kind=StopKind.EPOCHS, limit=limit))
