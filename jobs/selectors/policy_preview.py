"""Changes that a policy would make now, without making them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from controlplane.core.cycle import decide
from jobs.models import Job
from jobs.selectors.cluster import cluster_snapshot


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
    snapshot = cluster_snapshot(now).snapshot
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
