"""One scheduling cycle: take a snapshot, decide, apply the plan, forecast starts, explain.

The snapshot behind a plan is outdated by the time the plan is applied. So every resize begins with
a conditional update on the generation in the snapshot; zero updated rows mean that another writer
was first, and the next cycle decides again.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from django.db import IntegrityError, transaction
from django.db.models import F

from controlplane.core.expected_ends import resized_ends
from controlplane.core.expected_starts import expected_starts, unknown_starts
from controlplane.core.values.lifecycle import SCHEDULABLE_JOB_STATUSES
from controlplane.core.values.types import Plan
from jobs.models import ClusterSetting, Job
from jobs.models.resizes import BATCH_ACTOR
from jobs.selectors.cluster import cluster_snapshot
from jobs.selectors.next_cycle import decide_timed, policy_state_read
from jobs.services.lifecycle.events import event_add
from jobs.services.scheduling.batch_sizes import batch_changes_plan
from jobs.services.scheduling.explanations import reasons_save, unreadable_note
from jobs.services.scheduling.policy import cluster_setting, policy_state_write
from jobs.services.scheduling.rebalancing import mappings_revise
from jobs.services.scheduling.resizes import StaleError, resize_apply


def cycle_run(
    now: datetime.datetime, applied: Callable[[set[int]], None] | None = None
) -> set[int]:
    """Bring the cluster one step closer to the policy's decision; return the changed jobs.

    Args:
        applied: called with the changed jobs before starts and ends are forecast, so that nothing
            waits for that.
    """
    policy = cluster_setting().policy
    view = cluster_snapshot(now)
    set_aside = unreadable_note(view.unreadable, now)
    if not view.snapshot.jobs:
        return set_aside
    snapshot = dataclasses.replace(view.snapshot, carried=policy_state_read(policy))
    plan, num_decisions = decide_timed(snapshot, policy)
    policy_state_write(policy, plan.carried)
    changed = plan_apply(plan, view.generations, now, actor=f"policy:{policy}")
    busy = {row.job_id for row in plan.resizes}
    moved = mappings_revise(now, busy=busy)
    changed, busy = changed | moved, busy | moved
    batches, generations = batch_changes_plan(now, busy=busy)
    changed |= plan_apply(batches, generations, now, actor=BATCH_ACTOR)
    if applied is not None:
        applied(changed)
    starts = expected_starts(snapshot, plan, policy, num_decisions)
    unknown = unknown_starts(snapshot, plan, starts)
    reasons = {
        i: f"{text} {unknown[i]}" if i in unknown else text for i, text in plan.reasons.items()
    }
    ends = resized_ends(snapshot, plan, policy, num_decisions)
    return changed | set_aside | reasons_save(reasons, starts, ends, now)


@contextmanager
def cycle_watched(now: datetime.datetime) -> Iterator[None]:
    """Record that the cycle inside fails, for pages and health checks, until one succeeds."""
    setting = ClusterSetting.objects.filter(id=1)
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:500]
        if setting.filter(cycle_failed_at=None).update(cycle_failed_at=now):
            event_add("cycle_failed", f"A scheduling cycle has failed: {text}", now=now)
        setting.update(cycle_failure=text)
        raise
    if setting.exclude(cycle_failed_at=None).update(cycle_failed_at=None, cycle_failure=""):
        event_add("cycle_succeeded", "Scheduling cycles succeed again", now=now)


logger = logging.getLogger(__name__)


def plan_apply(
    plan: Plan, generations: Mapping[int, int], now: datetime.datetime, *, actor: str
) -> set[int]:
    """Apply the parts of a plan that are still valid, but no reasons; return the changed jobs.

    Args:
        generations: each job's generation at the time of the snapshot.
        actor: author of the decision, as recorded in events ("policy:fifo").
    """
    changed: set[int] = set()
    for resize in plan.resizes:
        try:
            with transaction.atomic():
                resize_apply(resize, generations[resize.job_id], now, actor=actor)
        except (StaleError, IntegrityError) as error:
            fields = {"job": resize.job_id, "generation": generations[resize.job_id]}
            logger.info("resize of job %s was overtaken: %s", resize.job_id, error, extra=fields)
        else:
            changed.add(resize.job_id)
    return changed | _mixes_report(plan, now, actor)


def _mixes_report(plan: Plan, now: datetime.datetime, actor: str) -> set[int]:
    """Add an event for each job whose finding about mixing accelerator kinds has changed."""
    changed = set()
    for job_id, note in plan.mixes.items():
        with transaction.atomic():
            rows = Job.objects.filter(id=job_id, status__in=[*SCHEDULABLE_JOB_STATUSES])
            key = note.key[:200]
            if rows.exclude(mix_finding=key).update(mix_finding=key, version=F("version") + 1):
                event_add(
                    "mixing",
                    note.sentence,
                    now=now,
                    job=Job.objects.get(id=job_id),
                    actor=actor,
                    data={"finding": key},
                )
                changed.add(job_id)
    return changed
