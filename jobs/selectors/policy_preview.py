"""Changes that a policy, a priority or a tier would make now, without making them."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from django.conf import settings

from controlplane.core.cycle import decide
from controlplane.core.values.tiers import Tier
from controlplane.core.values.types import Snapshot
from jobs.models import ClusterSetting, Job
from jobs.selectors.cluster import cluster_snapshot
from jobs.selectors.policy_state import policy_state_read


@dataclass(frozen=True, slots=True)
class Move:
    """A job and its accelerators before and after."""

    job: Job
    held: int
    wanted: int


def policy_preview(policy: str, now: datetime.datetime) -> list[Move]:
    """Decide once by a policy that carries no state yet; list the changed jobs, smallest id first.

    Jobs that wait for accelerators in use are listed with what they get in the end.
    """
    return _moves(cluster_snapshot(now).snapshot, policy)


def reprioritise_preview(
    job_ids: Collection[int], priority: int | None, tier: Tier | None, now: datetime.datetime
) -> list[Move]:
    """Decide once as if some jobs had another priority or tier (None: as it is).

    The changed jobs are listed as by `policy_preview`, whether or not the next cycle would change
    them anyway.
    """
    view = cluster_snapshot(now).snapshot
    wanted: dict[str, Any] = {} if priority is None else {"weight": float(priority)}
    wanted |= {} if tier is None else {"tier": tier}
    jobs = (replace(job, **wanted) if job.id in job_ids else job for job in view.jobs)
    chosen = ClusterSetting.objects.values_list("policy", flat=True).first()
    policy = chosen or settings.DEFAULT_POLICY
    return _moves(replace(view, jobs=tuple(jobs), carried=policy_state_read(policy)), policy)


def _moves(snapshot: Snapshot, policy: str) -> list[Move]:
    plan = decide(snapshot, policy)
    assert plan.allocation is not None
    wanted = plan.allocation.accelerators
    changed = {
        job.id: (len(held), len(wanted.get(job.id, ())))
        for job in snapshot.jobs
        if set(held := snapshot.manned(job.id)) != set(wanted.get(job.id, ()))
    }
    jobs = Job.objects.filter(pk__in=changed).order_by("pk")
    return [Move(job, *changed[job.pk]) for job in jobs]
