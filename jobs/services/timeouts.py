"""What is given up when it takes too long. Every wait of the control plane ends here."""

from __future__ import annotations

import datetime

from django.conf import settings
from django.db import transaction

from controlplane.core.lifecycle import ENDED_JOB_STATUSES, GenerationPhase, JobStatus
from jobs.models import Allocation, Generation, Job
from jobs.services.endings import job_lock, job_restart, preparing_abort, trainers_stop
from jobs.services.events import event_add
from jobs.services.resize_events import resize_event_write

#: A resize whose digests have not come by now gets its event without them.
_DIGEST_LIMIT_S = 60.0


def generations_expire(now: datetime.datetime) -> set[int]:
    """Give up what took too long; give the jobs that changed."""
    changed: set[int] = set()
    for phase, limit_s in (
        (GenerationPhase.PREPARING, settings.PREPARE_LIMIT_S),
        (GenerationPhase.SWITCHING, settings.SWITCH_LIMIT_S),
    ):
        overdue = Generation.objects.filter(phase=phase)
        since = now - datetime.timedelta(seconds=limit_s)
        field = "asked_at" if phase == GenerationPhase.PREPARING else "go_at"
        for generation in overdue.filter(**{f"{field}__lt": since}):
            if _give_up(generation, phase, limit_s, now):
                changed.add(generation.job_id)
    changed |= _leavers_stop(now)
    since = now - datetime.timedelta(seconds=_DIGEST_LIMIT_S)
    for generation in Generation.objects.filter(
        phase=GenerationPhase.ACTIVE, told_at=None, switched_at__lt=since
    ):
        resize_event_write(generation, now, is_last_call=True)
    return changed


def _give_up(
    generation: Generation, phase: GenerationPhase, limit_s: float, now: datetime.datetime
) -> bool:
    with transaction.atomic():
        job = job_lock(generation.job_id)
        current = Generation.objects.filter(id=generation.pk, phase=phase).first()
        if job is None or current is None or job.status in ENDED_JOB_STATUSES:
            return False
        text = f"generation {current.number} was still {phase} after {limit_s:.0f} s"
        if phase == GenerationPhase.PREPARING and current.previous is not None:
            preparing_abort(job, current, now)
            event_add("resize_given_up", f"A resize was given up: {text}", now=now, job=job)
        elif job.status in (JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PREEMPTING):
            job_restart(job, now, code="timeout", reason=text)
    return True


def _leavers_stop(now: datetime.datetime) -> set[int]:
    """End trainers that should have left by themselves: after a switch, or after the job's end."""
    since = now - datetime.timedelta(seconds=settings.LEAVE_LIMIT_S)
    tenures = Allocation.objects.filter(released_at=None, stop_asked_at=None)
    late = set(
        tenures.filter(job__status__in=[*ENDED_JOB_STATUSES], job__ended_at__lt=since).values_list(
            "job_id", "slot"
        )
    )
    for row in tenures.filter(release_asked_at__lt=since).select_related("job"):
        active = Generation.objects.filter(job=row.job, phase=GenerationPhase.ACTIVE).first()
        is_past = active is not None and (active.switched_at or now) < since
        if is_past and active is not None and not _is_member(active, row.slot):
            late.add((row.job_id, row.slot))
    for job_id, slot in sorted(late):
        _stop(job_id, slot, now)
    return {job_id for job_id, _ in late}


def _is_member(generation: Generation, slot: int) -> bool:
    return any(member["slot"] == slot for member in generation.membership["members"])


def _stop(job_id: int, slot: int, now: datetime.datetime) -> None:
    with transaction.atomic():
        job: Job | None = job_lock(job_id)
        if job is not None:
            trainers_stop(job, now, [slot])
