"""Forks: which saved states of a job another job may start from, and how both differ."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet

from controlplane.core.protocol.wire import StopKind, Task
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from jobs.exceptions import InvalidInputError
from jobs.models import Artifact, Job
from jobs.selectors.access import Person, forks_visible_to, is_changeable, jobs_visible_to
from jobs.submission import NEWEST, NOW, Submission

CHECKPOINT = "checkpoint.npz"
#: The state of a trial with which a job is to go on.
ADOPTED_FILE = "adopted.npz"
#: Statuses in which the newest checkpoint is the present state, if the job has trained.
_AT_REST = (JobStatus.PENDING, JobStatus.PAUSED)
_ACTIVE = (JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PREEMPTING)
#: Columns that determine which examples a step has.
_ORDER_COLUMNS = (
    "global_batch_size",
    "batch_size_min",
    "batch_size_max",
    "seed",
    "shuffle",
    "selection",
)
#: Forks of a job that its page and REST list.
LISTED_FORKS = 100


def checkpoints_of(job: Job) -> QuerySet[Artifact]:
    """Return the kept checkpoints of a job whose step is known, the newest first."""
    kept = Artifact.objects.filter(job=job, name__startswith="checkpoint", step__isnull=False)
    return kept.order_by("-step", "-at")


def checkpoint_choices(job: Job) -> list[tuple[str, str]]:
    """List the states of a job that a fork may start from: (choice, label), the newest first."""
    kept = list(checkpoints_of(job).values_list("step", "epoch"))
    labels = [
        f"step {step:,}" + ("" if epoch is None else f", epoch {epoch}") for step, epoch in kept
    ]
    choices = [(NEWEST, f"newest kept: {labels[0]}" if labels else "newest kept: none yet")]
    if job.status not in ENDED_JOB_STATUSES:
        choices.append((NOW, "now: the job saves its state"))
    return choices + [(str(row[0]), label) for row, label in zip(kept, labels, strict=True)][1:]


def fork_start(user: User, submission: Submission) -> tuple[Job, Artifact | None] | None:
    """Return the job and the checkpoint that a submission starts from; None: from its seed.

    Without a checkpoint the job has to save its state first.

    Raises:
        InvalidInputError: the user may not see the job, it has no such state, or the submission
            would end before its first step.
    """
    if submission.forked_from is None:
        return None
    number, choice = submission.forked_from, submission.checkpoint
    parent = jobs_visible_to(user).defer(None).filter(id=number).first()
    if parent is None:
        raise InvalidInputError.of(forked_from=f"You have no job {number}.")
    if parent.task != Task.TRAIN:
        raise InvalidInputError.of(forked_from=f"Job {number} predicts; it trains no state.")
    if parent.files_deleted_at is not None:
        raise InvalidInputError.of(forked_from=f"The files of job {number} were deleted.")
    artifact = _chosen(parent, choice)
    if artifact is None and not is_changeable(user, parent):
        raise InvalidInputError.of(
            checkpoint=f"Only its owner and operators of its project make job {number} save its "
            "state; choose newest, or a kept checkpoint."
        )
    step = parent.step if artifact is None else artifact.step or 0
    epoch = parent.epoch if artifact is None else artifact.epoch
    if text := stop_reached(submission.stop.kind, submission.stop.limit, step, epoch):
        raise InvalidInputError.of(stop_limit=text)
    return parent, artifact


def _chosen(parent: Job, choice: str) -> Artifact | None:
    kept = checkpoints_of(parent)
    newest = kept.first()
    if choice == NOW:
        if parent.status in _ACTIVE:
            return None
        if parent.status in ENDED_JOB_STATUSES:
            raise InvalidInputError.of(
                checkpoint=f"Job {parent.pk} is {parent.status} and saves no state any more; "
                "choose a kept checkpoint."
            )
        if newest is None or parent.status not in _AT_REST:
            raise InvalidInputError.of(checkpoint=f"Job {parent.pk} has not trained yet.")
        return newest
    if newest is None:
        hint = "; say now, and it saves its state" if parent.status in _ACTIVE else ""
        raise InvalidInputError.of(
            checkpoint=f"Job {parent.pk} is {parent.status} and has no checkpoint{hint}."
        )
    if choice == NEWEST:
        return newest
    found = kept.filter(step=int(choice)).first()
    if found is None:
        steps = ", ".join(str(step) for step in kept.values_list("step", flat=True)[:20])
        raise InvalidInputError.of(
            checkpoint=f"Job {parent.pk} has no checkpoint of step {choice}; it has {steps}."
        )
    return found


def stop_reached(kind: StopKind, limit: int, step: int, epoch: int | None) -> str:
    """Return why a job with this stop condition has nothing to train from a state on, or ""."""
    if kind is StopKind.STEPS and limit <= step:
        return f"The state has {step} steps already; give more, the parent's included."
    if kind is not StopKind.STEPS and epoch is not None and limit <= epoch:
        return f"The state has {epoch} epochs already; give more, the parent's included."
    return ""


def fork_fields(job: Job, parent: Job, artifact: Artifact | None) -> dict[str, Any]:
    """Return the columns of an unsaved job that starts from a state of another one.

    Without a checkpoint the step is that from which on a state of the parent will do.
    """
    order = [getattr(job, name) == getattr(parent, name) for name in _ORDER_COLUMNS]
    step = parent.step if artifact is None else artifact.step or 0
    fork = {
        "sha256": "" if artifact is None else artifact.sha256,
        "step": step,
        "keeps_order": all(order),
        "keeps_rate": (job.code_sha256, job.settings) == (parent.code_sha256, parent.settings),
        "keeps_seed": job.seed == parent.seed,
    }
    return {"forked_from_id": parent.pk, "fork": fork}


def forks_listed(job: Job, reader: Person) -> list[int]:
    """List the forks of a job that a reader may see, at most `LISTED_FORKS`."""
    forks = forks_visible_to(reader, job).order_by("id")
    return list(forks.values_list("pk", flat=True)[:LISTED_FORKS])
