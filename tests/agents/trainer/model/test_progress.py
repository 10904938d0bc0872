"""The cursor of a job: forward only, through epochs, validation and every way to end."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.trainer.model.history import EpochRow
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.model.schedule import TrainingSchedule
from controlplane.core.protocol.wire import StopCondition, StopKind


def run_through(
    schedule: TrainingSchedule, logs: dict[str, float]
) -> tuple[list[Progress], Progress]:
    seen = []
    progress = Progress()
    while not progress.is_over:
        seen.append(progress)
        progress = schedule.after_batch(progress, seconds=1.0)
        if schedule.is_activity_over(progress):
            progress = schedule.after_activity(progress, logs)
    return seen, progress


def test_two_epochs_with_validation() -> None:
    schedule = TrainingSchedule(5, 3, 2, StopCondition(kind=StopKind.EPOCHS, limit=2))
    seen, end = run_through(schedule, {"loss": 0.5})
    places = [(p.activity.value, p.epoch, p.batch, schedule.bounds(p)) for p in seen]
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
    schedule = TrainingSchedule(10, 2, 2, StopCondition(kind=StopKind.STEPS, limit=7))
    seen, end = run_through(schedule, {"loss": 1.0})
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
    _, end = run_through(TrainingSchedule(4, 0, 2, stop), {"accuracy": value})
    assert (end.ended_by, end.epoch) == (ended_by, epochs)


def test_a_metric_that_is_not_there_is_named() -> None:
    stop = StopCondition(kind=StopKind.METRIC, limit=4, metric="acuracy", target=0.8)
    with pytest.raises(KeyError, match="acuracy"):
        run_through(TrainingSchedule(4, 0, 2, stop), {"accuracy": 0.5})


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
    schedule = TrainingSchedule(train, validation, batch, StopCondition(kind=kind, limit=limit))
    seen, _ = run_through(schedule, {})
    start = data.draw(st.integers(0, len(seen) - 1))
    ahead = [position.place for position in schedule.positions(seen[start])]
    assert ahead == [progress.place for progress in seen[start:]]


def test_json_keeps_everything() -> None:
    progress = Progress(
        step=7,
        epoch=2,
        activity=Activity.VALIDATE,
        batch=1,
        examples=64,
        train_logs={"loss": 0.1 + 0.2},
        history=(EpochRow(0, 3, {"loss": 1e-300}), EpochRow(1, 6, {"loss": 1 / 3})),
        training_s=12.5,
        ended_by=StopKind.STEPS,
    )
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress


@given(
    st.integers(1, 60),
    st.integers(0, 20),
    st.lists(st.integers(1, 25), min_size=1, max_size=30),
    st.integers(1, 25),
)
def test_batches_of_any_sizes_visit_every_example_once_an_epoch(
    train: int, validation: int, sizes: list[int], submitted: int
) -> None:
    """Each step takes the next of `sizes`, as memberships would; validation keeps its own."""
    frame = TrainingSchedule(
        train, validation, submitted, StopCondition(kind=StopKind.EPOCHS, limit=2)
    )
    progress, turn = Progress(), 0
    visited: dict[tuple[int, Activity], list[int]] = {}
    distances = [progress.distance]
    while not progress.is_over:
        schedule = replace(frame, train_batch_size=sizes[turn % len(sizes)])
        low, high = schedule.bounds(progress)
        assert next(schedule.positions(progress)) == progress
        seen = visited.setdefault((progress.epoch, progress.activity), [])
        seen.extend(range(low, high))
        is_train = progress.activity is Activity.TRAIN
        size = schedule.train_batch_size if is_train else submitted
        assert high - low == min(size, (train if is_train else validation) - low)
        turn += is_train
        progress = schedule.after_batch(progress, 0.0)
        if schedule.is_activity_over(progress):
            progress = schedule.after_activity(progress, {})
        distances.append(progress.distance)
    assert distances == sorted(set(distances))
    for (_, activity), seen in visited.items():
        assert seen == list(range(train if activity is Activity.TRAIN else validation))
    assert len(visited) == (4 if validation else 2)
    assert progress.step == turn


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
        TrainingSchedule(*sizes, StopCondition(kind=StopKind.EPOCHS, limit=limit))
