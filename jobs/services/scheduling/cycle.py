"""One scheduling cycle: take a snapshot, decide, apply the plan, forecast starts, explain."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from controlplane.core.expected_ends import resized_ends
from controlplane.core.expected_starts import expected_starts, unknown_starts
from jobs.models import ClusterSetting
from jobs.models.resizes import BATCH_ACTOR
from jobs.selectors.cluster import cluster_snapshot
from jobs.selectors.next_cycle import decide_timed
from jobs.selectors.policy_state import policy_state_read
from jobs.services.lifecycle.events import event_add
from jobs.services.scheduling.batch_sizes import batch_changes_plan
from jobs.services.scheduling.explanations import reasons_save, unreadable_note
from jobs.services.scheduling.plans import plan_apply
from jobs.services.scheduling.policy import cluster_setting, policy_state_write
from jobs.services.scheduling.rebalancing import mappings_revise


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
