"""A site with many jobs that have a past: allocations, events, readings, and an audit log."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import (
    Accelerator,
    Allocation,
    AuditEntry,
    Event,
    Job,
    JobMetric,
    LogChunk,
    ReadingBin,
    SearchTerm,
    StepReport,
    Sweep,
)
from jobs.services.lifecycle.usage_days import usage_days_sum
from tests.frontend.world import give_history, make_job, make_node
from tests.support.builders import at

_CHUNK, _JOBS_CHUNK = 5_000, 2_000
_NUM_USERS = 20
#: Seconds between the submissions of two jobs.
_SUBMISSION_GAP_S = 30
_NUM_NODES, _PER_NODE = 8, 8
_SWEEP_JOBS = 500
_HELD_S = 540
_KINDS = ("submitted", "started", "resize")
_HOUR = datetime.timedelta(hours=1)
_MINUTE = datetime.timedelta(minutes=1)


def past_fill(num_jobs: int, long_job_id: int) -> None:
    """Add jobs until there are `num_jobs`, the last one submitted now, and what they left.

    Days are summed up, as the site's task does.

    Args:
        long_job_id: number of the job with a long history, the next one after those of the site.
    """
    nodes = [make_node(f"rack-{number}", _PER_NODE) for number in range(_NUM_NODES)]
    places = list(Accelerator.objects.filter(node__in=nodes).order_by("pk"))
    _long_job(places[:3])
    assert Job.objects.latest("pk").pk == long_job_id
    first = Job.objects.count()
    start = timezone.now() - datetime.timedelta(seconds=_SUBMISSION_GAP_S * num_jobs)
    _jobs_fill(first, num_jobs, start)
    rows = list(
        Job.objects.filter(pk__gt=long_job_id)
        .order_by("pk")
        .values_list("pk", "owner__username", "submitted_at", "status")
    )
    for begin in range(0, len(rows), _CHUNK):
        _past_of(rows[begin : begin + _CHUNK], places[3:])
    _readings(places, max(start, timezone.now() - datetime.timedelta(days=40)))
    _sweep()
    while usage_days_sum(timezone.now()):
        pass
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _jobs_fill(first: int, last: int, began_at: datetime.datetime) -> None:
    """Add jobs until there are `last`, where number 0 was or would have been at `began_at`."""
    users = [
        User.objects.get_or_create(username=f"user{number}")[0] for number in range(_NUM_USERS)
    ]
    for start in range(first, last, _JOBS_CHUNK):
        numbers = range(start, min(last, start + _JOBS_CHUNK))
        jobs = Job.objects.bulk_create([_job(number, users, began_at) for number in numbers])
        terms, metrics = [], []
        for number, job in zip(numbers, jobs, strict=True):
            texts = [f"setting={name}={value}" for name, value in job.settings.items()]
            texts += [f"tag={tag}" for tag in job.tags]
            terms += [SearchTerm(job=job, term=text) for text in texts]
            best = number * 7919 % 1000 / 1000
            metrics += [
                JobMetric(job=job, name=name, best=value, best_epoch=3, last=value)
                for name, value in (("val_accuracy", best), ("val_loss", 1 - best))
            ]
        SearchTerm.objects.bulk_create(terms)
        JobMetric.objects.bulk_create(metrics)


def _job(number: int, users: Sequence[User], began_at: datetime.datetime) -> Job:
    status = "finished"
    if number % 1000 == 0:
        status = "pending"
    elif number % 50 == 0:
        status = "failed"
    at = began_at + datetime.timedelta(seconds=_SUBMISSION_GAP_S * number)
    return Job(
        owner=users[number % len(users)],
        name=f"{('digits', 'text', 'tables')[number % 3]} {number * 7919 % 100_003}",
        template=("digits_cnn", "tabular", "")[number % 3],
        tags=[f"tag{number % 10}", *(["rare"] if number % 9_999 == 0 else [])],
        settings={"hidden_units": 64 << number % 3, "number": number, "dropout": 0.1},
        facts={"steps_per_epoch": 20, "summary": "x" * 1500},
        code_name="job.py", code_sha256="0" * 64, entry_file="job.py", global_batch_size=32,
        num_virtual_nodes=4, max_accelerators=4, stop_kind="epochs", stop_limit=10,
        status=status, priority=1 + number * 31 % 7 * 10, submitted_at=at,
        started_at=at, ended_at=None if status == "pending" else at + datetime.timedelta(minutes=9),
        duration_s=0.0 if status == "pending" else float(number * 17 % 5000), step=200, epoch=10,
        loss=0.1, colour=number % 12,
    )  # fmt: skip


def _long_job(places: list[Accelerator]) -> None:
    """Add a job that has been resized 60 times, with 20,000 reports, 5,000 lines and events."""
    job = make_job(User.objects.get(username="ada"), "long", JobStatus.RUNNING, stop_limit=10**6)
    give_history(job, places, [1, 3] * 30)
    now, last = timezone.now(), job.step
    StepReport.objects.bulk_create(
        (
            StepReport(
                job=job, generation=60, first_step=last + 15 * n + 1, last_step=last + 15 * n + 15,
                epoch=(last + 15 * n) // 12, examples=1920, seconds=2.0, loss=1 / (n + 1),
                num_accelerators=3, batch_size=128, at=now - _MINUTE + n * _MINUTE / 20_000,
            )
            for n in range(20_000)
        ),
        _CHUNK,
    )  # fmt: skip
    LogChunk.objects.bulk_create(
        LogChunk(job=job, slot=n % 3, offset=n // 3 * 80, size_bytes=80, text="x" * 79 + "\n",
                 at=now)
        for n in range(5_000)
    )  # fmt: skip
    Event.objects.bulk_create(
        Event(job=job, kind="resize", actor="policy", message=f"Resize {n}", at=now)
        for n in range(5_000)
    )
    Job.objects.filter(pk=job.pk).update(step=last + 300_000, epoch=(last + 300_000) // 12)


def _past_of(rows: Sequence[tuple[Any, ...]], places: Sequence[Accelerator]) -> None:
    """Let each job have held two accelerators, with four events and an audit entry."""
    allocations, events, entries = [], [], []
    for job_id, owner, submitted_at, status in rows:
        entries.append(
            AuditEntry(at=submitted_at, actor=f"user:{owner}", action="job_read",
                       object=f"job:{job_id}/log", address="10.0.0.7")
        )  # fmt: skip
        end = submitted_at + datetime.timedelta(seconds=_HELD_S)
        kinds = (
            ("submitted",) if status == "pending" else ("submitted", "started", "resize", status)
        )
        events += [
            Event(job_id=job_id, kind=kind, actor="system", message=f"{kind} after a while",
                  at=submitted_at + number * _MINUTE)
            for number, kind in enumerate(kinds)
        ]  # fmt: skip
        if status != "pending":
            allocations += [
                Allocation(
                    job_id=job_id, accelerator=places[(2 * job_id + slot) % len(places)], slot=slot,
                    granted_generation=1, granted_at=submitted_at, joined_at=submitted_at,
                    left_at=end, released_at=end,
                )
                for slot in range(2)
            ]  # fmt: skip
    Allocation.objects.bulk_create(allocations)
    Event.objects.bulk_create(events)
    AuditEntry.objects.bulk_create(entries)


def _readings(places: Sequence[Accelerator], start: datetime.datetime) -> None:
    """Add an hourly reading of each accelerator since `start`, and one of each last minute."""
    now = timezone.now()
    times = [(3600, start + n * _HOUR) for n in range(int((now - start) / _HOUR))]
    times += [(60, now - n * _MINUTE) for n in range(1, 120)]
    ReadingBin.objects.bulk_create(
        (
            ReadingBin(
                accelerator=place, width_s=width_s, at=time, read_at=time, num_readings=6,
                utilisation_percent=float((place.pk + n) % 100), utilisation_peak=100.0,
                memory_bytes=1e9, memory_peak=2e9,
            )
            for place in places
            for n, (width_s, time) in enumerate(times)
        ),
        _CHUNK,
    )  # fmt: skip


def _sweep() -> None:
    sweep = Sweep.objects.create(
        owner=User.objects.get(username="ada"), name="wide",
        space={"number": [1], "dropout": [0]}, max_running=8, submitted_at=at(0),
    )  # fmt: skip
    ended = Job.objects.filter(status="finished").order_by("-id")
    newest = list(ended.values_list("pk", flat=True)[:_SWEEP_JOBS])
    Job.objects.filter(pk__in=newest).update(sweep=sweep, owner=sweep.owner)
