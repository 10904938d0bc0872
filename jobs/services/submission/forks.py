"""Starts of jobs from states that other jobs have saved.

A fork has its own file of the state: a hard link where the storage can, or else a copy. The other
job's retention and deletion do not touch it, and it counts in the storage of the fork's owner.

A fork of the state of this moment waits until the other job has saved it. `forks_advance` asks the
job's leader, through the wanted state of its node, and again if nothing came, until the fork's
deadline. Everything here may run twice.
"""

from __future__ import annotations

import datetime

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Window
from django.db.models.functions import RowNumber

from controlplane.core.protocol.wire import StopKind
from controlplane.core.values.explanations import others_jobs_named
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from jobs.exceptions import (
    ConflictError,
    DiskFullError,
    TooLargeError,
    errors_contained,
    full_disk_refused,
)
from jobs.files import file_share
from jobs.models import Artifact, AuditAction, Job, Validation
from jobs.selectors.access import jobs_visible_to
from jobs.selectors.forks import CHECKPOINT, checkpoints_of, stop_reached
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import event_add, user_actor
from jobs.services.lifecycle.retention import storage_check
from jobs.services.lifecycle.transitions import job_end, job_lock, job_rows_lock
from jobs.services.submission.validation_requests import validations_reuse
from jobs.services.submission.validations import validation_start

#: Seconds after which a job is asked again for its state.
ASK_AGAIN_S = 10.0
#: Forks that are advanced in one run of the task.
_AT_ONCE = 100


def fork_admit(job: Job, user: User, now: datetime.datetime) -> None:
    """Give a fork just saved its state, or let it wait for one; runs in its submission.

    Raises:
        ConflictError: the state was deleted in the meantime.
        TooLargeError: it does not fit into the user's storage.
    """
    parent = job.forked_from
    assert parent is not None, "a fork has a parent"
    if job.fork["sha256"]:
        artifact = checkpoints_of(parent).filter(sha256=job.fork["sha256"]).first()
        if artifact is None:
            raise _gone(parent)
        _state_give(job, artifact, now)
    else:
        state_ask(parent, now)
        job.update_columns(
            fork_deadline_at=now + datetime.timedelta(seconds=settings.FORK_WAIT_S),
            status_code="awaits_state",
            status_reason=f"Waits for job {parent.pk} to save its state.",
        )
    if parent.owner_id != user.pk:
        audit_add(AuditAction.JOB_FORKED, f"job:{parent.pk}", owner=parent.owner_id, fork=job.pk)


def forks_advance(now: datetime.datetime) -> set[int]:
    """Start forks whose state has come, refuse those that wait in vain; return changed jobs."""
    waiting = Job.objects.filter(fork_deadline_at__isnull=False)
    # In turn, so that nobody waits for the many forks of another user.
    turn = Window(RowNumber(), partition_by="owner", order_by="id")
    in_turn = waiting.annotate(turn=turn).order_by("turn", "id")
    changed: set[int] = set()
    for fork_id, parent_id in in_turn.values_list("pk", "forked_from")[:_AT_ONCE]:
        with errors_contained(fork_id, "does not start as a fork"):
            changed |= _advance(fork_id, parent_id, now)
        if parent_id is not None and not waiting.filter(forked_from=parent_id).exists():
            Job.objects.filter(id=parent_id).update(save_request=0)
    return changed


def _advance(fork_id: int, parent_id: int | None, now: datetime.datetime) -> set[int]:
    validation = None
    with transaction.atomic():
        job_rows_lock(Job.objects.filter(id__in=[fork_id, parent_id]))
        fork = job_lock(fork_id)
        if fork.fork_deadline_at is None:
            return set()
        if fork.status != JobStatus.VALIDATING:  # cancelled meanwhile
            fork.update_columns(fork_deadline_at=None)
            return {fork_id}
        parent = fork.forked_from
        assert parent is not None, "a fork has a parent"
        if not jobs_visible_to(fork.owner).filter(id=parent.pk).exists():
            _refuse(fork, "Its owner may no longer see the job that it is a fork of.", now)
            return {fork_id}
        saved = checkpoints_of(parent).filter(at__gte=fork.submitted_at)
        artifact = saved.filter(step__gte=fork.fork["step"]).order_by("step").first()
        if artifact is not None:
            if text := _refusal(fork, artifact, now):
                _refuse(fork, text, now)
                return {fork_id}
            if validations_reuse([fork], now):
                validation = Validation.objects.create(owner=fork.owner, job=fork, requested_at=now)
        elif parent.status in ENDED_JOB_STATUSES:
            _refuse(fork, f"Job {parent.pk} ended, {parent.status}, before it saved a state.", now)
        elif now >= fork.fork_deadline_at:
            limit = f"{settings.FORK_WAIT_S:g}"
            _refuse(fork, f"Job {parent.pk} saved no state within {limit} s.", now)
        elif now.timestamp() * 1000 - parent.save_request >= ASK_AGAIN_S * 1000:
            state_ask(parent, now)
            return {parent.pk}
        else:
            return set()
    if validation is not None:
        validation_start(validation, now)
    return {fork_id}


def _refusal(fork: Job, artifact: Artifact, now: datetime.datetime) -> str:
    """Give the fork its state; return why that is not possible, or ""."""
    kind = StopKind(fork.stop_kind)
    if text := stop_reached(kind, fork.stop_limit, artifact.step or 0, artifact.epoch):
        return text
    try:
        _state_give(fork, artifact, now)
    except (ConflictError, TooLargeError, DiskFullError) as error:
        return error.detail
    return ""


def _refuse(fork: Job, text: str, now: datetime.datetime) -> None:
    reason = f"{text} Nothing was trained; fork a kept checkpoint, or try again."
    job_end(fork, JobStatus.INVALID, now, code="fork_refused", reason=reason)
    fork.update_columns(fork_deadline_at=None, error_field="forked_from")
    event_add("invalid", reason, now=now, job=fork, data={"code": "fork_refused"})


def state_ask(job: Job, now: datetime.datetime) -> None:
    """Ask a job for its state; its leader follows each number once."""
    job.update_columns(save_request=int(now.timestamp() * 1000))


def state_copy(job: Job, artifact: Artifact, name: str, now: datetime.datetime) -> None:
    """Store a state of another job among the files of a job, which have none of this name.

    Raises:
        ConflictError: the state was deleted in the meantime.
        TooLargeError: it does not fit into the storage of the job's owner.
        DiskFullError: it does not fit on the disk.
    """
    storage_check(job.owner_id, artifact.size_bytes)
    own = Artifact(
        job=job,
        name=name,
        sha256=artifact.sha256,
        size_bytes=artifact.size_bytes,
        generation=0,
        step=artifact.step,
        epoch=artifact.epoch,
        at=now,
    )
    try:
        with full_disk_refused():
            file_share(artifact.file, own.file, own.name)
    except OSError:
        raise _gone(artifact.job) from None
    try:
        with transaction.atomic():
            own.save(force_insert=True)
    except Exception:
        own.file.delete(save=False)
        raise


def fork_place(job: Job, artifact: Artifact, now: datetime.datetime) -> None:
    """Store a state as the fork's own newest checkpoint, and count its steps as done.

    Raises:
        ConflictError, TooLargeError, DiskFullError: as `state_copy`.
    """
    state_copy(job, artifact, CHECKPOINT, now)
    step, epoch = artifact.step or 0, artifact.epoch or 0
    job.update_columns(
        fork=job.fork | {"sha256": artifact.sha256, "step": step},
        fork_deadline_at=None,
        step=step,
        epoch=epoch,
    )


def _state_give(job: Job, artifact: Artifact, now: datetime.datetime) -> None:
    """Give a fork its state, and tell both owners."""
    fork_place(job, artifact, now)
    parent, step = artifact.job, artifact.step or 0
    text = f"Starts from the state of job {parent.pk} at step {step:,}"
    data = {"forked_from": parent.pk, "step": step}
    event_add("forked", text, now=now, job=job, actor=user_actor(job.owner), data=data)
    groups = {one.pk: (one.owner_id, one.project_id) for one in (parent, job)}
    name = others_jobs_named(f"job {job.pk}", parent.pk, groups)
    text = f"{name[0].upper()}{name[1:]} starts from its state of step {step:,}"
    event_add("forked", text, now=now, job=parent, actor=user_actor(job.owner), data={"step": step})


def _gone(parent: Job) -> ConflictError:
    return ConflictError(f"The state of job {parent.pk} was deleted just now.", code="gone")
