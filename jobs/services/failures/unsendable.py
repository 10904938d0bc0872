"""Jobs and validations whose orders cannot be sent to their node: they end with a reason."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from django.db import transaction

from controlplane.core.protocol.wire import ValidationReport, WantedTrainer, WantedValidation
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from jobs.models import Node
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.transitions import job_end, job_lock
from jobs.services.submission.validations import validation_take

_CODE = "settings_too_deep"
_TEXT = "Its settings are nested too deeply to be sent to a node; submit it with flatter ones."


def unsendable_end(
    node: Node, items: Iterable[WantedTrainer | WantedValidation], now: datetime.datetime
) -> set[int]:
    """End what `wanted_orders` has left out; return the changed jobs."""
    changed = set()
    for item in items:
        if isinstance(item, WantedTrainer):
            changed |= _job_fail(item.spec.job_id, now)
            continue
        report = ValidationReport(
            validation_id=item.validation_id,
            attempt=item.attempt,
            ok=False,
            code=_CODE,
            field="settings",
            message=_TEXT,
        )
        validation = validation_take(node, report, now)
        if validation is not None and validation.job_id is not None:
            changed.add(validation.job_id)
    return changed


def _job_fail(job_id: int, now: datetime.datetime) -> set[int]:
    with transaction.atomic():
        job = job_lock(job_id)
        if job is None or job.status in ENDED_JOB_STATUSES:
            return set()
        job_end(job, JobStatus.FAILED, now, code=_CODE, reason=_TEXT, error_field="settings")
        event_add("failed", _TEXT, now=now, job=job, data={"code": _CODE})
        return {job_id}
