"""What policies say about jobs is kept where it changed, and nowhere else."""

from __future__ import annotations

import datetime

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.core.values.lifecycle import JobStatus
from controlplane.core.values.types import Plan
from jobs.models import Job
from jobs.services.scheduling.explanations import reasons_save
from tests.builders import START, job_make, user_make

pytestmark = pytest.mark.django_db


def plan_make(reasons: dict[int, str], starts_in_s: dict[int, float] | None = None) -> Plan:
    return Plan((), {}, reasons, starts_in_s=starts_in_s or {})


def later(seconds: float) -> datetime.datetime:
    return START + datetime.timedelta(seconds=seconds)


def test_only_changes_are_written() -> None:
    owner = user_make()
    first, second = (job_make(owner, status=JobStatus.PENDING) for _ in range(2))
    reasons = {first.pk: "Waits for 2.", second.pk: "Waits for 3."}
    assert reasons_save(plan_make(reasons), START) == {first.pk, second.pk}
    assert reasons_save(plan_make(reasons), START) == set()
    version = Job.objects.get(id=first.pk).version
    assert reasons_save(plan_make(reasons | {first.pk: "Waits for 1."}), START) == {first.pk}
    first.refresh_from_db()
    assert (first.policy_reason, first.version) == ("Waits for 1.", version + 1)


def test_an_expected_start_is_told_anew_only_when_it_moves() -> None:
    job = job_make(user_make(), status=JobStatus.PENDING)

    def told(at_s: float, starts_in_s: float | None) -> datetime.datetime | None:
        starts = {} if starts_in_s is None else {job.pk: starts_in_s}
        reasons_save(plan_make({job.pk: "Waits."}, starts), later(at_s))
        return Job.objects.get(id=job.pk).expected_start_at

    assert told(0.0, 600.0) == later(600.0)
    assert told(10.0, 620.0) == later(600.0)  # 30 s later: less than a tenth of 620
    assert told(10.0, 660.0) == later(670.0)  # 70 s later: more
    assert told(650.0, 30.0) == later(670.0)  # 10 s later: less than 15
    assert told(660.0, None) is None


def test_who_has_ended_keeps_the_last_word() -> None:
    job = job_make(user_make(), status=JobStatus.CANCELLED)
    assert reasons_save(plan_make({job.pk: "Waits."}, {job.pk: 5.0}), START) == set()
    job.refresh_from_db()
    assert (job.policy_reason, job.expected_start_at) == ("", None)


def test_many_jobs_take_few_statements() -> None:
    owner = user_make()
    jobs = [job_make(owner, status=JobStatus.PENDING) for _ in range(40)]
    with CaptureQueriesContext(
        connection,
    ) as queries:
        reasons_save(plan_make({job.pk: "Waits." for job in jobs}), START)
    assert len(queries) <= 4  # a read, and a write with its transaction
