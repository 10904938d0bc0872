"""The cursor of a job that selects: passes over all candidates, steps of queued examples."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.trainer.model.history import EpochRow
from agents.trainer.model.progress import Activity, Progress, SelectionPasses
from agents.trainer.model.recent_steps import StepsDone
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.selection.loss_sums import LossSums
from controlplane.core.protocol.selection import PASS_BATCHES, SelectionMethod, SelectionSpec
from controlplane.core.protocol.wire import StopCondition, StopKind
from controlplane.core.tuning.course import TuningCourse

METHOD = SelectionMethod.SELECTIVE_BACKPROP


def _schedule(
    num_train: int, batch_size: int, stop: StopCondition, **more: Any
) -> TrainingSchedule:
    return TrainingSchedule(
        num_train, 3, batch_size, stop, selection=SelectionSpec(method=METHOD, **more)
    )


def test_an_epoch_that_selects_by_hand() -> None:
    """Of 14 examples in passes of 6 the passes choose 4, 2 and 2; a step takes 3 of them."""
    schedule = _schedule(14, 3, StopCondition(kind=StopKind.EPOCHS, limit=2))
    progress = Progress(step=3, epoch=1, activity=Activity.SELECT, queued=1)
    places = []
    chosen = iter((4, 2, 2))
    while progress.epoch == 1 and progress.activity is not Activity.VALIDATE:
        place = (progress.activity.value, schedule.bounds(progress), progress.batch)
        places.append(place)
        if progress.activity is Activity.SELECT:
            progress = schedule.after_pass(progress, next(chosen), seconds=1.0)
        else:
            progress = schedule.after_batch(progress, seconds=2.0)
        if schedule.is_activity_over(progress):
            done = progress
            progress = schedule.after_activity(progress, {})
    assert places == [
        ("select", (0, 6), 0),
        ("train", (0, 3), 1),
        ("select", (6, 12), 2),
        ("train", (0, 3), 3),
        ("select", (12, 14), 4),
        ("train", (0, 3), 5),
    ]
    assert (done.step, done.queued, done.chosen, done.trained) == (6, 0, 8, 9)
    assert done.passed == SelectionPasses()
    assert progress.train_examples_per_s == 9 / 9.0


def test_an_epoch_without_a_step_has_the_training_metrics_of_the_one_before() -> None:
    schedule = _schedule(7, 3, StopCondition(kind=StopKind.EPOCHS, limit=9))
    row = EpochRow(0, 3, {"loss": 0.5, "selected_share": 0.25, "val_loss": 0.7})
    empty = Progress(step=3, epoch=1, activity=Activity.SELECT, examples=7, history=(row,))
    logs = {"loss": 0.0, "learning_rate": 0.1}
    for progress, loss in (
        (empty, 0.5),
        (replace(empty, trained=3), 0.0),
        (replace(empty, history=()), 0.0),
        (replace(empty, epoch=0, activity=Activity.TRAIN), 0.0),
    ):
        assert schedule.training_logs(progress, logs) == {"loss": loss, "learning_rate": 0.1}


def test_epochs_with_trials_train_on_everything() -> None:
    schedule = _schedule(7, 3, StopCondition(kind=StopKind.EPOCHS, limit=9), start=1)
    for tuning, selects in (
        (TuningCourse(is_due=False), True),
        (TuningCourse(is_due=True), False),
        (TuningCourse(is_due=False, has_tried=True), False),
    ):
        progress = schedule.with_tuning(Progress(step=9, epoch=3, queued=2), tuning)
        assert progress.activity is (Activity.SELECT if selects else Activity.TRAIN)
        assert (schedule.selects(progress), schedule.takes_queued(progress)) == (selects, False)
        assert schedule.bounds(progress) == (0, 6 if selects else 3)
    first = schedule.with_tuning(Progress(), None)
    assert first.activity is Activity.TRAIN


def test_epochs_with_trials_of_the_selection_select_and_compute_losses() -> None:
    """Of the stale method, which computes losses in the epochs 1, 3, 5."""
    stale = SelectionSpec(method=SelectionMethod.STALE_SELECTIVE_BACKPROP, stale_every=2)
    stop = StopCondition(kind=StopKind.EPOCHS, limit=9)
    schedule = TrainingSchedule(7, 0, 3, stop, selection=stale, tunes_selection=True)
    for tuning, computes in (
        (TuningCourse(is_due=False), False),
        (TuningCourse(is_due=True), True),
        (TuningCourse(is_due=False, has_tried=True), True),
        (None, True),
    ):
        progress = schedule.with_tuning(Progress(step=9, epoch=4), tuning)
        assert progress.activity is Activity.SELECT
        assert schedule.computes_losses(progress) is computes
        passed = schedule.after_pass(progress, 1, seconds=1.0).passed
        assert passed == SelectionPasses(3, 3 if computes else 0)
    first = schedule.with_tuning(Progress(), TuningCourse())
    assert first.activity is Activity.TRAIN, "the first epoch trains on everything"


@pytest.mark.parametrize(("queued", "activity"), [(2, Activity.SELECT), (3, Activity.TRAIN)])
def test_another_branch_has_another_queue(queued: int, activity: Activity) -> None:
    stop = StopCondition(kind=StopKind.EPOCHS, limit=9)
    selection = SelectionSpec(method=METHOD)
    schedule = TrainingSchedule(7, 3, 3, stop, selection=selection, tunes_selection=True)
    for before in (Activity.SELECT, Activity.TRAIN):
        progress = Progress(epoch=1, activity=before, examples=3, queued=5)
        moved = schedule.with_queue(progress, queued)
        assert (moved.queued, moved.activity, moved.examples) == (queued, activity, 3)
    validating = Progress(epoch=1, activity=Activity.VALIDATE)
    assert schedule.with_queue(validating, queued).activity is Activity.VALIDATE


def test_steps_are_planned_with_the_expected_share() -> None:
    """Epochs of 3 steps: 2 plain ones, 4 that choose a quarter, 1 plain one."""
    stop = StopCondition(kind=StopKind.EPOCHS, limit=7)
    assert _schedule(7, 3, stop, start=2, end=6, beta=3.0).num_planned_steps == 12
    assert TrainingSchedule(7, 3, 3, stop).num_planned_steps == 21
    stop = StopCondition(kind=StopKind.STEPS, limit=7)
    assert _schedule(7, 3, stop, start=2).num_planned_steps == 7


def test_a_pass_counts_until_the_next_step() -> None:
    schedule = _schedule(9, 2, StopCondition(kind=StopKind.EPOCHS, limit=2))
    progress = Progress(epoch=1, activity=Activity.SELECT)
    progress = schedule.after_pass(progress, 1, seconds=1.5)
    progress = schedule.after_pass(progress, 3, seconds=0.5, losses=LossSums(4.0, 3, 1.0, 1))
    assert (progress.passed, progress.passed.seconds) == (SelectionPasses(8, 8), 2.0)
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress
    assert schedule.after_batch(progress, seconds=1.0).passed == SelectionPasses()


@given(
    st.integers(1, 40),
    st.integers(1, 9),
    st.lists(st.integers(1, 14), min_size=1, max_size=8),
    st.integers(0, 2**32),
    st.sampled_from([StopKind.EPOCHS, StopKind.STEPS]),
)
def test_every_example_is_a_candidate_once_and_no_chosen_one_is_lost(
    num_train: int, batch_size: int, sizes: list[int], seed: int, kind: StopKind
) -> None:
    """Batch sizes change between any two batches, as memberships may."""
    random = np.random.default_rng(seed)
    stop = StopCondition(kind=kind, limit=6)
    schedule = _schedule(num_train, batch_size, stop, start=2, end=5)
    progress = Progress()
    num_candidates = num_trained = num_chosen = num_distances = 0
    distances = set()
    while not progress.is_over:
        changed = replace(schedule, train_batch_size=sizes[progress.step % len(sizes)])
        low, high = changed.bounds(progress)
        assert high > low
        distances.add(progress.distance)
        num_distances += 1
        if progress.activity is Activity.SELECT:
            assert 2 <= progress.epoch < 5
            chosen = int(random.integers(0, high - low + 1))
            num_candidates, num_chosen = num_candidates + high - low, num_chosen + chosen
            progress = changed.after_pass(progress, chosen, seconds=1.0)
        else:
            num_trained += (high - low) * changed.takes_queued(progress)
            progress = changed.after_batch(progress, seconds=1.0)
        assert progress.queued == num_chosen - num_trained
        assert progress.queued < max(sizes) + PASS_BATCHES * batch_size
        if changed.is_activity_over(progress):
            progress = changed.after_activity(progress, {})
        if progress.epoch > 30:
            break  # a step limit with choices of nothing
    assert len(distances) == num_distances, "every point has a distance of its own"
    if kind is StopKind.EPOCHS:
        assert num_candidates == num_train * 3


def test_reports_of_older_trainers_have_no_passes() -> None:
    done = StepsDone(1, 5, 6, 0, 64, 1.0, 0.5, 2, 32, candidates=100, analysed=40)
    row = json.loads(json.dumps(done.to_json()))
    assert StepsDone.from_json(row) == done
    assert StepsDone.from_json([*row[:9], row[-1]]) == done._replace(candidates=0, analysed=0)
    more = StepsDone(1, 7, 7, 0, 32, 1.0, 0.5, 2, 32, candidates=50, analysed=50, pass_s=0.5)
    joined = done._replace(pass_s=0.25).joined(more)
    assert (joined.candidates, joined.analysed, joined.pass_s) == (150, 90, 0.75)
    assert (joined.after(6).candidates, joined.after(6).pass_s) == (50, 0.25)


@pytest.mark.parametrize(
    ("epochs", "expected"), [(range(10), 3), (range(3, 10), 2), (range(5, 9), 0), (range(3), 1)]
)
def test_selecting_epochs_are_counted(epochs: range, expected: int) -> None:
    spec = SelectionSpec(method=METHOD, start=2, end=5)
    assert spec.num_selecting(epochs) == expected == sum(spec.selects(e) for e in epochs)


def test_epochs_that_choose_nothing_are_counted() -> None:
    schedule = TrainingSchedule(
        4,
        0,
        4,
        StopCondition(kind=StopKind.EPOCHS, limit=9),
        selection=SelectionSpec(method=METHOD),
    )
    progress, counts = Progress(), []
    for chosen in (0, 0, 0, 1, 0):
        if progress.activity is Activity.TRAIN:
            progress = schedule.after_activity(schedule.after_batch(progress, 1.0), {})
        done = schedule.after_pass(progress, chosen, 1.0)
        assert schedule.is_empty(done) is (chosen == 0)
        progress = schedule.after_activity(done, {})
        counts.append(progress.empty_epochs)
    assert counts == [1, 2, 3, 0, 1]
