"""Adoptions: a running job goes on with the state of one of its parallel trials.

The state is stored among the job's files, and fetched by the agents while the job trains. Once all
its trainers have it a generation with the same members orders the adoption;
reports of switches say which adoption a job's state is after, so that one which was overtaken, by a
lost trainer or an older checkpoint, is ordered again. The file stays until the job has a checkpoint
of a later step. Everything here may run twice.
"""

from __future__ import annotations

import datetime
import logging
from functools import partial
from typing import Any

from django.db import IntegrityError, transaction

from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, GenerationPhase, JobStatus
from controlplane.core.values.types import Resize
from jobs.models import Artifact, Generation, Job
from jobs.models.resizes import TUNING_ACTOR
from jobs.selectors.forks import ADOPTED_FILE
from jobs.services.lifecycle.events import event_add, job_fields
from jobs.services.lifecycle.transitions import job_lock, open_allocations
from jobs.services.scheduling.resizes import StaleError, resize_apply

logger = logging.getLogger(__name__)

#: Generations that order the same adoption, and seconds for the first one, before it is given up.
TRIES_LIMIT = 3
FETCH_LIMIT_S = 900.0
#: Seconds after which the job is asked again for a checkpoint.
ASK_AGAIN_S = 10.0


def adoption_begin(job: Job, number: int, trial: int, sha256: str, now: datetime.datetime) -> None:
    """Let a locked job, among whose files the state is, go on with it.

    Args:
        number: of the adoption; larger than those of all before, made or not.
    """
    row = {
        "number": number,
        "sha256": sha256,
        "trial": trial,
        "tries": 0,
        "step": None,
        "begun": now.timestamp(),
    }
    job.update_columns(adoption=row)


def adoption_advance(job_id: int, now: datetime.datetime) -> bool:
    """Order or end a job's adoption; return whether anything was changed."""
    job = Job.objects.get(id=job_id)
    if job.status in ENDED_JOB_STATUSES:
        return _end(job_id)
    if job.adopted >= job.adoption["number"]:
        return _settle(job, now)
    if job.status != JobStatus.RUNNING or job.pause_requested:
        return False
    generation = job.generations.filter(phase=GenerationPhase.ACTIVE).first()
    if generation is None or generation.number != job.generation or generation.is_parked:
        return False
    tries, waited_s = job.adoption["tries"], now.timestamp() - job.adoption["begun"]
    if tries >= TRIES_LIMIT or (not tries and waited_s > FETCH_LIMIT_S):
        text = f"The state of trial {job.adoption['trial']} was not adopted: it could not be moved"
        event_add("adoption_failed", text, now=now, job=job, actor=TUNING_ACTOR)
        return _end(job_id)
    return _order(job, generation, now)


def adoption_noted(job: Job, number: int, step: int, now: datetime.datetime) -> None:
    """Take from the leader of a locked job after which adoption its state is.

    Args:
        step: of that state.
    """
    adoption: dict[str, Any] = job.adoption
    is_awaited = bool(adoption) and number == adoption["number"]
    if number == job.adopted:
        return
    job.update_columns(adopted=number)
    if is_awaited:
        job.update_columns(adoption=adoption | {"step": step})
        text = f"Goes on at step {step:,} with the state of trial {adoption['trial']}"
        data = {"trial": adoption["trial"], "step": step}
        event_add("adopted", text, now=now, job=job, actor=TUNING_ACTOR, data=data)


def _order(job: Job, generation: Generation, now: datetime.datetime) -> bool:
    """Order the adoption, with the same accelerators and virtual nodes; return whether it is.

    It is not if a trainer does not have the state yet, or another change was first.
    """
    members = generation.membership.members
    by_slot = {
        row.slot: row.accelerator_id
        for row in open_allocations(job)
        if row.stop_requested_at is None and row.left_at is None and row.stalled_at is None
        if row.adoption_held == job.adoption["number"]
    }
    if any(member.slot not in by_slot for member in members):
        return False
    held = tuple(by_slot[member.slot] for member in members)
    counts = tuple(len(member.virtual_nodes) for member in members)
    reason = f"the job goes on with the state of trial {job.adoption['trial']}"
    resize = Resize(job.pk, held, held, reason, counts=counts)
    try:
        with transaction.atomic():
            resize_apply(resize, generation.number, now, actor=TUNING_ACTOR)
            _try_count(Job.objects.get(id=job.pk))
    except (StaleError, IntegrityError) as error:
        logger.info("an adoption was overtaken: %s", error, extra=job_fields(job))
        return False
    return True


def _try_count(job: Job) -> None:
    """Count an order of a locked job's adoption.

    Raises:
        StaleError: the adoption was made meanwhile; the order must be rolled back.
    """
    if job.due_adoption is None:
        raise StaleError("it was made just now")
    job.update_columns(adoption=job.adoption | {"tries": job.adoption["tries"] + 1})


def _settle(job: Job, now: datetime.datetime) -> bool:
    """Ask for a checkpoint after the adoption, and end it once there is one."""
    later = Artifact.objects.filter(job=job, name__startswith="checkpoint")
    if later.filter(step__gt=job.adoption["step"] or 0).exists():
        return _end(job.pk)
    if job.status != JobStatus.RUNNING or now.timestamp() - job.save_request / 1000 < ASK_AGAIN_S:
        return False
    Job.objects.filter(id=job.pk).update(save_request=int(now.timestamp() * 1000))
    return True


def _end(job_id: int) -> bool:
    with transaction.atomic():
        job = job_lock(job_id)
        if not job.adoption:
            return False
        job.update_columns(adoption={})
        for artifact in Artifact.objects.filter(job=job, name=ADOPTED_FILE):
            artifact.delete()
            transaction.on_commit(partial(artifact.file.delete, save=False))
    return True
