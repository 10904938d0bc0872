"""Timeouts that bound every wait for preparing, switching, stalled or leaving trainers."""

from __future__ import annotations

import datetime
from collections.abc import Collection

from django.conf import settings
from django.db import transaction

from controlplane.core.values.lifecycle import (
    ENDED_JOB_STATUSES,
    HOLDING_JOB_STATUSES,
    RESIZING_PHASES,
    GenerationPhase,
)
from jobs.exceptions import errors_contained
from jobs.models import Allocation, Generation, Job
from jobs.services.failures.recovery import job_recover
from jobs.services.failures.start_failures import job_start_again, start_failure_note
from jobs.services.lifecycle.events import SYSTEM, event_add
from jobs.services.lifecycle.resize_events import resize_event_write
from jobs.services.lifecycle.transitions import (
    job_lock,
    preparing_abort,
    trainers_stop,
)

#: Seconds after which the event of a resize is added without its digests.
_DIGEST_LIMIT_S = 60.0
_NOT_KEPT = "does not keep its time limits"


def generations_expire(now: datetime.datetime) -> set[int]:
    """Abort all generations and trainers past their time limit; return the changed jobs."""
    changed: set[int] = set()
    under_way = Generation.objects.filter(phase__in=RESIZING_PHASES)
    for generation in under_way:
        limit_s = _limit_s(generation)
        since = generation.switch_ordered_at or generation.requested_at
        if since < now - datetime.timedelta(seconds=limit_s):
            with errors_contained(generation.job_id, _NOT_KEPT):
                if _give_up(generation, limit_s, now):
                    changed.add(generation.job_id)
    changed |= stalled_recover(now)
    changed |= _leavers_stop(now)
    since = now - datetime.timedelta(seconds=_DIGEST_LIMIT_S)
    for generation in Generation.objects.filter(
        phase=GenerationPhase.ACTIVE, reported_at=None, switched_at__lt=since
    ):
        with errors_contained(generation.job_id, _NOT_KEPT):
            resize_event_write(generation, now, is_last_call=True)
    return changed


def stalled_recover(now: datetime.datetime, job_ids: Collection[int] | None = None) -> set[int]:
    """Recover jobs whose trainers have stalled waiting for others; return the changed jobs."""
    rows = Allocation.objects.filter(released_at=None, stalled_at__isnull=False)
    if job_ids is not None:
        rows = rows.filter(job_id__in=job_ids)
    changed: set[int] = set()
    for job_id in sorted(set(rows.values_list("job_id", flat=True))):
        with errors_contained(job_id, _NOT_KEPT), transaction.atomic():
            if job_recover(job_lock(job_id), now):
                changed.add(job_id)
    return changed


def _limit_s(generation: Generation) -> float:
    if generation.phase == GenerationPhase.PREPARING:
        return settings.PREPARE_LIMIT_S
    is_recovery = generation.is_recovery
    return settings.RECOVER_LIMIT_S if is_recovery else settings.SWITCH_LIMIT_S


def _give_up(generation: Generation, limit_s: float, now: datetime.datetime) -> bool:
    phase = generation.phase
    with transaction.atomic():
        job = job_lock(generation.job_id)
        current = Generation.objects.filter(id=generation.pk, phase=phase).first()
        if current is None or job.status not in HOLDING_JOB_STATUSES:
            return False
        text = f"generation {current.number} was still {phase} after {limit_s:.0f} s"
        if phase == GenerationPhase.PREPARING and current.previous is not None:
            joiners = job.allocations.filter(granted_generation=current.number)
            late = joiners.filter(ready_at=None, released_at=None)
            for row in late:
                start_failure_note(row, now)
            late.update(lost_code="timeout")
            preparing_abort(job, current, now)
            event_add("resize_given_up", f"A resize was given up: {text}", now=now, job=job)
        elif not _laggards_lose(job, current) or not job_recover(job, now):
            job_start_again(job, now, code="timeout", reason=text, actor=SYSTEM, is_counted=True)
    return True


def _laggards_lose(job: Job, generation: Generation) -> bool:
    """Mark members that are not ready, or have not followed the others, as lost.

    Returns:
        False if none is late, or if no member has followed.
    """
    slots = generation.membership.slots
    rows = job.allocations.filter(slot__in=slots, released_at=None, stop_requested_at=None)
    if generation.phase == GenerationPhase.PREPARING:
        return bool(rows.filter(ready_at=None).update(lost_code="timeout"))
    late = rows.exclude(switched_generation=generation.number)
    return late.count() < rows.count() and bool(late.update(lost_code="timeout"))


def _leavers_stop(now: datetime.datetime) -> set[int]:
    """Stop trainers that did not exit in time after a switch or after the job's end."""
    since = now - datetime.timedelta(seconds=settings.LEAVE_LIMIT_S)
    allocations = Allocation.objects.filter(released_at=None, stop_requested_at=None)
    late = set(
        allocations.filter(
            job__status__in=[*ENDED_JOB_STATUSES], job__ended_at__lt=since
        ).values_list("job_id", "slot")
    )
    for row in allocations.filter(release_requested_at__lt=since).select_related("job"):
        active = Generation.objects.filter(job=row.job, phase=GenerationPhase.ACTIVE).first()
        is_past = active is not None and (active.switched_at or now) < since
        if is_past and active is not None and row.slot not in active.membership.slots:
            late.add((row.job_id, row.slot))
    for job_id, slot in sorted(late):
        with errors_contained(job_id, _NOT_KEPT), transaction.atomic():
            trainers_stop(job_lock(job_id), now, [slot])
    return {job_id for job_id, _ in late}
