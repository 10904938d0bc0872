"""User actions on jobs: submit, cancel, pause, resume, reprioritise, describe.

Services check whether the job's state allows an action. Permission is checked in the request
handlers, which select only jobs visible to the user (selectors.access).
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.db import IntegrityError, transaction

from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from jobs.exceptions import ConflictError, InvalidInputError, StaleVersionError, TooLargeError
from jobs.files import stored_with_row
from jobs.models import AuditAction, IdempotencyKey, Job, Validation
from jobs.selectors.access import projects_open_to
from jobs.services.lifecycle.artifacts import new_files_undone
from jobs.services.lifecycle.events import event_add, jobs_event_add, user_actor
from jobs.services.lifecycle.search_rows import search_terms_add
from jobs.services.lifecycle.transitions import (
    job_lock,
    job_pause_now,
    jobs_unchanged,
    status_change,
)
from jobs.services.scheduling.resizes import job_empty
from jobs.services.submission.forks import fork_admit
from jobs.services.submission.job_changes import (
    Refusals,
    jobs_audit,
    jobs_cancel,
    jobs_describe,
    jobs_reprioritise,
    not_possible,
    standings_stale,
)
from jobs.services.submission.rows import job_from, room_check, source_keep
from jobs.services.submission.standing import UNCHANGED, Standing
from jobs.services.submission.validation_requests import validations_reuse
from jobs.services.submission.validations import validation_start
from jobs.submission import Submission, fingerprint

_RUNNING = (JobStatus.STARTING, JobStatus.RUNNING)
_REASON_LIMIT = 500


def job_submit(
    user: User,
    submission: Submission,
    now: datetime.datetime,
    *,
    idempotency_key: str = "",
    copied_from: Job | None = None,
    digest: str = "",
) -> Job:
    """Store a checked submission and queue its validation; the same key returns the same job.

    A submission that was validated before is not validated again.

    Args:
        digest: of the request that the key is for; empty: of the submission.

    Raises:
        ConflictError: the user has too many live jobs, or used the key for another submission.
        TooLargeError: the user's jobs have left too many files.
        InvalidInputError: the source job does not exist or has no model, or the project is full.
    """
    digest = digest or fingerprint(submission)
    if idempotency_key and (known := submission_known(user, idempotency_key, digest)):
        return known
    job = job_from(user, submission, now)
    # The file first: a row must never refer to a missing file.
    job.code.save(submission.code_name, ContentFile(submission.code), save=False)
    try:
        with stored_with_row(job.code), transaction.atomic(), new_files_undone([job]):
            room_check(user, job.project, submission)
            data = {"cloned_from": copied_from.pk} if copied_from and not job.fork else {}
            text = submitted_text(job, copied_from, user)
            validations = jobs_store([job], user, now, data, text)
            if idempotency_key:
                submission_note(job, idempotency_key, digest)
    except (IntegrityError, ConflictError, InvalidInputError, TooLargeError):
        known = submission_known(user, idempotency_key, digest) if idempotency_key else None
        if known is None:
            raise
        return known
    for validation in validations:
        validation_start(validation, now)
    job.refresh_from_db()
    return job


def submitted_text(job: Job, original: Job | None, user: User) -> str:
    """Return the text of a job's first event, which tells of a project that it lacks."""
    if original is None or original.project is None or job.project is not None:
        return "Submitted"
    if projects_open_to(user).filter(pk=original.project.pk).exists():
        return "Submitted"
    name = original.project.name
    return f"Submitted without project {name} of job {original.pk}: its owner cannot submit to it"


def jobs_store(
    jobs: Sequence[Job],
    user: User,
    now: datetime.datetime,
    data: dict[str, Any],
    text: str = "Submitted",
) -> list[Validation]:
    """Insert the rows of jobs with the same code, which is stored, and return their validations.

    None of a job that was validated before, or waits for the state that it starts from.

    Raises:
        InvalidInputError: the files of the source job were deleted since it was found.
    """
    source_keep(jobs[0].source_job_id)
    Job.objects.bulk_create(jobs)
    search_terms_add(jobs)
    jobs_event_add("submitted", text, jobs, now=now, actor=user_actor(user), data=data)
    for job in jobs:
        if job.fork:
            fork_admit(job, user, now)
    stated = [job for job in jobs if job.fork_deadline_at is None]
    new = validations_reuse(stated, now) if stated else []
    return Validation.objects.bulk_create(
        [Validation(owner=user, job=job, requested_at=now) for job in new]
    )


def submission_note(job: Job, key: str, digest: str) -> None:
    """Store the key of a submission, in its transaction.

    Raises:
        IntegrityError: another submission was first; the transaction can still read.
    """
    with transaction.atomic():
        IdempotencyKey.objects.create(user=job.owner, key=key, body_sha256=digest, job=job)


def submission_known(user: User, key: str, digest: str) -> Job | None:
    """Return the job that a submission with this key has made, the first one of a sweep.

    Raises:
        ConflictError: the key was used for another submission.
    """
    row = IdempotencyKey.objects.filter(user=user, key=key).select_related("job").first()
    if row is None:
        return None
    if row.body_sha256 != digest:
        raise ConflictError(
            "This Idempotency-Key was used for another submission; choose a new one.",
            code="idempotency_key_reused",
        )
    return row.job


def job_cancel(job_id: int, now: datetime.datetime, *, actor: str, reason: str = "") -> Job:
    """Cancel a job; a repeated call changes nothing.

    Raises:
        ConflictError: the job ended another way.
    """
    with transaction.atomic():
        job = _locked(job_id)
        _refusal_raise(jobs_cancel([job], now, actor=actor, reason=reason))
    return job


def job_pause(job_id: int, now: datetime.datetime, *, actor: str, reason: str = "") -> Job:
    """Pause a job until it is resumed; a running job saves its state and releases accelerators.

    A switch under way is completed first; the request is remembered.

    Raises:
        ConflictError: the job has ended or is still being validated.
    """
    with transaction.atomic():
        job = _locked(job_id)
        if job.status == JobStatus.PAUSED or job.pause_requested:
            jobs_unchanged([job])
            return job
        if job.status in ENDED_JOB_STATUSES or job.status == JobStatus.VALIDATING:
            raise not_possible(job, "paused")
        job.update_columns(revision=job.revision + 1, pause_requested=True)
        text = f"Pause asked by {actor}" + (f": {reason}" if reason else "")
        data = {"reason": reason}
        event_add("pause_requested", text, now=now, job=job, actor=actor, data=data)
        jobs_audit(AuditAction.JOB_PAUSED, actor, [(job, data)])
        if job.status in _RUNNING:
            job_empty(job, now, reason=text, actor=actor)
        if job.status == JobStatus.PENDING:
            job_pause_now(job, now)
    return job


def job_resume(job_id: int, now: datetime.datetime, *, actor: str, reason: str = "") -> Job:
    """Queue a paused job again; a repeated call changes nothing.

    Raises:
        ConflictError: the job has ended or is still being validated.
    """
    with transaction.atomic():
        job = _locked(job_id)
        if job.pause_requested:
            job.update_columns(revision=job.revision + 1, pause_requested=False)
        elif job.status == JobStatus.PAUSED:
            status_change(
                job,
                JobStatus.PENDING,
                pending_since=now,
                status_code="waiting",
                status_reason="Waits for accelerators.",
            )
        elif job.status in ENDED_JOB_STATUSES or job.status == JobStatus.VALIDATING:
            raise not_possible(job, "resumed")
        else:
            jobs_unchanged([job])
            return job
        text = f"Resumed by {actor}" + (f": {reason}" if reason else "")
        data = {"reason": reason}
        event_add("resumed", text, now=now, job=job, actor=actor, data=data)
        jobs_audit(AuditAction.JOB_RESUMED, actor, [(job, data)])
    return job


def job_reprioritise(
    job_id: int,
    standing: Standing,
    now: datetime.datetime,
    *,
    actor: str,
    reason: str = "",
    is_reason_required: bool = False,
    seen_revision: int | None = None,
    seen: Standing = UNCHANGED,
) -> Job:
    """Change a job's priority, tier or both, effective from the next cycle.

    Raises:
        InvalidInputError: the reason is missing.
        StaleVersionError: the job changed since `seen_revision`, or its standing is not `seen`.
        ConflictError: the job has ended.
    """
    reason_check(reason, is_required=is_reason_required)
    with transaction.atomic():
        job = _locked(job_id, seen_revision)
        _refusal_raise(standings_stale([job], {job.pk: seen}))
        given = {job.pk: standing}
        _refusal_raise(jobs_reprioritise([job], given, now, actor=actor, reason=reason))
    return job


def reason_check(reason: str, *, is_required: bool) -> None:
    """Check the reason of a new priority.

    Raises:
        InvalidInputError: it is missing or too long.
    """
    if is_required and not reason.strip():
        raise InvalidInputError.of(reason="Say why: the owner will read it.")
    if len(reason) > _REASON_LIMIT:
        raise InvalidInputError.of(reason=f"At most {_REASON_LIMIT} characters.")


def job_describe(
    job_id: int,
    now: datetime.datetime,
    *,
    actor: str,
    tags: Sequence[str] | None = None,
    note: str | None = None,
    seen_revision: int | None = None,
) -> Job:
    """Replace tags or note of a job in any status; they have no effect on its training.

    Raises:
        InvalidInputError: the job would have too many tags.
        StaleVersionError: the job changed since `seen_revision`.
    """
    with transaction.atomic():
        job = _locked(job_id, seen_revision)
        _refusal_raise(jobs_describe([job], now, actor=actor, tags=tags, note=note))
    return job


def _locked(job_id: int, seen_revision: int | None = None) -> Job:
    job = job_lock(job_id)
    if seen_revision is not None and job.revision != seen_revision:
        raise StaleVersionError("The job changed in the meantime; read it again.")
    return job


def _refusal_raise(refused: Refusals) -> None:
    for error in refused.values():
        raise error
