"""Retention of files: when those of an ended job are deleted, and how much a user stores."""

from __future__ import annotations

import datetime
from typing import IO

from django.conf import settings
from django.db.models import Sum
from django.db.models.fields.files import FieldFile

from jobs.exceptions import GoneError
from jobs.models import Artifact, Job


def files_expire_at(job: Job) -> datetime.datetime | None:
    """Return when the files of a job are deleted; None while it runs, or if they are kept."""
    if job.ended_at is None or job.files_deleted_at is not None or not settings.RETENTION_DAYS:
        return None
    return job.ended_at + datetime.timedelta(days=settings.RETENTION_DAYS)


def job_code(job: Job) -> FieldFile:
    """Return the code of a job.

    Raises:
        GoneError: the job's files were deleted.
    """
    if job.files_deleted_at is not None:
        raise GoneError(
            f"The files of job {job.pk} were deleted on {job.files_deleted_at:%Y-%m-%d}; submit "
            "its code again.",
            code="files_deleted",
        )
    return job.code


def code_open(job: Job) -> IO[bytes]:
    """Open the code of a job.

    Raises:
        GoneError: the job's files were deleted, perhaps since the job was read.
    """
    try:
        return job_code(job).open("rb")
    except FileNotFoundError:
        text = f"The files of job {job.pk} were deleted just now."
        raise GoneError(text, code="files_deleted") from None


def stored_bytes(user_id: int) -> int:
    """Return the size of the code and the files of all jobs of a user."""
    code = Job.objects.filter(owner_id=user_id).aggregate(total=Sum("code_bytes"))["total"]
    files = Artifact.objects.filter(job__owner_id=user_id).aggregate(total=Sum("size_bytes"))
    return (code or 0) + (files["total"] or 0)
