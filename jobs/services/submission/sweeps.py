"""Sweeps: submit many jobs as one, change how many run at once, pause, resume and cancel all."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.db import IntegrityError, transaction

from controlplane.core.values.lifecycle import JobStatus
from jobs.exceptions import (
    ConflictError,
    InvalidInputError,
    StaleVersionError,
    TooLargeError,
)
from jobs.files import file_share
from jobs.models import AuditAction, Job, Sweep
from jobs.models.jobs import LIVE_JOB_STATUSES
from jobs.selectors.settings_values import settings_with
from jobs.services.lifecycle.artifacts import new_files_undone
from jobs.services.lifecycle.audit import audit_add
from jobs.services.lifecycle.events import user_actor
from jobs.services.lifecycle.transitions import jobs_lock
from jobs.services.submission import job_actions
from jobs.services.submission.job_changes import jobs_cancel
from jobs.services.submission.rows import jobs_from, project_find, room_check
from jobs.submission import Submission, fingerprint, name_start
from jobs.sweep_space import DEFAULT_MAX_RUNNING, JOBS_LIMIT

_NAME_LIMIT = 100
_PAUSABLE = (JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PREEMPTING)


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """A checked request: one submission, and the settings in which its jobs differ.

    Attributes:
        space: as it was given, in JSON values.
        settings: of each job, those of the space only.
    """

    submission: Submission
    space: Mapping[str, Any]
    num_draws: int | None
    seed: int
    settings: Sequence[Mapping[str, Any]]
    max_running: int = DEFAULT_MAX_RUNNING

    def submissions(self) -> list[Submission]:
        """Return the submission of each job, named after the sweep and numbered from 1."""
        base = self.submission
        digits = len(str(len(self.settings)))
        name = name_start(base.name, _NAME_LIMIT - digits - 1)
        return [
            dataclasses.replace(
                base,
                name=f"{name} {number:0{digits}}",
                settings=settings_with(base.settings, drawn),
            )
            for number, drawn in enumerate(self.settings, start=1)
        ]


def sweep_submit(
    user: User,
    request: SweepRequest,
    now: datetime.datetime,
    *,
    idempotency_key: str = "",
    copied_from: Job | None = None,
) -> Sweep:
    """Store a sweep with all of its jobs, or nothing; the same key returns the same sweep.

    Their validations wait for their turn: a sweep does not keep other people's waiting.

    Raises:
        ConflictError: the user would have too many live jobs, or used the key for another request.
        TooLargeError: the user's jobs have left too many files.
        InvalidInputError: as `job_submit`, or there is no job.
    """
    digest = fingerprint(request)
    if idempotency_key and (known := _known(user, idempotency_key, digest)):
        return known
    submissions = request.submissions()
    if not 0 < len(submissions) <= JOBS_LIMIT:
        raise InvalidInputError.of(sweep=f"A sweep has 1 to {JOBS_LIMIT} jobs.")
    jobs: list[Job] = []
    try:
        with transaction.atomic(), new_files_undone(jobs):
            project = project_find(user, request.submission)
            room_check(user, project, request.submission, len(submissions))
            sweep = Sweep.objects.create(
                owner=user,
                name=request.submission.name,
                template=request.submission.template,
                space=dict(request.space),
                num_draws=request.num_draws,
                seed=request.seed,
                max_running=request.max_running,
                submitted_at=now,
            )
            jobs += jobs_from(user, submissions, now)
            for job, submission in zip(jobs, submissions, strict=True):
                job.sweep = sweep
                job.status_reason = "Waits for its turn to have its code built on a node."
                if job is jobs[0]:
                    job.code.save(submission.code_name, ContentFile(submission.code), save=False)
                else:
                    file_share(jobs[0].code, job.code, submission.code_name)
            text = job_actions.submitted_text(jobs[0], copied_from, user)
            job_actions.jobs_store(jobs, user, now, {"sweep": sweep.pk}, text)
            if idempotency_key:
                job_actions.submission_note(jobs[0], idempotency_key, digest)
    except (IntegrityError, ConflictError, InvalidInputError, TooLargeError):
        known = _known(user, idempotency_key, digest) if idempotency_key else None
        if known is None:
            raise
        return known
    return sweep


def _known(user: User, key: str, digest: str) -> Sweep | None:
    job = job_actions.submission_known(user, key, digest)
    return None if job is None else job.sweep


@transaction.atomic
def sweep_limit(
    sweep_id: int,
    max_running: int,
    user: User,
    reason: str = "",
    *,
    seen_limit: int | None = None,
) -> Sweep:
    """Change how many jobs of a sweep run at once; those that run go on.

    Raises:
        InvalidInputError: the number is out of range, or an admin gives no reason for a sweep of
            somebody else.
        StaleVersionError: the number is not `seen_limit` any more.
    """
    sweep = Sweep.objects.select_for_update(no_key=True).get(pk=sweep_id)
    if not 1 <= max_running <= JOBS_LIMIT:
        raise InvalidInputError.of(max_running=f"Give a whole number from 1 to {JOBS_LIMIT}.")
    if sweep.owner_id != user.pk and not reason.strip():
        raise InvalidInputError.of(reason="Say why: the owner will read it.")
    if seen_limit is not None and seen_limit != sweep.max_running:
        raise StaleVersionError(
            f"Somebody else has changed sweep {sweep.pk} in the meantime: it runs at most "
            f"{sweep.max_running} at once now. Change it again if that is still meant."
        )
    if sweep.max_running == max_running:
        return sweep
    data = {"before": sweep.max_running, "after": max_running}
    sweep.max_running = max_running
    sweep.save(update_fields=["max_running"])
    _audit(sweep, user, reason, **data)
    return sweep


def sweep_cancel(sweep: Sweep, user: User, now: datetime.datetime, reason: str = "") -> list[int]:
    """Cancel the jobs of a sweep that have not ended; return them."""
    live = sweep.jobs.filter(status__in=LIVE_JOB_STATUSES)
    with transaction.atomic():
        jobs = jobs_lock([*live.values_list("pk", flat=True)])
        jobs = [job for job in jobs if job.status in LIVE_JOB_STATUSES]
        jobs_cancel(jobs, now, actor=user_actor(user), reason=reason)
    return [job.pk for job in jobs]


def sweep_pause(sweep: Sweep, user: User, now: datetime.datetime, reason: str = "") -> list[int]:
    """Let no job of a sweep begin, and pause those that run; return these."""
    return _paused_set(sweep, _PAUSABLE, job_actions.job_pause, user, now, reason, is_paused=True)


def sweep_resume(sweep: Sweep, user: User, now: datetime.datetime, reason: str = "") -> list[int]:
    """Let the jobs of a sweep begin again, and resume those that are paused; return these."""
    statuses = (*_PAUSABLE, JobStatus.PAUSED)
    return _paused_set(sweep, statuses, job_actions.job_resume, user, now, reason, is_paused=False)


def _paused_set(
    sweep: Sweep,
    statuses: Sequence[JobStatus],
    act: Callable[..., Job],
    user: User,
    now: datetime.datetime,
    reason: str,
    *,
    is_paused: bool,
) -> list[int]:
    """Act on the jobs of a sweep in these statuses; leave out any that has just left them."""
    if sweep.is_paused != is_paused:
        sweep.is_paused = is_paused
        sweep.save(update_fields=["is_paused"])
        _audit(sweep, user, reason, is_paused=is_paused)
    done = []
    rows = sweep.jobs.filter(status__in=[*statuses]).order_by("-id")
    for job_id in rows.values_list("pk", flat=True)[:JOBS_LIMIT]:
        with contextlib.suppress(ConflictError):
            act(job_id, now, actor=user_actor(user), reason=reason)
            done.append(job_id)
    return done


def _audit(sweep: Sweep, user: User, reason: str, **data: Any) -> None:
    if sweep.owner_id != user.pk:
        what, actor = AuditAction.SWEEP_CHANGED, user_actor(user)
        audit_add(what, f"sweep:{sweep.pk}", actor=actor, reason=reason, **data)
