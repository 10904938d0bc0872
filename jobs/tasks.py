"""What Celery runs: short, idempotent, time-limited. Losing or repeating one changes nothing."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from jobs import nudges
from jobs.services.cluster.nodes import nodes_expire
from jobs.services.cluster.replays import replay_next
from jobs.services.failures.quarantine import nodes_judge
from jobs.services.failures.timeouts import generations_expire, stalled_recover
from jobs.services.failures.watch import watch_is_kept, watch_keep
from jobs.services.lifecycle.predictions import predictions_join_next
from jobs.services.scheduling.cycle import cycle_run
from jobs.services.submission.measurements import drafts_forget
from jobs.services.submission.validations import validations_assign_waiting, validations_expire


@shared_task(time_limit=60)
def allocate_cluster() -> list[int]:
    """Run one cycle: observe, decide, apply. Gives the jobs that changed."""
    with nudges.cycle_turn() as has_turn:
        changed = cycle_run(timezone.now()) if has_turn else set()
    if changed:
        nudges.jobs_changed(changed, orders=True, cycle=False)
    return sorted(changed)


@shared_task(time_limit=60)
def expire_nodes() -> list[int]:
    """Mark nodes lost whose lease is over and restart what ran there."""
    now = timezone.now()
    if not watch_keep(now):
        return []
    lost, changed = nodes_expire(now)
    if nodes_judge(now) or lost or changed:
        nudges.jobs_changed(changed, orders=True, cluster=True)
    return sorted(lost)


@shared_task(time_limit=60)
def expire_generations() -> list[int]:
    """Give up resizes that never came about, and end trainers that should have left."""
    now = timezone.now()
    changed = generations_expire(now) if watch_is_kept(now) else set()
    if changed:
        nudges.jobs_changed(changed, orders=True)
    return sorted(changed)


@shared_task(time_limit=60)
def recover_stalled(job_id: int) -> bool:
    """Let a job go on whose trainers have waited for others long enough."""
    changed = stalled_recover(timezone.now(), [job_id])
    if changed:
        nudges.jobs_changed(changed, orders=True)
    return bool(changed)


@shared_task(time_limit=900)
def join_predictions() -> int | None:
    """Make one file of the parts of a job that has predicted. Gives the job."""
    job_id = predictions_join_next(timezone.now())
    if job_id is not None:
        nudges.jobs_changed([job_id], cycle=False)
    return job_id


@shared_task(time_limit=1800)
def answer_replay() -> int | None:
    """Answer one question "what if" from the cluster's past. Gives its number."""
    return replay_next(timezone.now())


@shared_task(time_limit=60)
def expire_validations() -> list[int]:
    """Give waiting validations to nodes, take overdue ones back, and forget old drafts."""
    now = timezone.now()
    changed = validations_assign_waiting(now)
    if watch_is_kept(now):
        changed |= validations_expire(now)
    drafts_forget(now)
    if changed:
        nudges.jobs_changed(changed, orders=True)
    return sorted(changed)
