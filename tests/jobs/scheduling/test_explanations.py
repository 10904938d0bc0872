"""What policies say about jobs is kept where it changed, and nowhere else."""

from __future__ import annotations

import datetime
import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.core.expected_starts import ExpectedStart
from controlplane.core.play import TimeRange
from controlplane.core.values.lifecycle import JobStatus
from controlplane.core.values.types import Snapshot
from jobs.models import Job, JobForecast
from jobs.selectors.next_cycle import decide_timed
from jobs.services.scheduling import explanations
from jobs.services.scheduling.explanations import reasons_save, unreadable_note
from tests.support.builders import START, job_make, user_make

pytestmark = pytest.mark.django_db


def later(seconds: float) -> datetime.datetime:
    return START + datetime.timedelta(seconds=seconds)


def test_only_changes_are_written() -> None:
    owner = user_make()
    first, second = (job_make(owner, status=JobStatus.PENDING) for _ in range(2))
    reasons = {first.pk: "Waits for 2.", second.pk: "Waits for 3."}
    assert reasons_save(reasons, {}, {}, START) == {first.pk, second.pk}
    assert reasons_save(reasons, {}, {}, START) == set()
    version = Job.objects.get(id=first.pk).version
    assert reasons_save(reasons | {first.pk: "Waits for 1."}, {}, {}, START) == {first.pk}
    first.refresh_from_db()
    assert (first.policy_reason, first.version) == ("Waits for 1.", version + 1)


def test_an_expected_start_is_told_anew_only_when_it_moves() -> None:
    job = job_make(user_make(), status=JobStatus.PENDING)

    def told(
        at_s: float, earliest_s: float | None, latest_s: float = 0.0
    ) -> tuple[datetime.datetime | None, datetime.datetime | None]:
        starts = {} if earliest_s is None else {job.pk: ExpectedStart(earliest_s, latest_s)}
        reasons_save({job.pk: "Waits."}, starts, {}, later(at_s))
        job.refresh_from_db()
        forecast = JobForecast.of(job)
        return forecast.expected_start_earliest_at, forecast.expected_start_latest_at

    def changed() -> tuple[int, datetime.datetime | None]:
        forecast = JobForecast.of(job)
        return forecast.expected_start_changes, forecast.expected_start_changed_at

    assert told(0.0, 300.0, 600.0) == (later(300.0), later(600.0))
    assert job.policy_reason == "Waits.", "a duration in a stored sentence would grow old"
    # 30 s later: less than a tenth of 320 and of 620.
    assert told(10.0, 320.0, 620.0) == (later(300.0), later(600.0))
    # The latest is 70 s later, more than a tenth of 660: both change.
    assert told(10.0, 320.0, 660.0) == (later(330.0), later(670.0))
    assert told(320.0, 20.0, 360.0) == (later(330.0), later(670.0))  # 10 s later: less than 15
    assert changed() == (1, later(10.0))
    assert told(330.0, None) == (None, None)
    assert job.policy_reason == "Waits."
    assert told(340.0, 60.0, 90.0) == (later(400.0), later(430.0))
    assert told(350.0, 120.0, 150.0) == (later(470.0), later(500.0))
    assert changed() == (2, later(350.0))
    Job.objects.filter(pk=job.pk).update(status=JobStatus.STARTING)
    assert told(360.0, None) == (None, None)
    assert changed() == (0, None)


def test_an_end_with_resizes_is_told_anew_only_when_it_moves() -> None:
    job = job_make(user_make(), status=JobStatus.RUNNING)

    def told(
        at_s: float, earliest_s: float | None, latest_s: float = 0.0
    ) -> tuple[datetime.datetime | None, datetime.datetime | None]:
        ends = {} if earliest_s is None else {job.pk: TimeRange(earliest_s, latest_s)}
        reasons_save({job.pk: "Has 2."}, {}, ends, later(at_s))
        job.refresh_from_db()
        forecast = JobForecast.of(job)
        assert (forecast.expected_start_earliest_at, forecast.expected_start_changes) == (None, 0)
        return forecast.resized_end_earliest_at, forecast.resized_end_latest_at

    assert told(0.0, 300.0, 600.0) == (later(300.0), later(600.0))
    version = job.version
    assert told(10.0, 310.0, 580.0) == (later(300.0), later(600.0))
    assert job.version == version
    assert told(10.0, 310.0, 700.0) == (later(320.0), later(710.0))
    assert told(20.0, None) == (None, None)


def test_who_has_ended_keeps_the_last_word() -> None:
    job = job_make(user_make(), status=JobStatus.CANCELLED)
    assert reasons_save({job.pk: "Waits."}, {job.pk: ExpectedStart(5.0, 9.0)}, {}, START) == set()
    job.refresh_from_db()
    assert (job.policy_reason, JobForecast.of(job).expected_start_latest_at) == ("", None)


def test_many_jobs_take_few_statements() -> None:
    owner = user_make()
    jobs = [job_make(owner, status=JobStatus.PENDING) for _ in range(40)]
    with CaptureQueriesContext(connection) as queries:
        reasons_save({job.pk: "Waits." for job in jobs}, {}, {}, START)
    assert len(queries) <= 5  # a read, a lock, and a write with its transaction


@pytest.mark.parametrize(("took_s", "num"), [(0.6, 0), (0.26, 1), (0.24, 2), (0.01, 32)])
def test_slow_decisions_leave_a_forecast_few(
    took_s: float, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a second is for 50 decisions of 10 ms: 32, the power of two below."""
    times = iter((0.0, took_s))
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    empty = Snapshot(now=0.0, seed=0, accelerators=(), jobs=())
    assert decide_timed(empty, "fifo")[1] == num


def test_an_unreadable_job_loses_its_forecast_and_is_told_once_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = job_make(status=JobStatus.PENDING)
    told = {job.pk: ExpectedStart(10.0, 20.0)}
    reasons_save({job.pk: "Waits for 2."}, told, {}, START)
    with monkeypatch.context() as broken:
        broken.setattr(explanations, "event_add", lambda *_args, **_kept: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            unreadable_note({job.pk: "steps: nan"}, START)
    assert Job.objects.get().policy_reason == "Waits for 2."
    assert JobForecast.of(Job.objects.get()).expected_start_latest_at == later(20.0)
    assert unreadable_note({job.pk: "steps: nan"}, START) == {job.pk}
    assert "(steps: nan)" in Job.objects.get().policy_reason
    assert JobForecast.of(Job.objects.get()).expected_start_latest_at is None
    assert unreadable_note({job.pk: "steps: nan"}, START) == set()
