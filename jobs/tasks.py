"""Celery tasks: short, idempotent, time-limited. Losing or repeating one does no harm."""

from __future__ import annotations

import time

from celery import shared_task
from django.core.management import call_command
from django.utils import timezone

from jobs import counters, nudges
from jobs.services.cluster.cordons import shared_nodes_cordon
from jobs.services.cluster.maintenance import windows_advance
from jobs.services.cluster.nodes import nodes_expire
from jobs.services.cluster.replays import replay_next
from jobs.services.failures.quarantine import nodes_judge
from jobs.services.failures.timeouts import generations_expire, stalled_recover
from jobs.services.failures.watch import clock_is_settled, watch_is_kept, watch_keep
from jobs.services.lifecycle.audit import audit_expire
from jobs.services.lifecycle.predictions import predictions_join_next
from jobs.services.lifecycle.retention import code_left_remove, files_expire, files_left_remove
from jobs.services.lifecycle.usage_days import usage_days_sum
from jobs.services.notifications.deliveries import (
    deliveries_expire,
    deliveries_to_ask,
    next_attempt,
)
from jobs.services.reports.log_chunks import logs_file_missing
from jobs.services.reports.model_fitting import models_fit
from jobs.services.reports.readings import readings_expire
from jobs.services.scheduling.cycle import cycle_run, cycle_watched
from jobs.services.submission.forks import forks_advance
from jobs.services.submission.tuning_rounds import tuning_advance
from jobs.services.submission.validation_requests import validations_delete_old
from jobs.services.submission.validations import (
    validations_expire,
    validations_spread,
    validations_start_waiting,
)


@shared_task(time_limit=60)
def allocate_cluster() -> list[int]:
    """Run one scheduling cycle; return the changed jobs."""
    with nudges.cycle_turn() as has_turn:
        changed = _cycle_run() if has_turn else set()
    nudges.jobs_changed(changed)
    return sorted(changed)


def _cycle_run() -> set[int]:
    now, began_at, outcome = timezone.now(), time.monotonic(), "failed"
    try:
        with cycle_watched(now):
            changed = cycle_run(now, applied=_orders_changed)
        outcome = "succeeded"
    finally:
        counters.count("cycles", outcome)
        counters.count("cycle_seconds", amount=time.monotonic() - began_at)
        counters.mark("cycle_ended_at", time.time())
        counters.flush()
    return changed


def _nudged(changed: set[int]) -> list[int]:
    """Wake whoever waits for orders of changed jobs; return the jobs, sorted."""
    if changed:
        nudges.jobs_changed(changed, orders=True)
    return sorted(changed)


def _orders_changed(changed: set[int]) -> None:
    if changed:
        nudges.jobs_changed(changed, orders=True, cycle=False)


@shared_task(time_limit=60)
def expire_nodes() -> list[int]:
    """Mark nodes with an expired lease as lost and recover their jobs; return these nodes.

    Beginnings and ends of maintenance windows are noted as well, and nodes cordoned while their
    jobs would share a user with those of strangers.
    """
    now = timezone.now()
    if windows_advance(now) | shared_nodes_cordon(now):
        nudges.jobs_changed(cluster=True)
    if not watch_keep(now):
        return []
    lost, changed = nodes_expire(now)
    if nodes_judge(now) or lost or changed:
        nudges.jobs_changed(changed, orders=True, cluster=True)
    return sorted(lost)


@shared_task(time_limit=60)
def expire_generations() -> list[int]:
    """Abort resizes and stop leaving trainers past their time limit; return the changed jobs."""
    now = timezone.now()
    return _nudged(generations_expire(now) if watch_is_kept(now) else set())


@shared_task(time_limit=60)
def fit_models() -> int:
    """Fit the models of jobs with new reports; return the number of jobs."""
    return models_fit(timezone.now())


@shared_task(time_limit=60)
def recover_stalled(job_id: int) -> bool:
    """Recover a job whose trainers have stalled past the grace period; return if it changed."""
    return bool(_nudged(stalled_recover(timezone.now(), [job_id])))


@shared_task(soft_time_limit=870, time_limit=900)
def join_predictions() -> int | None:
    """Join the parts of one finished prediction job into one file; return the job."""
    job_id = predictions_join_next(timezone.now())
    if job_id is not None:
        nudges.jobs_changed([job_id], cycle=False)
    return job_id


@shared_task(soft_time_limit=1770, time_limit=1800)
def answer_replay() -> int | None:
    """Run one what-if replay of the cluster's past; return its number."""
    return replay_next(timezone.now())


@shared_task(time_limit=60)
def send_notifications() -> int:
    """Enqueue attempts until as many wait as messages are due; return the number of these."""
    num_due = deliveries_to_ask(timezone.now())
    nudges.deliveries_enqueue_now(num_due - nudges.queue_lengths().get(nudges.NOTIFICATIONS, 0))
    return num_due


@shared_task(soft_time_limit=20, time_limit=30)
def deliver_notification() -> bool:
    """Try to deliver the message whose turn it is; return whether an attempt was made."""
    return next_attempt(timezone.now())


@shared_task(time_limit=60)
def expire_validations() -> list[int]:
    """Assign waiting validations, retry overdue ones, delete old ones; return the jobs."""
    now = timezone.now()
    changed = validations_start_waiting(now) | validations_spread(now)
    if watch_is_kept(now):
        changed |= validations_expire(now)
    validations_delete_old(now)
    return _nudged(changed)


@shared_task(time_limit=60)
def advance_forks() -> list[int]:
    """Start forks whose state has come, refuse those that wait in vain; return changed jobs.

    None are refused for a wait in which the site was away.
    """
    now = timezone.now()
    return _nudged(forks_advance(now) if watch_is_kept(now) else set())


@shared_task(time_limit=60)
def advance_tuning() -> list[int]:
    """Begin, judge and end rounds of parallel tuning; return changed jobs."""
    return _nudged(tuning_advance(timezone.now()))


@shared_task(time_limit=60)
def expire_records() -> int:
    """Delete ended sessions, old messages and audit entries; return the number of these."""
    now = timezone.now()
    if not clock_is_settled(now):
        return 0
    call_command("clearsessions")
    deliveries_expire(now)
    return audit_expire(now)


@shared_task(time_limit=60)
def expire_readings() -> int:
    """Delete old readings of accelerators; return their number."""
    now = timezone.now()
    return readings_expire(now) if clock_is_settled(now) else 0


@shared_task(time_limit=60)
def expire_files() -> list[int]:
    """Delete the files of some jobs that ended long ago; return these jobs."""
    now = timezone.now()
    if not clock_is_settled(now):
        return []
    deleted = files_expire(now)
    nudges.jobs_changed(deleted)
    files_left_remove(now)
    code_left_remove(now)
    return sorted(deleted)


@shared_task(time_limit=60)
def file_logs() -> list[int]:
    """Write the logs that found no room on the disk when their jobs ended; return these jobs."""
    filed = logs_file_missing(timezone.now())
    nudges.jobs_changed(filed)
    return sorted(filed)


@shared_task(time_limit=60)
def sum_usage_days() -> int:
    """Sum up the usage of some days that are over; return their number."""
    now = timezone.now()
    return usage_days_sum(now) if clock_is_settled(now) else 0
