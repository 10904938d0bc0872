"""Conversion between checked submissions and job rows, and the limit of live jobs per user."""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.core.protocol.wire import Task
from controlplane.core.values.lifecycle import JobStatus
from controlplane.core.values.tiers import Tier
from jobs.exceptions import ConflictError, InvalidInputError
from jobs.models import Artifact, Job, Project
from jobs.models.jobs import LIVE_JOB_STATUSES
from jobs.models.validations import WAITS_FOR_NODE
from jobs.selectors.access import projects_open_to
from jobs.selectors.forks import fork_fields, fork_start
from jobs.selectors.limits import limits_for, limits_of
from jobs.selectors.secrets import SecretsError, sealed_secrets, secret_values
from jobs.selectors.usage import accelerator_kinds
from jobs.services.lifecycle.colours import free_colours
from jobs.services.lifecycle.retention import storage_check
from jobs.submission import SUBMISSION_COLUMNS, Submission, prediction_values

MODEL_FILE = "model.keras"
#: In its place, where Keras cannot save the model.
WEIGHTS_FILE = "model.weights.h5"
#: Projects that a refusal names.
_NAMED_PROJECTS = 10
_STOP = ("stop_kind", "stop_limit", "stop_metric", "stop_target", "stop_higher_is_better")
#: Columns of a job that are fixed by its submission, except its code.
SUBMITTED_COLUMNS = (*SUBMISSION_COLUMNS, *_STOP, "source_job_id", "source_sha256", "code_sha256")
SUBMITTED_COLUMNS += ("forked_from_id", "fork", "project_id")


def job_from(user: User, submission: Submission, now: datetime.datetime) -> Job:
    """Build the unsaved row of a checked submission, without its code, awaiting validation.

    Raises:
        InvalidInputError: as `submission_admit`.
    """
    return jobs_from(user, [submission], now)[0]


def jobs_from(user: User, submissions: Sequence[Submission], now: datetime.datetime) -> list[Job]:
    """Build the rows of submissions that differ in names and settings only, as `job_from`.

    Raises:
        InvalidInputError: as `submission_admit`.
    """
    first = submissions[0]
    source = submission_admit(user, first)
    project = project_find(user, first)
    start = fork_start(user, first)
    code_sha256 = hashlib.sha256(first.code).hexdigest()
    jobs = []
    for submission, colour in zip(submissions, free_colours(len(submissions)), strict=True):
        job = Job(
            **submission.columns(),
            owner=user,
            project=project,
            colour=colour,
            code_bytes=len(submission.code),
            code_sha256=code_sha256,
            status=JobStatus.VALIDATING.value,
            **WAITS_FOR_NODE,
            submitted_at=now,
        )
        if source is not None:
            job.source_job_id, job.source_sha256 = source.job_id, source.sha256
        if start is not None:
            for name, value in fork_fields(job, *start).items():
                setattr(job, name, value)
        jobs.append(job)
    return jobs


def submission_admit(user: User, submission: Submission) -> Artifact | None:
    """Check what depends on the user and the cluster; return the model of the source job, if any.

    Raises:
        InvalidInputError: the source job does not exist or has no model, priority or tier are above
            the user's highest, no node has an accepted kind, the secrets cannot be handed to the
            job, or the project does not take it; all that apply.
    """
    wrong: dict[str, Sequence[str]] = {}
    source: Artifact | None = None
    with _noted(wrong):
        priority_check(user, submission.priority)
    with _noted(wrong):
        tier_check(user, submission.tier)
    with _noted(wrong):
        fork_start(user, submission)
    with _noted(wrong):
        kinds_check(submission.accepted_kinds)
    with _noted(wrong):
        secrets_check(user, submission.secrets)
    with _noted(wrong):
        project_find(user, submission)
    with _noted(wrong):
        source = source_find(user, submission.source_job)
    if wrong:
        raise InvalidInputError("The submission is not valid.", fields=wrong)
    return source


def submission_try(user: User, submission: Submission, num_jobs: int = 1) -> None:
    """Check all that is checked when a submission is stored as so many jobs; store nothing.

    Raises:
        ConflictError, InvalidInputError, TooLargeError: as `submission_admit` and `room_check`.
    """
    submission_admit(user, submission)
    with transaction.atomic():
        room_check(user, project_find(user, submission), submission, num_jobs)


@contextmanager
def _noted(wrong: dict[str, Sequence[str]]) -> Iterator[None]:
    """Note the fields that a check refuses, so that others are checked, too."""
    try:
        yield
    except InvalidInputError as error:
        if not error.fields:
            raise
        wrong.update(error.fields)


def source_find(user: User, source_job: int | None) -> Artifact | None:
    """Return the model of the source job; None without a source job.

    Raises:
        InvalidInputError: the user has no such job, or the job has no model.
    """
    if source_job is None:
        return None
    job = Job.objects.filter(id=source_job, owner=user).first()
    if job is None:
        raise InvalidInputError.of(source_job=f"You have no job {source_job}.")
    model = job.artifacts.filter(name=MODEL_FILE).first()
    if model is None and job.artifacts.filter(name=WEIGHTS_FILE).exists():
        raise InvalidInputError.of(
            source_job=f"Job {source_job} has left the weights of its model alone, as Keras cannot "
            f"save it; put {WEIGHTS_FILE} into the zip, load it in build, and name no source job."
        )
    if job.status != JobStatus.FINISHED or model is None:
        raise InvalidInputError.of(
            source_job=f"Job {source_job} is {job.status} and has left no model; choose one that "
            "has finished its training."
        )
    return model


def source_keep(source_job: int | None) -> None:
    """Keep the files of a source job from being deleted before the commit of the job that uses it.

    Raises:
        InvalidInputError: they were deleted just now.
    """
    if source_job is None:
        return
    sources = Job.objects.select_for_update(no_key=True).filter(pk=source_job)
    if not sources.filter(files_deleted_at=None).exists():
        raise InvalidInputError.of(
            source_job=f"The files of job {source_job} were deleted just now; choose another one."
        )


def priority_check(user: User, priority: int) -> None:
    """Enforce the highest priority that a user may give jobs.

    Raises:
        InvalidInputError: the priority is above it.
    """
    ceiling = limits_for(user).priority_ceiling
    if priority > ceiling:
        raise InvalidInputError.of(
            priority=f"You may give at most {ceiling}; an admin can give your jobs more."
        )


def tier_check(user: User, tier: Tier) -> None:
    """Enforce the highest tier that a user may give jobs.

    Raises:
        InvalidInputError: the tier is above it.
    """
    ceiling = limits_for(user).tier_ceiling
    if tier.rank < ceiling.rank:
        raise InvalidInputError.of(
            tier=f"Your jobs may be {ceiling} or lower; an admin can allow you higher tiers."
        )


def kinds_check(accepted_kinds: Sequence[str]) -> None:
    """Refuse kinds of which no node has an accelerator; a site without nodes takes all.

    Raises:
        InvalidInputError: no accelerator has any of the kinds.
    """
    if not accepted_kinds:
        return
    known = accelerator_kinds()
    if known and not set(known) & set(accepted_kinds):
        wanted = " or ".join(accepted_kinds)
        raise InvalidInputError.of(
            accepted_kinds=f"No node has {wanted}; the cluster has {', '.join(known)}."
        )


def secrets_check(user: User, names: Sequence[str]) -> None:
    """Check that secrets of the user can be handed to a job that names them.

    Raises:
        InvalidInputError: one is missing or cannot be decrypted, or they are too large together.
    """
    try:
        secret_values(user.pk, names, sealed_secrets([(user.pk, names)]))
    except SecretsError as error:
        raise InvalidInputError.of(secrets=str(error)) from None


def project_find(user: User, submission: Submission) -> Project | None:
    """Return the project of a submission; None without one.

    Raises:
        InvalidInputError: the project takes no jobs of the user, or none of this size.
    """
    if not submission.project:
        return None
    projects = {project.name: project for project in projects_open_to(user)}
    project = projects.get(submission.project)
    if project is None:
        names = ", ".join(sorted(projects)[:_NAMED_PROJECTS])
        fix = f"Give one of {names}, or leave it out." if names else "Leave it out."
        raise InvalidInputError.of(
            project=f"You cannot submit to a project {submission.project!r}. {fix}"
        )
    limits = {
        "the project": project.limit,
        "one user in it": project.user_limit,
        "the project for these kinds": max(
            (project.limit_by_kind.get(kind, math.inf) for kind in submission.accepted_kinds),
            default=None,
        ),
    }
    for whose, limit in limits.items():
        if limit is not None and submission.min_accelerators > limit:
            raise InvalidInputError.of(
                min_accelerators=f"Give at most {limit}, the limit of {whose}, or choose another "
                "project."
            )
    return project


def room_check(
    user: User, project: Project | None, submission: Submission, num_new: int = 1
) -> None:
    """Enforce the limits of live jobs and of stored files before `num_new` jobs are stored.

    Raises:
        ConflictError: the user would have too many live jobs.
        InvalidInputError: the project would, or it was closed or deleted since it was read.
        TooLargeError: the user's jobs have left too many files.
    """
    live_jobs_check(user, num_new)
    project_jobs_check(user, project, num_new)
    storage_check(user.pk, num_new * len(submission.code))


def project_jobs_check(user: User, project: Project | None, num_new: int = 1) -> None:
    """Enforce the limits of live jobs of a project; the lock serialises concurrent submissions.

    Raises:
        InvalidInputError: with `num_new` jobs more the project, or the user in it, has too many, or
            it was closed or deleted since `project` was read.
    """
    if project is None:
        return
    if (
        not Project.objects.select_for_update(no_key=True)
        .filter(pk=project.pk, is_closed=False)
        .exists()
    ):
        raise InvalidInputError.of(
            project=f"{project.name} was closed or deleted just now; choose another project."
        )
    live = Job.objects.filter(project=project, status__in=LIVE_JOB_STATUSES, trial_of=None)
    limits = (
        (f"Project {project.name} has", live, project.live_jobs_limit),
        (f"You have in {project.name}", live.filter(owner=user), project.user_live_jobs_limit),
    )
    for whose, jobs, limit in limits:
        if limit is not None and (num_live := jobs.count()) + num_new > limit:
            these = f" These would be {num_new} more." if num_new > 1 else ""
            plural = " that has" if num_live == 1 else "s that have"
            raise InvalidInputError.of(
                project=f"{whose} {num_live} job{plural} not ended, of {limit} allowed; wait "
                f"for some, cancel some, or choose another project.{these}"
            )


def live_jobs_check(user: User, num_new: int = 1) -> None:
    """Enforce a user's limit of live jobs; the lock serialises concurrent submissions.

    Raises:
        ConflictError: with `num_new` jobs more there would be too many.
    """
    User.objects.select_for_update(no_key=True).get(id=user.pk)
    live = Job.objects.filter(owner=user, status__in=LIVE_JOB_STATUSES, trial_of=None)
    num_live = live.count()
    limit = limits_of(user.pk, is_admin=False).live_jobs_limit
    if num_live + num_new <= limit:
        return
    jobs = "1 job that has" if num_live == 1 else f"{num_live} jobs that have"
    text = f"You have {jobs} not ended; wait for some or cancel them."
    if num_new > 1:
        text = f"{text} These would be {num_new} more, and {limit} are allowed."
    raise ConflictError(text, code="too_many_jobs")


def job_clone_values(job: Job, user: User) -> dict[str, Any]:
    """Return the fields of a submission equal to `job`, without its code.

    Another user's secrets of the same names are not for the job's code, so they are left out.
    """
    others = ("code_name", "entry_file", "selection", "tuning")
    names = [name for name in SUBMISSION_COLUMNS if name not in others]
    values = {name: getattr(job, name) for name in (*names, "stop_kind", "stop_limit")}
    values |= {f"selection_{name}": value for name, value in job.selection.items()}
    values |= {f"tuning_{name}": value for name, value in job.tuning.items()}
    if job.owner_id != user.pk:
        values.pop("secrets")
    if job.project_id is not None and projects_open_to(user).filter(pk=job.project_id).exists():
        values["project"] = job.project.name if job.project is not None else ""
    if job.task == Task.PREDICT:
        source = {} if job.source_job_id is None else {"source_job": job.source_job_id}
        return prediction_values(values, given={}) | source
    if job.stop_metric:
        values["stop_metric"] = job.stop_metric
        values["stop_target"] = job.stop_target
        values["stop_higher_is_better"] = job.stop_higher_is_better
    return values
