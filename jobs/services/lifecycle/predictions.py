"""Results of prediction jobs: their stored parts, and the one file joined from them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import logging
import tempfile
from collections.abc import Mapping
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from django.db.models import Exists, F, OuterRef, Q

from controlplane.core.protocol.plain_text import plain_text
from controlplane.core.protocol.prediction_parts import (
    RESULT_FILE,
    PredictionPart,
    examples_safe,
    part_of,
    parts_join,
)
from controlplane.core.protocol.wire import Membership, Task
from controlplane.core.values.lifecycle import JobStatus
from jobs.exceptions import is_disk_full
from jobs.models import Artifact, Event, Job
from jobs.selectors.estimates.memory import size_text
from jobs.services.lifecycle.artifacts import artifact_keep
from jobs.services.lifecycle.events import event_add, job_fields

logger = logging.getLogger(__name__)

#: Seconds after which an unfinished join counts as lost and another process may start again.
JOIN_LIMIT_S = 900.0
_DAMAGED = "predictions_damaged"
_CAUSE_CHARACTERS = 500
#: Errors of a disk or of the network's file system.
_READ_ERRORS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)


def parts_stored(job: Job) -> dict[PredictionPart, Artifact]:
    """List the parts of a job's predictions that are stored."""
    rows = job.artifacts.filter(name__startswith="predictions-")
    return {part: row for row in rows if (part := part_of(row.name))}


def membership_resume(job: Job, membership: Membership) -> Membership:
    """Set where predictions resume, if no member has a state that contains it."""
    if job.task != Task.PREDICT or membership.source_slot is not None or not membership.members:
        return membership
    return dataclasses.replace(membership, resume_at=_examples_stored(job))


def predictions_are_whole(job: Job, finished: Mapping[str, Any]) -> bool:
    """Return whether stored parts hold a prediction for each example counted by the leader."""
    return _examples_stored(job) >= finished["num_examples"]


def _examples_stored(job: Job) -> int:
    """Count the examples with stored predictions by the names alone: parts may be very many."""
    names = job.artifacts.filter(name__startswith="predictions-").values_list("name", flat=True)
    return examples_safe(part for name in names if (part := part_of(name)))


def predictions_join_next(now: datetime.datetime) -> int | None:
    """Join the parts of one finished job; return its id, or None if no job is waiting."""
    has_result = Artifact.objects.filter(job=OuterRef("pk"), name=RESULT_FILE)
    is_free = Q(results_claimed_at=None) | Q(
        results_claimed_at__lt=now - datetime.timedelta(seconds=JOIN_LIMIT_S)
    )
    was_tried = Event.objects.filter(job=OuterRef("pk"), kind=_DAMAGED)
    waiting = Job.objects.filter(
        is_free, task=Task.PREDICT, status=JobStatus.FINISHED, files_deleted_at=None
    ).exclude(Exists(has_result) | Exists(was_tried))
    # One that was tried for long keeps no other job waiting.
    for job in waiting.order_by(F("results_claimed_at").asc(nulls_first=True), "id")[:10]:
        if Job.objects.filter(is_free, id=job.pk).update(results_claimed_at=now):
            _join(job, now)
            return job.pk
    return None


def _is_read_error(error: Exception) -> bool:
    """Return whether a read failed that may succeed later; `zipfile` hides some in its own."""
    causes = (error, error.__context__)
    return any(isinstance(one, OSError) and one.errno in _READ_ERRORS for one in causes)


def _join(job: Job, now: datetime.datetime) -> None:
    parts = parts_stored(job)
    num_examples = examples_safe(parts)
    with tempfile.TemporaryFile() as whole:
        try:
            parts_join(parts, num_examples, lambda part: parts[part].file.open("rb"), whole)
        except Exception as error:  # of parts that a job wrote
            is_late = isinstance(error, SoftTimeLimitExceeded)
            is_first = job.results_claimed_at is None
            if is_disk_full(error) or _is_read_error(error) or (is_late and is_first):
                raise  # tried again after JOIN_LIMIT_S
            if Job.objects.exclude(files_deleted_at=None).filter(id=job.pk).exists():
                return  # its parts went meanwhile
            text = "predictions of job %s cannot be joined"
            logger.exception(text, job.pk, extra=job_fields(job))
            # Names and types of arrays are the job's own words.
            cause = "it takes too long" if is_late else plain_text(str(error))[:_CAUSE_CHARACTERS]
            text = f"The parts of its predictions cannot be joined: {cause}"
            event_add(_DAMAGED, text, now=now, job=job)
            return
        size_bytes = whole.tell()
        artifact_keep(job, RESULT_FILE, whole, now)
    job.artifacts.filter(name__startswith="predictions-").delete()
    event_add(
        "predictions_stored",
        f"Predictions of {num_examples:,} examples are in {RESULT_FILE} ({size_text(size_bytes)})",
        now=now,
        job=job,
        data={"num_examples": num_examples, "parts": len(parts)},
    )
    # Of very many the time may not be enough; those left go with the job's other files.
    for row in parts.values():
        with contextlib.suppress(OSError):
            row.file.delete(save=False)
