"""Changes that a policy, a priority or a tier would make now, without making them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace

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
    priorities: Mapping[int, int], tiers: Mapping[int, Tier], now: datetime.datetime
) -> list[Move]:
    """Decide once as if jobs had the priorities and tiers given for them.

    The changed jobs are listed as by `policy_preview`, whether or not the next cycle would change
    them anyway.
    """
    view = cluster_snapshot(now).snapshot
    jobs = tuple(
        replace(
            job,
            weight=float(priorities.get(job.id, job.weight)),
            tier=tiers.get(job.id, job.tier),
        )
        for job in view.jobs
    )
    chosen = ClusterSetting.objects.values_list("policy", flat=True).first()
    policy = chosen or settings.DEFAULT_POLICY
    return _moves(replace(view, jobs=jobs, carried=policy_state_read(policy)), policy)


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
