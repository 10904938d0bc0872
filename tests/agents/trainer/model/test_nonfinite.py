"""When a loss or a metric counts as not finite; by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from agents.trainer.engine.workload import BuiltJob
from agents.trainer.model.history import EpochRow, metrics_nonfinite
from agents.trainer.model.nonfinite import SKIPPED_LIMIT, LossTrack
from agents.trainer.model.outputs import history_csv
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.model.schedule import TrainingSchedule
from controlplane.core.protocol.nonfinite import Nonfinite
from controlplane.core.protocol.wire import StopCondition, StopKind
from controlplane.core.tuning.course import TuningCourse
from tests.support.present import present


def track_of(*losses: float, skipped: frozenset[int] = frozenset()) -> LossTrack:
    """Take in losses of steps 1, 2 ...; five steps are an epoch."""
    track = LossTrack()
    for step, loss in enumerate(losses, start=1):
        track = track.after(loss, step, (step - 1) // 5, is_skipped=step in skipped)
    return track


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_loss_that_is_not_finite_counts_with_the_last_one_before(value: float) -> None:
    track = track_of(3.0, 2.5, value, math.nan)
    assert track.finding == Nonfinite(
        metric=None, value=str(value), step=3, epoch=0, last_finite=2.5, last_finite_step=2
    )
    assert track.odd_epoch == 0


def test_finite_losses_however_large_are_nothing() -> None:
    assert track_of(3.0, 3e38, -3e38).finding is None


def test_a_loss_that_is_finite_again_begins_anew() -> None:
    assert track_of(3.0, math.nan, 2.0).finding is None
    found = present(track_of(3.0, math.nan, 2.0, 1.5, 1.4, math.inf).finding)
    assert (found.step, found.epoch, found.last_finite, found.last_finite_step) == (6, 1, 1.4, 5)


def test_a_loss_that_was_never_finite() -> None:
    found = present(track_of(math.nan).finding)
    assert (found.step, found.last_finite, found.last_finite_step) == (1, None, None)


def test_what_the_loss_scale_skips_is_no_finding_until_it_is_too_much() -> None:
    nans = [math.nan] * SKIPPED_LIMIT
    skipped = frozenset(range(1, 100))
    assert track_of(*nans[1:], skipped=skipped).finding is None
    assert track_of(*nans[1:], 0.5, *nans[1:], skipped=skipped).finding is None
    found = track_of(*nans, skipped=skipped).finding
    assert found is not None
    assert (found.step, found.num_skipped) == (1, SKIPPED_LIMIT)
    assert track_of(*nans, math.nan, skipped=skipped).finding == found


def test_a_step_that_was_not_skipped_counts_at_once_among_skipped_ones() -> None:
    found = track_of(2.0, math.nan, math.nan, math.nan, skipped=frozenset({2, 3})).finding
    assert found is not None
    assert (found.step, found.num_skipped, found.last_finite_step) == (2, 0, 1)


def test_metrics_are_judged_at_the_end_of_an_epoch_since_when_they_are_so() -> None:
    history = [
        EpochRow(0, 10, {"a": 0.5, "b": math.nan, "val_a": 1.0}),
        EpochRow(1, 20, {"a": 0.5, "b": math.nan, "val_a": math.inf}),
        EpochRow(2, 30, {"a": 0.5, "b": math.nan, "val_a": math.nan}),
    ]
    b, val_a = metrics_nonfinite(history)
    assert b == Nonfinite(
        metric="b", value="nan", step=10, epoch=0, last_finite=None, last_finite_step=None
    )
    assert val_a == Nonfinite(
        metric="val_a", value="inf", step=20, epoch=1, last_finite=1.0, last_finite_step=10
    )
    assert metrics_nonfinite(history[:1]) == (b,)
    assert metrics_nonfinite([]) == ()


def test_training_metrics_of_an_epoch_with_an_odd_loss_are_not_judged() -> None:
    row = EpochRow(0, 10, {"loss": math.nan, "mae": math.inf, "val_mae": math.inf}, True)
    assert [found.metric for found in metrics_nonfinite([row])] == ["val_mae"]
    names = [found.metric for found in metrics_nonfinite([replace(row, has_odd_loss=False)])]
    assert names == ["loss", "mae", "val_mae"]


def test_an_epoch_knows_whether_one_of_its_own_steps_was_odd() -> None:
    schedule = TrainingSchedule(5, 0, 1, StopCondition(kind=StopKind.EPOCHS, limit=3))
    losses = [2.0, 1.9, 1.8, 1.7, 1.6, 1.5, math.nan, 1.3, 1.2, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6]
    progress = Progress()
    for step, loss in enumerate(losses, start=1):
        track = progress.losses.after(loss, step, progress.epoch, is_skipped=True)
        progress = schedule.after_batch(replace(progress, losses=track), 0.0)
        if schedule.is_activity_over(progress):
            progress = schedule.after_activity(progress, {"loss": loss})
    assert [row.has_odd_loss for row in progress.history] == [False, True, False]
    assert progress.nonfinite == ()


def test_training_metrics_of_an_epoch_with_trials_are_not_judged() -> None:
    schedule = TrainingSchedule(1, 1, 1, StopCondition(kind=StopKind.EPOCHS, limit=3))
    progress = Progress(tuning=TuningCourse(is_due=False, has_tried=True))
    for _ in (Activity.TRAIN, Activity.VALIDATE):
        progress = schedule.after_activity(progress, {"loss": math.inf})
    assert [found.metric for found in metrics_nonfinite(progress.history)] == ["val_loss"]


def test_everything_survives_as_json_that_others_can_read() -> None:
    losses = track_of(3.0, 2.0, math.nan, skipped=frozenset({3}))
    found = track_of(3.0, math.inf).finding
    progress = Progress(
        step=7,
        epoch=1,
        activity=Activity.VALIDATE,
        batch=2,
        train_logs={"loss": math.inf},
        history=(EpochRow(0, 5, {"loss": 0.1, "mae": -math.inf}, True),),
        losses=losses,
        found=found,
        is_failed=True,
    )
    text = json.dumps(progress.to_json(), allow_nan=False)
    assert Progress.from_json(json.loads(text)) == progress
    history = (EpochRow(0, 5, {"loss": math.nan}),)
    read = Progress.from_json(json.loads(json.dumps(Progress(history=history).to_json())))
    assert math.isnan(read.history[0].logs["loss"])


def test_a_job_that_failed_is_over_and_further_than_one_at_the_same_place() -> None:
    going = Progress(step=7, batch=7, examples=70)
    failed = replace(going, is_failed=True)
    assert failed.is_over
    assert failed.distance > going.distance


@pytest.mark.parametrize(("value", "higher"), [(math.inf, True), (-math.inf, False)])
def test_a_metric_that_is_not_finite_reaches_no_target(value: float, higher: bool) -> None:
    stop = StopCondition(
        kind=StopKind.METRIC, limit=2, metric="a", target=0.5, higher_is_better=higher
    )
    schedule = TrainingSchedule(2, 0, 2, stop)
    progress = schedule.after_activity(schedule.after_batch(Progress(), 0.0), {"a": value})
    assert progress.ended_by is None


def test_history_csv_says_what_it_is() -> None:
    text = history_csv((EpochRow(0, 5, {"loss": math.nan, "mae": math.inf}),))
    assert text.splitlines()[1] == "0,5,nan,inf"
    text = history_csv((EpochRow(0, 5, {"loss": 1.0, "step": 2.0}),))
    assert text == "epoch,step,loss,step (metric)\n0,5,1.0,2.0\n"


def test_a_metric_named_learning_rate_keeps_its_value() -> None:
    class Model:
        def get_metrics_result(self) -> dict[str, float]:
            return {"learning_rate": 5.0}

    work: Any = SimpleNamespace(is_trained=True, model=Model(), learning_rate=lambda: 0.1)
    assert BuiltJob.logs(work, training=True) == {"learning_rate": 5.0}
