"""Deletion of ended jobs' files: by their age, or as their owner asks; and the limit of storage."""

from __future__ import annotations

import contextlib
import datetime
import secrets
from collections.abc import Iterable, Iterator, Sequence

from django.conf import settings
from django.core.files.storage import default_storage
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.fields.files import FieldFile

from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES
from jobs.exceptions import ConflictError, TooLargeError
from jobs.models import Allocation, Artifact, AuditAction, Job, LogChunk, Validation
from jobs.models.jobs import LIVE_JOB_STATUSES, artifacts_folder
from jobs.selectors.limits import limits_of
from jobs.selectors.retention import stored_bytes
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import SYSTEM, event_add, user_actor
from jobs.services.lifecycle.transitions import job_lock

#: Jobs whose files are deleted in one run of the task.
EXPIRED_AT_ONCE = 50


def files_delete(job_id: int, now: datetime.datetime, *, actor: str, why: str = "") -> Job:
    """Delete code, results, checkpoints and log of an ended job; a repeated call changes nothing.

    The job itself stays, with its events, figures and digests.

    Raises:
        ConflictError: the job has not ended, its trainers have not, or a live job predicts with its
            model.
    """
    with transaction.atomic():
        job = job_lock(job_id)
        if job.files_deleted_at is not None:
            return job
        trainers = Allocation.objects.filter(job=job, released_at=None)
        if job.status not in ENDED_JOB_STATUSES or trainers.exists():
            text = "Only the files of a job that has ended are deleted; cancel it first."
            raise ConflictError(text, code="wrong_status")
        user = job.used_by.filter(status__in=LIVE_JOB_STATUSES).first()
        if user is not None:
            # Its owner's; an operator of the project may not see it.
            name = f"Job {user.pk}" if actor == user_actor(job.owner) else "A live job of its owner"
            raise ConflictError(f"{name} predicts with its model.", code="in_use")
        files: list[FieldFile] = [job.code, *(row.file for row in job.artifacts.all())]
        Artifact.objects.filter(job=job).delete()
        LogChunk.objects.filter(job=job).delete()
        job.example_previews.all().delete()
        job.update_columns(files_deleted_at=now, code="", code_bytes=0, version=job.version + 1)
        text = f"Its files are deleted{why}"
        event_add("files_deleted", text, now=now, job=job, actor=actor)
        if actor not in (SYSTEM, user_actor(job.owner)):
            audit_add(AuditAction.FILES_DELETED, f"job:{job.pk}", owner=job.owner_id)
        # The rows first: a row must never refer to a missing file.
        transaction.on_commit(lambda: _remove(files, artifacts_folder(job_id)))
    return job


def files_expire(now: datetime.datetime) -> set[int]:
    """Delete the files of some jobs that ended long enough ago; return these jobs."""
    if not settings.RETENTION_DAYS:
        return set()
    before = now - datetime.timedelta(days=settings.RETENTION_DAYS)
    days = "1 day" if settings.RETENTION_DAYS == 1 else f"{settings.RETENTION_DAYS:g} days"
    old = Job.objects.filter(ended_at__lt=before).order_by("ended_at")
    return files_delete_some(old, now, why=f", {days} after its end")


def files_delete_some(jobs: QuerySet[Job], now: datetime.datetime, *, why: str) -> set[int]:
    """Delete the files of the first of some jobs, which have ended; return these jobs."""
    kept = jobs.filter(files_deleted_at=None).exclude(used_by__status__in=LIVE_JOB_STATUSES)
    free = kept.exclude(allocations__released_at=None, allocations__isnull=False)
    deleted = set()
    for job_id in free.values_list("pk", flat=True)[:EXPIRED_AT_ONCE]:
        with contextlib.suppress(ConflictError):  # a live job has come to use its model
            files_delete(job_id, now, actor=SYSTEM, why=why)
            deleted.add(job_id)
    return deleted


def files_left_remove(now: datetime.datetime) -> None:
    """Remove what is left of files deleted within a day, as of very many by a task cut short."""
    recent = Job.objects.filter(files_deleted_at__gt=now - datetime.timedelta(days=1))
    for job_id in recent.values_list("pk", flat=True):
        _remove([], artifacts_folder(job_id))


def code_left_remove(now: datetime.datetime) -> None:
    """Remove code that no row has, as of processes that were killed, among a 256th of all code."""
    for file in _code_left(secrets.token_hex(1), now):
        default_storage.delete(file)


def files_left(now: datetime.datetime) -> Iterator[str]:
    """Find code and jobs' files that no row has, as after a restored backup; a day old at least."""
    for number in range(256):
        yield from _code_left(f"{number:02x}", now)
    for folder in _listed("jobs")[0]:
        if folder.isdecimal():
            names = [f"jobs/{folder}/{name}" for name in _listed(f"jobs/{folder}")[1]]
            rows = Artifact.objects.filter(file__in=names).values_list("file", flat=True)
            yield from _old({*names} - {*rows}, now)


def _code_left(start: str, now: datetime.datetime) -> list[str]:
    files = [f"code/{name}" for name in _listed("code")[1] if name.startswith(start)]
    old = _old(files, now)
    for model in (Job, Validation):
        rows = model.objects.filter(code__in=old)
        old = sorted({*old} - {*rows.values_list("code", flat=True)})
    return old


def _listed(folder: str) -> tuple[list[str], list[str]]:
    """Return the folders and files in a folder of the storage; none if it is not there."""
    with contextlib.suppress(FileNotFoundError):
        return default_storage.listdir(folder)
    return [], []


def _old(files: Iterable[str], now: datetime.datetime) -> list[str]:
    """Return the files that nobody is making: a day old, also by each other name for them."""
    old, before = [], now - datetime.timedelta(days=1)
    for file in sorted(files):
        with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
            if default_storage.get_created_time(file) < before:
                old.append(file)
    return old


def storage_check(user_id: int, new_bytes: int, *, times: int = 1) -> None:
    """Enforce a user's limit of storage.

    Raises:
        TooLargeError: the files of the user's jobs would exceed so many times the limit.
    """
    limit_bytes = times * limits_of(user_id, is_admin=False).storage_limit_bytes
    if not limit_bytes:
        return
    used_bytes = stored_bytes(user_id)
    if used_bytes + new_bytes > limit_bytes:
        gib = 1024**3
        raise TooLargeError(
            f"The files of your jobs take {used_bytes / gib:.2f} of {limit_bytes / gib:g} GiB; "
            "delete those of jobs that have ended first.",
            code="storage_full",
        )


def _remove(files: Sequence[FieldFile], folder: str) -> None:
    """Delete files, and a folder with what uploads left there whose process was killed."""
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            file.storage.delete(file.name or "")
    with contextlib.suppress(OSError):
        for name in default_storage.listdir(folder)[1]:
            default_storage.delete(f"{folder}/{name}")
        default_storage.delete(folder)
