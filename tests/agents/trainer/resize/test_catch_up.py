"""Joiners that listen until they have the state.

`test_resize` and `test_peer_failures` let them listen in whole stories.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.contract.failures import PEER_LOST, TrainerError
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.resize.catch_up import Rehearsal, StepLog, interim_membership, stream_note
from agents.trainer.resize.switch_header import MEETING_WORDS, CatchUpPlan, stream_fits
from agents.trainer.step.outcomes import ReceivedStep
from controlplane.core.protocol.wire import ReductionMode, ReportKind, StopCondition, StopKind
from tests.agents.trainer.local_jobs import local_job, membership_of, prepared, training_spec
from tests.agents.trainer.streaming_trainer import streaming_program
from tests.support.present import present


def steps(limit: int) -> StopCondition:
    return StopCondition(kind=StopKind.STEPS, limit=limit)


def heard_of(num_elements: int) -> ReceivedStep:
    return ReceivedStep(Activity.TRAIN, 8, tf.zeros([num_elements]), 0.1)


def test_kept_steps_come_in_order_and_are_bounded_by_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agents.trainer.resize.catch_up.KEPT_BYTES", 1000)
    kept = StepLog(state_bytes=100)
    first, second = heard_of(100), heard_of(10)
    kept.add(first)  # 400 bytes, and another one fits
    assert not kept.is_full
    kept.add(second)
    kept.add(heard_of(50))  # 640 in all
    assert kept.is_full
    assert kept.take() is first
    assert not kept.is_full
    assert kept.take() is second
    assert len(kept) == 1
    assert not StepLog(state_bytes=10**6).is_full


def test_a_note_tells_the_cursor_and_who_works_meanwhile() -> None:
    old = membership_of({0: (0, 3), 10: (1, 2, 4)})
    new = membership_of({0: (0, 1), 10: (2, 3), 2: (4,)}, generation=2, source_slot=0)
    logs = {"loss": 0.5}
    progress = Progress(step=9, epoch=1, activity=Activity.VALIDATE, batch=1, train_logs=logs)
    note = present(stream_note(old, new, [2], progress))
    assert CatchUpPlan.unpack(note.pack()) == note
    assert note.cursor.place == progress.place
    assert note.cursor.train_logs == {}
    shares = [member.virtual_nodes for member in interim_membership(new, note).members]
    assert shares == [(0, 3), (1, 2, 4), ()]
    assert stream_fits(note, 1)
    assert not stream_fits(note, MEETING_WORDS - 6)
    assert stream_note(old, membership_of({0: (0, 1, 2, 3, 4), 2: ()}), [2], progress) is None


def test_the_cursor_can_be_foreseen_until_a_metric_tells() -> None:
    schedule = TrainingSchedule(num_train=10, num_validation=4, batch_size=5, stop=steps(3))
    cursor: Progress | None = Progress()
    places = []
    while cursor is not None and not cursor.is_over:
        places.append((cursor.step, cursor.epoch, str(cursor.activity)))
        cursor = schedule.predicted_next(cursor)
    assert places == [
        *((0, 0, "train"), (1, 0, "train"), (2, 0, "validate")),
        *((2, 1, "train"), (3, 1, "validate")),
    ]
    stop = StopCondition(kind=StopKind.METRIC, limit=5, metric="loss", target=0.1)
    watched = TrainingSchedule(num_train=10, num_validation=0, batch_size=5, stop=stop)
    moved = present(watched.predicted_next(Progress()))
    assert moved.step == 1
    assert watched.predicted_next(moved) is None


def test_a_rehearsal_runs_once_for_a_generation_and_passes_its_failure_on() -> None:
    rehearsal = Rehearsal()
    rehearsal.end()  # there is none
    may_end = threading.Event()
    num_calls = 0

    def rehearse() -> None:
        nonlocal num_calls
        num_calls += 1
        assert may_end.wait(10.0)

    assert not rehearsal.is_over(3, rehearse)
    assert not rehearsal.is_over(3, rehearse)
    may_end.set()
    rehearsal.end()
    assert rehearsal.is_over(3, rehearse)
    assert num_calls == 1

    def fail() -> None:
        raise TrainerError(PEER_LOST, "a joiner is gone")

    def fail_and_see() -> None:
        while not rehearsal.is_over(4, fail):
            rehearsal.end()

    with pytest.raises(TrainerError, match="a joiner is gone"):
        fail_and_see()


@pytest.mark.nightly
def test_a_job_that_ends_while_one_listens_and_the_fast_mode(tmp_path: Path) -> None:
    spec = training_spec(stop=steps(60), reduction=ReductionMode.FAST)
    with local_job(tmp_path, spec) as job:
        job.program = streaming_program(None)
        first = job.plan(1, None)
        grown = job.plan(2, first)
        prepared(job, [first, grown])
        job.go(first)
        job.wait_step(1)
        job.go(grown)
        result = job.wait_finished()
        digests = {
            report.data["digest"]
            for report in job.told(ReportKind.FINISHED)
            if "digest" in report.data
        }
    assert result["step"] == 60
    assert np.isfinite(result["metrics"]["loss"])
    assert digests == {result["digest"]}
