"""Conversion between checked submissions and job rows, and the limit of live jobs per user."""

from __future__ import annotations

import datetime
import hashlib
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User

from controlplane.core.protocol.wire import Task
from controlplane.core.values.lifecycle import JobStatus
from jobs.exceptions import ConflictError
from jobs.models import Job
from jobs.models.jobs import LIVE_JOB_STATUSES
from jobs.services.submission.prediction_rules import prediction_values, source_find
from jobs.services.submission.rules import FIELDS, Submission

#: Submission fields that have no column of the same name, or that not every job has.
_NOT_ALIKE = {
    "source_job",
    "code",
    "code_name",
    "stop_metric",
    "stop_target",
    "stop_higher_is_better",
}


def job_from(user: User, submission: Submission, now: datetime.datetime) -> Job:
    """Build the unsaved row of a checked submission, without its code, awaiting validation.

    Raises:
        InvalidInputError: the source job does not exist or has no model.
    """
    source = source_find(user, submission.source_job)
    stop = submission.stop
    return Job(
        owner=user,
        name=submission.name,
        task=submission.task.value,
        source_job_id=None if source is None else source.job_id,
        source_sha256="" if source is None else source.sha256,
        template=submission.template,
        code_name=submission.code_name,
        code_sha256=hashlib.sha256(submission.code).hexdigest(),
        entry_file=submission.entry_file,
        settings=submission.settings,
        global_batch_size=submission.global_batch_size,
        batch_size_min=submission.batch_size_min,
        batch_size_max=submission.batch_size_max,
        num_virtual_nodes=submission.num_virtual_nodes,
        min_accelerators=submission.min_accelerators,
        max_accelerators=submission.max_accelerators,
        accepted_kinds=list(submission.accepted_kinds),
        allow_mixed_kinds=submission.allow_mixed_kinds,
        priority=submission.priority,
        stop_kind=stop.kind.value,
        stop_limit=stop.limit,
        stop_metric=stop.metric or "",
        stop_target=stop.target,
        stop_higher_is_better=stop.higher_is_better,
        seed=submission.seed,
        reduction=submission.reduction.value,
        shuffle=submission.shuffle,
        on_nonfinite=submission.on_nonfinite.value,
        status=JobStatus.VALIDATING.value,
        status_code="no_node",
        status_reason="Waits for a node to build its code on.",
        submitted_at=now,
    )


def live_jobs_check(user: User) -> None:
    """Enforce a user's limit of live jobs; the lock serialises concurrent submissions."""
    User.objects.select_for_update().get(id=user.pk)
    num_live = Job.objects.filter(owner=user, status__in=LIVE_JOB_STATUSES).count()
    if num_live >= settings.LIVE_JOBS_LIMIT:
        raise ConflictError(
            f"You have {num_live} jobs that have not ended; wait for some or cancel them.",
            code="too_many_jobs",
        )


def job_clone_values(job: Job) -> dict[str, Any]:
    """Return the fields of a submission equal to `job`, without its code."""
    values: dict[str, Any] = {name: getattr(job, name) for name in FIELDS if name not in _NOT_ALIKE}
    if job.task == Task.PREDICT:
        source = {} if job.source_job_id is None else {"source_job": job.source_job_id}
        return prediction_values(values, given={}) | source
    if job.stop_metric:
        values["stop_metric"] = job.stop_metric
        values["stop_target"] = job.stop_target
        values["stop_higher_is_better"] = job.stop_higher_is_better
    return values
