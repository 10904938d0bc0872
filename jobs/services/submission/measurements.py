"""Measurement of drafts: code is built and measured before it is submitted.

A draft is a job's row that is validated like any other and then ends: as invalid, or, if valid, as
cancelled with the code `measured`. Lists and policies leave drafts out. A later submission of the
same job reuses the draft's facts.
"""

from __future__ import annotations

import datetime

from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.db import transaction
from django.db.models import Q

from controlplane.core.values.lifecycle import JobStatus, NodeStatus
from jobs.exceptions import ConflictError
from jobs.models import Job, Node
from jobs.models.jobs import MEASURED
from jobs.selectors.validations import draft_of, drafts_live
from jobs.services.lifecycle.events import event_add, user_actor
from jobs.services.lifecycle.transitions import job_lock, status_change
from jobs.services.submission.rows import job_clone_values, job_from, live_jobs_check
from jobs.services.submission.validations import validation_assign, validation_pass
from jobs.submission import Submission

#: Drafts measured at a time, per online node.
LIVE_LIMIT_PER_NODE = 2
#: Drafts kept per user, and how long drafts are kept.
KEPT_LIMIT = 20
KEPT_FOR = datetime.timedelta(days=1)


def draft_measure(user: User, submission: Submission, now: datetime.datetime) -> Job:
    """Validate a checked submission without submitting it.

    One draft per user is measured at a time; a new one replaces the one before. The same submission
    returns the same draft.

    Raises:
        ConflictError: the user has too many live jobs, or no node is online or free to measure.
        InvalidInputError: the source job does not exist or has no model.
    """
    draft = job_from(user, submission, now)
    draft.is_draft = True
    if known := _known(draft):
        return known
    draft.code.save(submission.code_name, ContentFile(submission.code), save=False)
    try:
        with transaction.atomic():
            live_jobs_check(user)
            _drafts_give_way(user, now)
            _room_check()
            draft.save(force_insert=True)
            event_add("measuring", "Measure it", now=now, job=draft, actor=user_actor(user))
            if not validation_assign(draft.pk, now):
                raise _no_node()
    except ConflictError:
        draft.code.delete(save=False)
        raise
    _oldest_forget(user)
    draft.refresh_from_db()
    return draft


def draft_take_over(job: Job, now: datetime.datetime) -> None:
    """Reuse the validation result of a matching draft for a job just submitted."""
    _drafts_give_way(job.owner, now)
    draft = draft_of(job)
    if draft is None:
        return
    facts = dict(draft.facts)
    if draft.num_virtual_nodes != job.num_virtual_nodes:
        note = (
            f"validated with {draft.num_virtual_nodes} virtual nodes, before it was submitted "
            f"with {job.num_virtual_nodes}"
        )
        facts["warnings"] = [*facts.get("warnings", []), note]
    text = "Its code builds, as was measured before it was submitted"
    validation_pass(job, facts, now, text=text)


def drafts_forget(now: datetime.datetime) -> int:
    """Delete drafts older than `KEPT_FOR`, at most 100 per call; return their number."""
    old = Job.objects.filter(is_draft=True, submitted_at__lt=now - KEPT_FOR)
    return sum(_forget(draft) for draft in old[:100])


def _known(draft: Job) -> Job | None:
    same = Q(code_sha256=draft.code_sha256, source_sha256=draft.source_sha256)
    drafts = Job.objects.filter(same, owner_id=draft.owner_id, is_draft=True)
    drafts = drafts.filter(Q(status=JobStatus.VALIDATING) | Q(status_code=MEASURED))
    values = job_clone_values(draft)
    return next((known for known in drafts if job_clone_values(known) == values), None)


def _room_check() -> None:
    num_nodes = Node.objects.filter(status=NodeStatus.ONLINE, removed_at=None).count()
    if not num_nodes:
        raise _no_node()
    if drafts_live().count() >= LIVE_LIMIT_PER_NODE * num_nodes:
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


def _drafts_give_way(user: User, now: datetime.datetime) -> None:
    for draft_id in drafts_live().filter(owner=user).values_list("id", flat=True):
        draft = job_lock(draft_id)
        if draft is not None and draft.status == JobStatus.VALIDATING:
            status_change(
                draft,
                JobStatus.CANCELLED,
                ended_at=now,
                validation_deadline_at=None,
                status_code="replaced",
                status_reason="Something newer of yours took its place.",
            )


def _oldest_forget(user: User) -> None:
    drafts = Job.objects.filter(is_draft=True, owner=user).order_by("-id")
    for draft in drafts[KEPT_LIMIT:]:
        _forget(draft)


def _forget(draft: Job) -> bool:
    # The row first: a row must never refer to a missing file.
    num_deleted, _ = Job.objects.filter(id=draft.pk, is_draft=True).delete()
    draft.code.delete(save=False)
    return bool(num_deleted)
