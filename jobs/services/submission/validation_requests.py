"""Validation of a submission that is not submitted: its code is built, its memory measured.

A later submission of the same computation reuses the result.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.db import transaction

from controlplane.core.values.lifecycle import NodeStatus, ValidationStatus
from jobs.exceptions import ConflictError
from jobs.files import stored_with_row
from jobs.models import Job, Node, Validation
from jobs.selectors.validations import validation_matching, validations_passed
from jobs.services.submission.rows import SUBMITTED_COLUMNS, job_from, live_jobs_check
from jobs.services.submission.validations import job_queue, unsubmitted_cancel, validation_start
from jobs.submission import Submission

#: Validations without a job that run at a time, per online node.
RUNNING_LIMIT_PER_NODE = 2
#: Of these, how many a user may have.
RUNNING_LIMIT_PER_USER = 2
#: Validations without a job kept per user, and how long they are kept.
KEPT_LIMIT = 20
KEPT_FOR = datetime.timedelta(days=1)


def validation_request(user: User, submission: Submission, now: datetime.datetime) -> Validation:
    """Validate a checked submission without submitting it.

    A new one replaces that of the same user, name and file of code. The same submission returns
    the same validation.

    Raises:
        ConflictError: the user has too many live jobs or running validations, or no node is online
            or free for it.
        InvalidInputError: the source job does not exist or has no model.
    """
    job = job_from(user, submission, now)
    fields = {name: getattr(job, name) for name in SUBMITTED_COLUMNS}
    if known := _known(user, fields):
        return known
    validation = Validation(
        owner=user, job_fields=fields, code_sha256=job.code_sha256, requested_at=now
    )
    validation.code.save(submission.code_name, ContentFile(submission.code), save=False)
    with stored_with_row(validation.code), transaction.atomic():
        live_jobs_check(user)
        if known := _known(user, fields):  # of a request at the same time
            validation.code.delete(save=False)
            return known
        unsubmitted_cancel([job], now)
        _room_check(user)
        validation.save(force_insert=True)
        if not validation_start(validation, now):
            raise _no_node()
    for oldest in Validation.objects.filter(owner=user, job=None).order_by("-id")[KEPT_LIMIT:]:
        _delete(oldest)
    validation.refresh_from_db()
    return validation


def validations_reuse(jobs: Sequence[Job], now: datetime.datetime) -> list[Job]:
    """Queue those jobs just submitted whose computation was validated; return the others.

    All have the same owner and code.
    """
    unsubmitted_cancel(jobs, now)
    passed = validations_passed(jobs[0])
    return [job for job in jobs if not _reuse(job, passed, now)]


def _reuse(job: Job, passed: Sequence[Validation], now: datetime.datetime) -> bool:
    validation = validation_matching(job, passed)
    if validation is None:
        return False
    facts = dict(validation.facts)
    num_validated = validation.validated_job.num_virtual_nodes
    if num_validated != job.num_virtual_nodes:
        note = (
            f"validated with {num_validated} virtual nodes, before it was submitted with "
            f"{job.num_virtual_nodes}"
        )
        facts["warnings"] = [*facts.get("warnings", []), note]
    text = "Code validated before it was submitted"
    job_queue(job, facts, now, text=text)
    return True


def validations_delete_old(now: datetime.datetime) -> int:
    """Delete validations without a job older than `KEPT_FOR`, at most 100; return their number."""
    old = Validation.objects.filter(job=None, requested_at__lt=now - KEPT_FOR)
    return sum(_delete(validation) for validation in old[:100])


def _known(user: User, fields: dict[str, object]) -> Validation | None:
    wanted = (ValidationStatus.RUNNING, ValidationStatus.PASSED)
    mine = Validation.objects.filter(owner=user, job=None, status__in=wanted)
    same = mine.filter(code_sha256=fields["code_sha256"])
    return next((found for found in same if found.job_fields == fields), None)


def _room_check(user: User) -> None:
    num_nodes = Node.objects.filter(status=NodeStatus.ONLINE, removed_at=None).count()
    if not num_nodes:
        raise _no_node()
    running = Validation.objects.filter(job=None, status=ValidationStatus.RUNNING)
    if running.filter(owner=user).count() >= RUNNING_LIMIT_PER_USER:
        raise ConflictError(
            f"{RUNNING_LIMIT_PER_USER} validations of yours are running. Wait for one of them, or "
            "submit it as it is.",
            code="too_many_validations",
        )
    if running.count() >= RUNNING_LIMIT_PER_NODE * num_nodes:
        raise ConflictError(
            "The nodes are busy measuring for others. Try again in a minute, or submit it as it "
            "is: then its code waits for its turn.",
            code="too_many_validations",
        )


def _no_node() -> ConflictError:
    return ConflictError(
        "No node is online that could measure it. Submit it as it is, and it is validated once "
        "there is one; or try again later.",
        code="no_node",
    )


def _delete(validation: Validation) -> bool:
    # The row first: a row must never refer to a missing file.
    num_deleted, _ = Validation.objects.filter(id=validation.pk).delete()
    validation.code.delete(save=False)
    return bool(num_deleted)
