"""Validation: building a job's code once on a node before the job is queued."""

from __future__ import annotations

import datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Count, F, Q

from controlplane.core.protocol.wire import ValidationReport
from controlplane.core.values.lifecycle import JobStatus, NodeStatus
from jobs.models import Job, Node
from jobs.models.jobs import MEASURED
from jobs.selectors.estimates.memory import memory_shortage
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.transitions import job_lock, status_change

#: Seconds beyond the validation's own time limit: fetching the code and reporting back.
TIME_LIMIT_GRACE_S = 20.0
_TEXT_LIMIT = 20_000


def validation_assign(job_id: int, now: datetime.datetime) -> bool:
    """Assign a waiting validation to the least busy online node.

    Two callers may assign at once; the conditional update lets one of them through.

    Returns:
        Whether it was assigned; False without an online node or a waiting validation.
    """
    node = _least_busy_node()
    if node is None:
        return False
    deadline = now + datetime.timedelta(seconds=settings.VALIDATION_TIMEOUT_S + TIME_LIMIT_GRACE_S)
    return bool(
        Job.objects.filter(
            id=job_id, status=JobStatus.VALIDATING, validation_deadline_at=None
        ).update(
            validation_node=node,
            validation_attempt=F("validation_attempt") + 1,
            validation_deadline_at=deadline,
            status_code="validating",
            status_reason=f"Its code is being built once on {node.name}.",
            version=F("version") + 1,
        )
    )


def _least_busy_node() -> Node | None:
    waiting = Count(
        "validations", filter=Q(validations__status=JobStatus.VALIDATING), distinct=True
    )
    trainers = Count(
        "accelerators__allocations",
        filter=Q(accelerators__allocations__released_at=None)
        & Q(accelerators__allocations__isnull=False),
        distinct=True,
    )
    return (
        Node.objects.filter(status=NodeStatus.ONLINE, removed_at=None)
        .annotate(num_validations=waiting, num_trainers=trainers)
        .order_by(
            "is_cordoned",
            F("quarantined_until").asc(nulls_first=True),
            "num_validations",
            "num_trainers",
            "id",
        )
        .first()
    )


def validations_assign_waiting(now: datetime.datetime) -> set[int]:
    """Assign every validation that waits for a node; return the assigned jobs."""
    waiting = Job.objects.filter(status=JobStatus.VALIDATING, validation_deadline_at=None)
    ids = list(waiting.order_by("id").values_list("id", flat=True)[:100])
    return {job_id for job_id in ids if validation_assign(job_id, now)}


def validation_take(node: Node, report: ValidationReport, now: datetime.datetime) -> bool:
    """Take a validation's result: pending or invalid; return False if it is not awaited."""
    with transaction.atomic():
        job = job_lock(report.job_id) if _is_awaited(node, report) else None
        if job is None or not _is_awaited(node, report):
            return False
        if not report.ok:
            _invalidate(job, report, now)
        elif job.is_draft:
            status_change(
                job,
                JobStatus.CANCELLED,
                ended_at=now,
                facts=report.facts,
                validation_deadline_at=None,
                status_code=MEASURED,
                status_reason="Its code builds.",
            )
        else:
            validation_pass(job, report.facts, now)
        return True


def validation_pass(
    job: Job, facts: dict[str, Any], now: datetime.datetime, *, text: str = "Its code builds"
) -> None:
    """Queue a locked job that passed validation."""
    shortage = memory_shortage(job, facts)
    status_change(
        job,
        JobStatus.PENDING,
        pending_since=now,
        facts=facts,
        validation_deadline_at=None,
        status_code="waiting",
        status_reason=f"Waits for accelerators. {shortage}".strip(),
    )
    event_add("validated", text, now=now, job=job, data=facts)
    if shortage:
        event_add("memory_short", shortage, now=now, job=job)


def _is_awaited(node: Node, report: ValidationReport) -> bool:
    return Job.objects.filter(
        id=report.job_id,
        status=JobStatus.VALIDATING,
        validation_node=node,
        validation_attempt=report.attempt,
        validation_deadline_at__isnull=False,
    ).exists()


def _invalidate(job: Job, report: ValidationReport, now: datetime.datetime) -> None:
    code = (report.code or "invalid")[:40]
    status_change(
        job,
        JobStatus.INVALID,
        ended_at=now,
        status_code=code,
        status_reason=report.message[:2000] or "Its code does not build.",
        error_field=(report.field or "")[:60],
        error_traceback=report.traceback[-_TEXT_LIMIT:],
        facts=report.facts,
        validation_deadline_at=None,
    )
    data = {"code": code, "field": report.field}
    event_add("invalid", job.status_reason, now=now, job=job, data=data)


def validations_expire(now: datetime.datetime) -> set[int]:
    """Retry overdue validations on another node, or fail them; return the changed jobs."""
    overdue = Job.objects.filter(
        status=JobStatus.VALIDATING, validation_deadline_at__lt=now
    ).values_list("id", flat=True)
    return {job_id for job_id in overdue if _expire(job_id, now)}


def validations_of_node_expire(node: Node, now: datetime.datetime) -> set[int]:
    """Expire a lost node's validations at once; return the changed jobs."""
    held = Job.objects.filter(
        status=JobStatus.VALIDATING, validation_node=node, validation_deadline_at__isnull=False
    )
    held.update(validation_deadline_at=now - datetime.timedelta(seconds=1))
    return {job_id for job_id in held.values_list("id", flat=True) if _expire(job_id, now)}


def _expire(job_id: int, now: datetime.datetime) -> bool:
    with transaction.atomic():
        job = job_lock(job_id)
        is_overdue = (
            job is not None
            and job.status == JobStatus.VALIDATING
            and job.validation_deadline_at is not None
            and job.validation_deadline_at < now
        )
        if job is None or not is_overdue:
            return False
        # A draft gets one attempt: its user is waiting and can ask again.
        attempts = 1 if job.is_draft else settings.VALIDATION_ATTEMPTS_LIMIT
        if job.validation_attempt < attempts:
            Job.objects.filter(id=job_id).update(validation_deadline_at=None, validation_node=None)
        else:
            text = f"No node said in time whether it builds, {job.validation_attempt} times."
            if job.is_draft:
                text = "No node measured it in time. Try again, or submit it as it is."
            report = ValidationReport(
                job_id=job_id,
                attempt=job.validation_attempt,
                ok=False,
                code="validation_lost",
                message=text,
            )
            _invalidate(job, report, now)
            return True
    validation_assign(job_id, now)
    return True
