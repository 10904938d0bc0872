"""A killed leader takes no steps with it: the others report those that it had not reported."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.trainer.model.progress import Progress
from agents.trainer.model.recent_steps import RECENT_LIMIT, StepsDone, steps_after, with_step
from controlplane.core.protocol.wire import ReportKind, StopCondition, StopKind
from tests.agents.trainer.local_jobs import UNEVEN_JOB, FaultyJob, local_job, training_spec

NUM_STEPS = 600
STOP = StopCondition(kind=StopKind.STEPS, limit=NUM_STEPS)


def told_losses(job: FaultyJob) -> list[tuple[int, int, float]]:
    """Give all reports of steps: first and last step, and the loss; in order of the steps."""
    return sorted(
        (report.data["first_step"], report.data["last_step"], report.data["loss"])
        for report in job.step_reports()
    )


def kill_with_its_newest_report(job: FaultyJob, slot: int) -> None:
    """Lose a leader with its machine: what it reported last was not sent on."""
    job.kill(slot)
    trainer = job.trainers[slot]
    trainer.process.wait()
    trainer.read()
    trainer.reports.remove([r for r in trainer.reports if r.kind is ReportKind.STEPS][-1])


@pytest.mark.nightly  # tests/e2e/test_whole_stack.py kills one leader
def test_two_killed_leaders_leave_no_gap_and_tell_no_step_twice(tmp_path: Path) -> None:
    with local_job(tmp_path, training_spec(stop=STOP), UNEVEN_JOB) as job:
        job.resize(3)
        missing = []
        for leader, left, step in ((0, [1, 2], 60), (1, [2], 200)):
            job.wait_step(step)
            kill_with_its_newest_report(job, leader)
            job.wait(
                lambda left=left: all(
                    (stalled := job.trainers[slot].last(ReportKind.STALLED)) is not None
                    and stalled.generation == job._generation
                    for slot in left
                ),
                "the others to miss it",
                60.0,
            )
            stalled = job.trainers[left[0]].last(ReportKind.STALLED)
            assert stalled is not None
            missing.append(stalled.data["step"] - job.steps_known())
            job.recover(left)
        digest = job.wait_finished()["digest"]
        told = told_losses(job)
    assert min(missing) > 0
    assert [first for first, _, _ in told] == [1, *(last + 1 for _, last, _ in told[:-1])]
    assert told[-1][1] == NUM_STEPS

    (tmp_path / "calm").mkdir()
    with local_job(tmp_path / "calm", training_spec(stop=STOP), UNEVEN_JOB) as job:
        job.resize(1)
        assert job.wait_finished()["digest"] == digest
        calm = told_losses(job)
    for lossy, whole in ((told, calm), (calm, told)):  # sums up to where both have a border
        borders = {last for _, last, _ in lossy} & {last for _, last, _ in whole}
        for border in borders:
            sums = [
                math.fsum((last - first + 1) * loss for first, last, loss in rows if last <= border)
                for rows in (lossy, whole)
            ]
            assert math.isclose(sums[0], sums[1], rel_tol=1e-9)


def done(step: int, generation: int = 1, seconds: float = 0.01) -> StepsDone:
    return StepsDone(generation, step, step, step // 10, 20, seconds, float(step), 2, 20)


@given(
    st.lists(st.integers(1, 3), max_size=30).map(sorted), st.integers(0, 3000), st.integers(0, 3000)
)
def test_what_is_kept_is_bounded_and_whole(changes: list[int], num_steps: int, known: int) -> None:
    recent: tuple[StepsDone, ...] = ()
    for step in range(1, num_steps + 1):
        recent = with_step(recent, done(step, 1 + sum(step > 90 * c for c in changes)))
        assert len(recent) <= RECENT_LIMIT
    told = list(steps_after(recent, known))
    if known >= num_steps:
        assert not told
        return
    assert [entry.first_step for entry in told] == [
        known + 1,
        *(entry.last_step + 1 for entry in told[:-1]),
    ]
    assert told[-1].last_step == num_steps
    assert all(entry.seconds < 0.5 + 30.0 for entry in told)
    exact = [entry for entry in told if entry.first_step > num_steps - RECENT_LIMIT // 2]
    for entry in exact:
        assert entry.loss == (entry.first_step + entry.last_step) / 2
        assert entry.examples == 20 * (entry.last_step - entry.first_step + 1)


def test_where_nothing_can_be_joined_the_oldest_go() -> None:
    recent: tuple[StepsDone, ...] = ()
    for step in range(1, 1001):
        recent = with_step(recent, done(step, generation=step))
    assert len(recent) == RECENT_LIMIT
    assert recent[-1].last_step == 1000
    assert {entry.last_step - entry.first_step for entry in recent} == {0}


def test_entries_are_weighted_and_cut() -> None:
    joined = done(1).joined(done(2)).joined(done(3)._replace(loss=9.0))
    assert (joined.first_step, joined.last_step, joined.loss) == (1, 3, 4.0)
    assert (joined.examples, round(joined.seconds, 6)) == (60, 0.03)
    rest = joined.after(1)
    assert (rest.first_step, rest.last_step, rest.examples) == (2, 3, 40)
    assert round(rest.seconds, 6) == 0.02
    assert done(3).after(1) == done(3)
    assert done(1)._replace(loss=math.nan).report()["loss"] is None


def test_they_travel_with_the_progress() -> None:
    progress = Progress(step=2, recent=(done(1), done(2)))
    assert Progress.from_json(progress.to_json()).recent == (done(1), done(2))
