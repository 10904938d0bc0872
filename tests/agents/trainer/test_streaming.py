"""Joiners that listen until they have the state: nobody waits, and the bits stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.local import LocalJob
from agents.trainer.progress import Activity, Course, Progress
from agents.trainer.state_meeting import MEETING_WORDS, StreamNote, stream_fits
from agents.trainer.stepper import Heard
from agents.trainer.streaming import KeptSteps, interim_membership, stream_note
from controlplane.core.wire import (
    Membership,
    ReductionMode,
    ReportKind,
    StopCondition,
    StopKind,
    TrainerReport,
)
from tests.agents.trainer.dying_trainer import Ending
from tests.agents.trainer.local_jobs import local_job, membership_of, training_spec
from tests.agents.trainer.streaming_trainer import streaming_program

#: More than an epoch of the job in `local_jobs`: 6 steps and 2 of validation.
HEARD_STEPS = 12


def steps(limit: int) -> StopCondition:
    return StopCondition(kind=StopKind.STEPS, limit=limit)


def heard_of(num_elements: int) -> Heard:
    return Heard(Activity.TRAIN, 8, tf.zeros([num_elements]), 0.1)


def test_kept_steps_come_in_order_and_are_bounded_by_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agents.trainer.streaming.KEPT_BYTES", 1000)
    kept = KeptSteps(state_bytes=100)
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
    assert not KeptSteps(state_bytes=10**6).is_full


def test_a_note_tells_the_cursor_and_who_works_meanwhile() -> None:
    old = membership_of({0: (0, 3), 10: (1, 2, 4)})
    new = membership_of({0: (0, 1), 10: (2, 3), 2: (4,)}, generation=2, source_slot=0)
    logs = {"loss": 0.5}
    progress = Progress(step=9, epoch=1, activity=Activity.VALIDATE, batch=1, train_logs=logs)
    note = stream_note(old, new, [2], progress)
    assert note is not None
    assert StreamNote.unpack(note.pack()) == note
    assert note.cursor.place == progress.place
    assert note.cursor.train_logs == {}
    shares = [member.virtual_nodes for member in interim_membership(new, note).members]
    assert shares == [(0, 3), (1, 2, 4), ()]
    assert stream_fits(note, 1)
    assert not stream_fits(note, MEETING_WORDS - 6)
    assert stream_note(old, membership_of({0: (0, 1, 2, 3, 4), 2: ()}), [2], progress) is None


def test_the_cursor_can_be_foreseen_until_a_metric_tells() -> None:
    course = Course(num_train=10, num_validation=4, batch_size=5, stop=steps(3))
    cursor: Progress | None = Progress()
    places = []
    while cursor is not None and not cursor.is_over:
        places.append((cursor.step, cursor.epoch, str(cursor.activity)))
        cursor = course.foreseen(cursor)
    assert places == [
        *((0, 0, "train"), (1, 0, "train"), (2, 0, "validate")),
        *((2, 1, "train"), (3, 1, "validate")),
    ]
    stop = StopCondition(kind=StopKind.METRIC, limit=5, metric="loss", target=0.1)
    watched = Course(num_train=10, num_validation=0, batch_size=5, stop=stop)
    moved = watched.foreseen(Progress())
    assert moved is not None
    assert moved.step == 1
    assert watched.foreseen(moved) is None


# ---- real trainers -----------------------------------------------------------------------------


def reports_of(job: LocalJob, slot: int, kind: ReportKind, generation: int) -> list[TrainerReport]:
    found = job.trainers[slot].reports
    return [r for r in found if (r.kind, r.generation) == (kind, generation)]


def switched_at(job: LocalJob, slot: int, membership: Membership) -> int:
    (report,) = reports_of(job, slot, ReportKind.SWITCHED, membership.generation)
    return int(report.data["step"])


def check_digests(job: LocalJob, membership: Membership, number: int) -> None:
    """See that the source and all joiners had one state at one step."""

    def found() -> set[tuple[int, str]]:
        rows = [
            report
            for slot in job.trainers
            for report in reports_of(job, slot, ReportKind.DIGEST, membership.generation)
        ]
        return {(row.data["step"], row.data["sha256"]) for row in rows} if rows[number:] else set()

    job.wait(lambda: bool(found()), "digests", 30.0)
    assert len(found()) == 1, found()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the job once on one accelerator."""
    with local_job(tmp_path_factory.mktemp("one"), training_spec(stop=steps(700))) as job:
        job.resize(1)
        return job.wait_finished()


def test_grown_twice_over_epochs_and_validation_with_listeners(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    spec = training_spec(stop=steps(700))
    with local_job(tmp_path, spec) as job:
        job.program = streaming_program(HEARD_STEPS)
        memberships = [job.plan(1, None)]
        memberships.append(job.plan(3, memberships[0], [[0, 2], [4], [1, 3]]))
        memberships.append(job.plan(2, memberships[1]))
        memberships.append(job.plan(4, memberships[2]))
        for membership in memberships:
            job.prepare(membership)
        for membership in memberships:
            job.wait_ready(membership)
        for number, membership in enumerate(memberships):
            job.wait_step(30 * number)
            job.go(membership)
            job.wait_switched(membership)
            assert job.finished() is None, "it ended before all resizes: give it more steps"
        result = job.wait_finished()
        for grown, joiners in ((memberships[1], (1, 2)), (memberships[3], (3, 4))):
            check_digests(job, grown, len(joiners))
            for joiner in joiners:
                assert switched_at(job, joiner, grown) > switched_at(job, 0, grown) + 6
    assert result["digest"] == expected["digest"]
    assert result["metrics"] == expected["metrics"]


def test_lost_while_listening(tmp_path: Path, expected: dict[str, Any]) -> None:
    """A listener, then the source while one listens, and in the end the job is over before."""
    endings = [
        Ending(slot=2, place="agents.trainer.streaming:KeptSteps.add", call=3),
        Ending(slot=0, place="agents.trainer.engine:Trainer._end_interim", generation=4, call=5),
    ]
    with local_job(tmp_path, training_spec(stop=steps(700))) as job:
        job.program = streaming_program(HEARD_STEPS, endings)
        first = job.plan(2, None)
        second = job.plan(3, first)
        third = job.plan(3, first)
        for membership in (first, second, third):
            job.prepare(membership)
        for membership in (first, second, third):
            job.wait_ready(membership)
        job.go(first)
        job.wait_step(20)
        job.go(second)
        job.wait_lost(2)
        recovered = job.recover([0, 1])
        job.wait_switched(recovered)
        job.wait_step(job.step() + 10)
        grown = job.plan(3, job.membership, keep=[0, 1, 3])
        job.go(grown)
        job.wait_lost(0)
        both = job.recover([1, 3])
        job.wait_switched(both)
        assert reports_of(job, 3, ReportKind.SWITCHED, grown.generation) == []
        result = job.wait_finished()
    assert result["digest"] == expected["digest"]
    assert result["metrics"] == expected["metrics"]


def test_a_job_that_ends_while_one_listens_and_the_fast_mode(tmp_path: Path) -> None:
    spec = training_spec(stop=steps(120), reduction=ReductionMode.FAST)
    with local_job(tmp_path, spec) as job:
        job.program = streaming_program(None)
        first = job.plan(1, None)
        grown = job.plan(2, first)
        for membership in (first, grown):
            job.prepare(membership)
        for membership in (first, grown):
            job.wait_ready(membership)
        job.go(first)
        job.wait_step(1)
        job.go(grown)
        result = job.wait_finished()
        digests = {
            report.data["digest"]
            for trainer in job.trainers.values()
            for report in trainer.reports
            if report.kind is ReportKind.FINISHED and "digest" in report.data
        }
    assert result["step"] == 120
    assert np.isfinite(result["metrics"]["loss"])
    assert digests == {result["digest"]}
