"""Transitions that end trainers, generations and jobs.

Every function here runs in a transaction that has locked the job's row (`job_lock`), so the job's
generations and allocations do not change between a read and the write that depends on it.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any

from django.conf import settings
from django.db.models import F, QuerySet

from controlplane.core.protocol.wire import Membership
from controlplane.core.values.lifecycle import (
    ENDED_JOB_STATUSES,
    GENERATION_TRANSITIONS,
    OPEN_PHASES,
    RESIZING_PHASES,
    GenerationPhase,
    JobStatus,
    is_legal_job_transition,
)
from jobs.models import Allocation, Generation, Job, JobAttempts, JobForecast
from jobs.models.jobs import PREEMPTED
from jobs.selectors.access import HEAVY_COLUMNS
from jobs.selectors.prepared import PreparedObjects
from jobs.services.lifecycle.attempts import attempt_count
from jobs.services.lifecycle.events import SYSTEM, event_add
from jobs.services.lifecycle.resize_events import resize_event_write

#: Stand-in of `_job_query`.
_JOB = -1


def job_lock(job_id: int) -> Job:
    """Increment the version of a job, which locks its row until commit. No job is ever deleted.

    Every change of a job, its generations or its allocations begins with this update, so two
    reports that together complete a condition cannot both miss it.
    """
    Job.objects.filter(id=job_id).update(version=F("version") + 1)
    job = _job_query().first({_JOB: job_id})
    assert job is not None, f"there is no job {job_id}"
    return job


@cache
def _job_query() -> PreparedObjects[Job]:
    return PreparedObjects(Job.objects.filter(pk=_JOB))


def jobs_lock(job_ids: Collection[int]) -> list[Job]:
    """Lock jobs as `job_lock` does, in three queries, in one order: no two calls block each other.

    Return those that exist, in the order of their ids, with owners, without the heavy columns.
    """
    ids = job_rows_lock(Job.objects.filter(id__in=job_ids))
    Job.objects.filter(id__in=ids).update(version=F("version") + 1)
    jobs = Job.objects.filter(id__in=ids).select_related("owner").defer(*HEAVY_COLUMNS)
    return list(jobs.order_by("id"))


def jobs_unchanged(jobs: Sequence[Job]) -> None:
    """Give locked jobs their former version back: nothing of them has changed."""
    if jobs:
        Job.objects.filter(id__in=[job.pk for job in jobs]).update(version=F("version") - 1)


def job_rows_lock(jobs: QuerySet[Job]) -> list[int]:
    """Lock the rows of jobs until commit, in the order of their ids; return these.

    A statement that updates many rows locks them in any order: without this before it, it and
    `jobs_lock` may wait for each other.
    """
    rows = jobs.order_by("id").select_for_update(no_key=True)
    return list(rows.values_list("id", flat=True))


def status_change(job: Job, new: JobStatus, **fields: Any) -> None:
    """Move a locked job to another status, updating `fields` as well.

    Raises:
        AssertionError: the transition is not legal.
    """
    old = JobStatus(job.status)
    assert is_legal_job_transition(old, new), f"job {job.pk} cannot go from {old} to {new}"
    if (ended_at := fields.get("ended_at")) and job.started_at:
        fields["duration_s"] = (ended_at - job.started_at).total_seconds()
    changed = Job.objects.filter(id=job.pk, status=old).update(
        status=new, revision=F("revision") + 1, **fields
    )
    assert changed == 1, f"job {job.pk} left {old} although its row is locked"
    job.status = new.value
    job.revision += 1
    for name, value in fields.items():
        setattr(job, name, value)


def open_allocations(job: Job) -> list[Allocation]:
    """List a job's allocations whose accelerators are not released yet, in slot order."""
    return list(
        job.allocations.filter(released_at=None).select_related("accelerator").order_by("slot")
    )


def accelerators_kept(generation: Generation, **more: Any) -> tuple[int, ...]:
    """List the members' accelerators in member order; empty if a member is leaving.

    Args:
        more: what must hold for each member besides.
    """
    rows = generation.job.allocations.filter(
        released_at=None, stop_requested_at=None, left_at=None, finished_at=None, **more
    )
    by_slot = dict(rows.values_list("slot", "accelerator_id"))
    slots = generation.membership.slots
    return tuple(by_slot[slot] for slot in slots) if {*slots} <= {*by_slot} else ()


def generation_add(
    job: Job,
    membership: Membership,
    active: Generation | None,
    now: datetime.datetime,
    *,
    is_ready: bool = True,
    **fields: Any,
) -> None:
    """Add a locked job's next generation, which switches at once if its members are ready.

    Args:
        active: the generation that trains, if any.
        fields: `reason`, `actor`, and others than usual.
    """
    Generation.objects.create(
        job=job,
        number=membership.generation,
        previous=None if active is None else active.number,
        phase=GenerationPhase.SWITCHING if is_ready else GenerationPhase.PREPARING,
        membership=membership,
        num_members=len(membership.members),
        ready_at=now if is_ready else None,
        switch_ordered_at=now if is_ready else None,
        **{"requested_at": now} | fields,
    )


def generation_end(generation: Generation, phase: GenerationPhase, now: datetime.datetime) -> bool:
    """Close or abort a generation by compare-and-set; return False if its phase had changed."""
    assert phase in GENERATION_TRANSITIONS[GenerationPhase(generation.phase)]
    changed = Generation.objects.filter(id=generation.pk, phase=generation.phase).update(
        phase=phase, closed_at=now
    )
    if changed:
        generation.phase = phase.value
        generation.closed_at = now
        resize_event_write(generation, now, is_last_call=True)
    return bool(changed)


def trainers_stop(job: Job, now: datetime.datetime, slots: list[int] | None = None) -> int:
    """Request the stop of trainers (all of the job's when `slots` is None); return their number."""
    rows = Allocation.objects.filter(job=job, released_at=None, stop_requested_at=None)
    if slots is not None:
        rows = rows.filter(slot__in=slots)
    return rows.update(stop_requested_at=now)


def generations_end(jobs: Sequence[Job], now: datetime.datetime) -> None:
    """Abort generations of locked jobs that never trained, and close the active ones."""
    of_id = {job.pk: job for job in jobs}
    phases = dict.fromkeys(RESIZING_PHASES, GenerationPhase.ABORTED)
    phases[GenerationPhase.ACTIVE] = GenerationPhase.CLOSED
    assert all(end in GENERATION_TRANSITIONS[phase] for phase, end in phases.items())
    rows = Generation.objects.filter(job__in=of_id)
    generations = list(rows.filter(phase__in=phases).order_by("job_id", "number"))
    for phase, end in phases.items() if generations else ():
        rows.filter(phase=phase).update(phase=end, closed_at=now)
    for generation in generations:
        generation.job = of_id[generation.job_id]
        generation.phase = phases[GenerationPhase(generation.phase)].value
        generation.closed_at = now
        resize_event_write(generation, now, is_last_call=True)


def preparing_abort(job: Job, generation: Generation, now: datetime.datetime) -> bool:
    """Abort a preparing generation: joiners stop, leavers stay; False if its phase had changed.

    A job whose first generation this was returns to pending.
    """
    if not generation_end(generation, GenerationPhase.ABORTED, now):
        return False
    Allocation.objects.filter(
        job=job, released_at=None, granted_generation=generation.number, stop_requested_at=None
    ).update(stop_requested_at=now)
    active = job.generations.filter(phase=GenerationPhase.ACTIVE).first()
    if active is not None:
        slots = active.membership.slots
        Allocation.objects.filter(job=job, released_at=None, slot__in=slots).update(
            release_requested_at=None
        )
    elif job.status == JobStatus.STARTING:
        trainers_stop(job, now)
        status_change(job, JobStatus.PENDING, pending_since=now, examples_per_s=None)
    return True


def job_end(
    job: Job, status: JobStatus, now: datetime.datetime, *, code: str, reason: str, **fields: Any
) -> None:
    """End a locked job that did not finish, as `jobs_end`."""
    jobs_end([job], status, now, code=code, reason=reason, **fields)


def jobs_end(
    jobs: Sequence[Job],
    status: JobStatus,
    now: datetime.datetime,
    *,
    code: str,
    reason: str,
    **fields: Any,
) -> None:
    """End locked jobs that did not finish: stop all their trainers and end their generations.

    The number of queries does not grow with that of the jobs, but for events of resizes.
    """
    assert status in ENDED_JOB_STATUSES
    assert all(is_legal_job_transition(JobStatus(job.status), status) for job in jobs)
    ids = [job.pk for job in jobs]
    trainers = Allocation.objects.filter(job__in=ids, released_at=None, stop_requested_at=None)
    trainers.update(stop_requested_at=now)
    generations_end(jobs, now)
    fields = {
        "status": status.value,
        "ended_at": now,
        "status_code": code,
        "status_reason": reason,
        "policy_reason": "",
        "pause_requested": False,
        **fields,
    }
    rows = Job.objects.filter(id__in=ids).exclude(status__in=ENDED_JOB_STATUSES)
    changed = rows.update(revision=F("revision") + 1, **fields)
    assert changed == len(jobs), "jobs have ended although their rows are locked"
    start_forget(jobs)
    for job in jobs:
        job.revision += 1
        for name, value in fields.items():
            setattr(job, name, value)
        if job.started_at:
            job.duration_s = (now - job.started_at).total_seconds()
    Job.objects.bulk_update([job for job in jobs if job.started_at], ["duration_s"])


def job_restart(
    job: Job,
    now: datetime.datetime,
    *,
    code: str,
    reason: str,
    actor: str = SYSTEM,
    is_counted: bool = True,
) -> None:
    """Stop every trainer of a job and queue the job for a restart from its newest checkpoint.

    Steps since that checkpoint are repeated; the result is the same, because steps are
    deterministic. After `RESTART_LIMIT` counted restarts without a new step the job fails.
    """
    attempts = attempt_count(job, "restarts") if is_counted else JobAttempts()
    tries = attempts.restarts
    if tries > settings.RESTART_LIMIT:
        text = (
            f"Given up: it was started again {tries - 1} times without getting past step "
            f"{attempts.furthest_step}; the last cause: {reason}"
        )
        job_end(job, JobStatus.FAILED, now, code="restart_limit", reason=text)
        event_add("failed", text, now=now, job=job, actor=actor, data={"code": code})
        return
    trainers_stop(job, now)
    generations_end([job], now)
    status_change(
        job,
        JobStatus.PENDING,
        restarts=job.restarts + 1,
        pending_since=now,
        status_code=code,
        status_reason=f"Starts again: {reason}",
        examples_per_s=None,
    )
    counted = f" (try {tries} of {settings.RESTART_LIMIT} without a new step)" if tries else ""
    event_add(
        "restart",
        f"Starts again{counted}: {reason}",
        now=now,
        job=job,
        actor=actor,
        data={"code": code, "restarts": job.restarts, "tries": tries},
    )
    if job.pause_requested:
        job_pause_now(job, now)


def start_forget(jobs: Iterable[Job]) -> None:
    """Forget the expected starts of locked jobs, which no longer wait."""
    rows = JobForecast.objects.filter(job__in=[job.pk for job in jobs])
    rows.update(expected_start_earliest_at=None, expected_start_latest_at=None)


def job_pause_now(job: Job, now: datetime.datetime) -> None:
    status_change(
        job,
        JobStatus.PAUSED,
        pause_requested=False,
        status_code="paused",
        status_reason="Paused; resume it to let it wait for accelerators again.",
        policy_reason="",
    )
    start_forget([job])
    event_add("paused", "Paused", now=now, job=job)


def allocation_release(
    allocation: Allocation, now: datetime.datetime, exit_code: int | None
) -> bool:
    """Release the accelerator of an exited trainer; return False if it was released before."""
    released = Allocation.objects.filter(id=allocation.pk, released_at=None).update(
        released_at=now, exit_code=exit_code
    )
    if released:
        allocation.released_at = now
        held_s = (now - allocation.granted_at).total_seconds()
        Job.objects.filter(id=allocation.job_id).update(
            attained_accelerator_s=F("attained_accelerator_s") + max(held_s, 0.0)
        )
    return bool(released)


def job_settle(job: Job, now: datetime.datetime) -> None:
    """After the last trainer's exit, end open generations and requeue or pause a preempted job."""
    if job.allocations.filter(released_at=None).exists():
        return
    if job.status == JobStatus.PREEMPTING:
        _preemption_settle(job, now)
    elif job.status in ENDED_JOB_STATUSES:
        generations_end([job], now)


def _preemption_settle(job: Job, now: datetime.datetime) -> None:
    for generation in job.generations.filter(phase__in=OPEN_PHASES):
        generation_end(generation, GenerationPhase.CLOSED, now)
    status_change(
        job,
        JobStatus.PENDING,
        pending_since=now,
        examples_per_s=None,
        status_code=PREEMPTED,
        status_reason="Its state is saved; it goes on when it gets accelerators again.",
    )
    event_add("preempted", "Holds no accelerators any more", now=now, job=job)
    if job.pause_requested:
        job_pause_now(job, now)
