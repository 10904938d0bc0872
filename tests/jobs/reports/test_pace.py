"""The time between two reports that nodes are told."""

from __future__ import annotations

import pytest

from controlplane.core.protocol.wire import REPORT_EVERY_S, ReportKind
from jobs.services.reports import batches, progress, row_pace
from jobs.services.reports.batches import LONGEST_S, REPORTS_A_SECOND, ReportPace, batch_take
from jobs.services.reports.row_pace import RowPace
from tests.jobs.world import settled


@pytest.mark.parametrize("num_jobs", [0, 1, 50, 51, 100, 101, 250, 400, 401, 800, 20_000])
def test_no_more_reports_come_than_can_be_taken(num_jobs: int) -> None:
    every_s = ReportPace().every_s(range(num_jobs), 100.0)
    assert REPORT_EVERY_S <= every_s <= LONGEST_S
    assert every_s == LONGEST_S or num_jobs / every_s <= REPORTS_A_SECOND
    assert every_s == REPORT_EVERY_S or num_jobs / every_s > REPORTS_A_SECOND / 2


def test_jobs_count_once_and_for_as_long_as_they_are_heard_of() -> None:
    pace = ReportPace()
    for first in range(0, 90, 30):
        pace.every_s(range(first, first + 40), 100.0)
    assert pace.every_s((), 100.5) == 1.0
    assert pace.every_s(range(10), 105.0) == 1.0
    assert pace.every_s((), 111.0) == REPORT_EVERY_S


@pytest.mark.django_db
def test_an_answer_tells_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs counted are those that have trainers on the node by the site's own books."""
    monkeypatch.setattr(batches, "_pace", ReportPace())
    monkeypatch.setattr("jobs.services.reports.batches.REPORTS_A_SECOND", 0.4)
    world, job = settled(max_accelerators=1)
    played, trainer = world.leader_of(job)
    trainer.job_id += 1
    played.say(trainer, ReportKind.PHASE, phase="training")
    reply = batch_take(played.node, played.batch(), world.now).reply
    assert reply.report_every_s == 4.0
    assert len(reply.stale) == 1


def test_rows_of_a_job_are_free_again_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_pace, "BURST_ROWS", 10)
    pace = RowPace(2.0)
    assert [pace.take(1, 6, 100.0), pace.take(1, 6, 100.0), pace.take(1, 1, 100.4)] == [6, 4, 0]
    assert pace.take(2, 6, 100.4) == 6  # another job
    assert pace.take(1, 100, 102.5) == 5
    assert pace.take(1, 100, 1000.0) == 10
    assert pace.take(1, 100, 2000.0) == 10  # others were forgotten


@pytest.mark.django_db
def test_a_job_that_floods_its_history_adds_no_more_rows_than_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_pace, "BURST_ROWS", 3)
    monkeypatch.setattr(progress, "steps_pace", RowPace(0.0))
    monkeypatch.setattr(progress, "epochs_pace", RowPace(0.0))
    world, job = settled(max_accelerators=1)
    for _ in range(5):
        world.train(job)
    played, trainer = world.leader_of(job)
    for first in (0, 5):
        for epoch in range(first, first + 5):
            logs = {"loss": float(epoch)}
            played.say(trainer, ReportKind.EPOCH, epoch=epoch, step=30, logs=logs)
        batch_take(played.node, played.batch(), world.now)
    assert job.step_reports.count() == 3
    assert job.events.filter(kind="report_refused").count() == 1
    # Of epochs the newest stay, and what users see of the job goes on.
    assert [*job.epoch_reports.values_list("epoch", flat=True)] == [2, 3, 4, 9]
    job.refresh_from_db()
    assert (job.epoch, job.metrics) == (10, {"loss": 9.0})
    assert [*job.metric_values.values_list("last", flat=True)] == [9.0]
