"""Jobs and validations whose orders cannot be sent to their node: they end with a reason."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from django.db import transaction

from controlplane.core.protocol.node_messages import ValidationReport, WantedTrainer
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from jobs.models import Node
from jobs.selectors.desired_state.state import Unsendable
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.transitions import job_end, job_lock
from jobs.services.submission.validations import validation_take


def unsendable_end(node: Node, left_out: Iterable[Unsendable], now: datetime.datetime) -> set[int]:
    """End what `wanted_orders` has left out; return the changed jobs."""
    changed = set()
    for unsendable in left_out:
        item = unsendable.item
        if isinstance(item, WantedTrainer):
            changed |= _job_fail(item.spec.job_id, unsendable, now)
            continue
        report = ValidationReport(
            validation_id=item.validation_id,
            attempt=item.attempt,
            ok=False,
            code=unsendable.code,
            field=unsendable.field,
            message=unsendable.message,
        )
        validation = validation_take(node, report, now)
        if validation is not None and validation.job_id is not None:
            changed.add(validation.job_id)
    return changed


def _job_fail(job_id: int, unsendable: Unsendable, now: datetime.datetime) -> set[int]:
    code, text = unsendable.code, unsendable.message
    with transaction.atomic():
        job = job_lock(job_id)
        if job.status in ENDED_JOB_STATUSES:
            return set()
        error_field = unsendable.field
        job_end(job, JobStatus.FAILED, now, code=code, reason=text, error_field=error_field)
        event_add("failed", text, now=now, job=job, data={"code": code})
        return {job_id}
