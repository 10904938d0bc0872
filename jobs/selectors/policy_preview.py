"""Changes that a policy, a priority or a tier would make now, without making them."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from django.db.models import QuerySet

from controlplane.core.expected_starts import ExpectedStart, expected_starts
from controlplane.core.values.explanations import durations
from controlplane.core.values.lifecycle import JobStatus
from controlplane.core.values.tiers import Tier
from controlplane.core.values.types import Plan, Snapshot
from jobs.models import Job
from jobs.selectors.cluster import cluster_snapshot
from jobs.selectors.next_cycle import decide_timed, next_cycle

#: Most jobs whose expected start is told; those that start first.
STARTS_LIMIT = 20


@dataclass(frozen=True, slots=True)
class Move:
    """A job and its accelerators before and after."""

    job: Job
    held: int
    wanted: int


@dataclass(frozen=True, slots=True)
class StartChange:
    """A waiting job and its expected start before and after; None if there is no estimate."""

    job: Job
    before: ExpectedStart | None
    after: ExpectedStart | None

    @property
    def text(self) -> str:
        """The change in words: "10 to 20 min → 2 to 5 min"."""
        return f"{_words(self.before)} → {_words(self.after)}"


@dataclass(frozen=True, slots=True)
class Preview:
    """Effect of a change: the jobs with other accelerators, and with another expected start."""

    moves: Sequence[Move]
    starts: Sequence[StartChange]


def policy_preview(policy: str, now: datetime.datetime) -> Preview:
    """Decide once by a policy that carries no state yet.

    Jobs that wait for accelerators in use are listed with what they get in the end. Starts are
    forecast within `FORECAST_S`, and compared with those told last.
    """
    return _preview(cluster_snapshot(now).snapshot, policy, now, Job.objects.all())


def reprioritise_preview(
    priorities: Mapping[int, int],
    tiers: Mapping[int, Tier],
    now: datetime.datetime,
    visible: QuerySet[Job],
) -> Preview:
    """Decide once as if jobs had the priorities and tiers given for them.

    The changed jobs are listed as by `policy_preview`, whether or not the next cycle would change
    them anyway.

    Args:
        visible: jobs whose expected starts may be told.
    """
    snapshot, policy = next_cycle(now)
    jobs = tuple(
        replace(
            job,
            weight=float(priorities.get(job.id, job.weight)),
            tier=tiers.get(job.id, job.tier),
        )
        for job in snapshot.jobs
    )
    return _preview(replace(snapshot, jobs=jobs), policy, now, visible)


def _preview(
    snapshot: Snapshot, policy: str, now: datetime.datetime, visible: QuerySet[Job]
) -> Preview:
    plan, num_decisions = decide_timed(snapshot, policy)
    starts = expected_starts(snapshot, plan, policy, num_decisions)
    return Preview(_moves(snapshot, plan), _starts(snapshot, plan, starts, now, visible))


def _moves(snapshot: Snapshot, plan: Plan) -> list[Move]:
    """List the jobs that the plan gives other accelerators, smallest id first."""
    assert plan.allocation is not None
    wanted = plan.allocation.accelerators
    changed = {
        job.id: (len(held), len(wanted.get(job.id, ())))
        for job in snapshot.jobs
        if set(held := snapshot.manned(job.id)) != set(wanted.get(job.id, ()))
    }
    jobs = Job.objects.filter(pk__in=changed).order_by("pk")
    return [Move(job, *changed[job.pk]) for job in jobs]


def _starts(
    snapshot: Snapshot,
    plan: Plan,
    starts: Mapping[int, ExpectedStart],
    now: datetime.datetime,
    visible: QuerySet[Job],
) -> list[StartChange]:
    """List the jobs that wait under the plan whose start differs from the one told last."""
    assert plan.allocation is not None
    waiting = {job.id for job in snapshot.jobs} - plan.allocation.accelerators.keys()
    pending = visible.filter(status=JobStatus.PENDING).order_by("pk")
    columns = (
        "pk", "forecast__expected_start_earliest_at", "forecast__expected_start_latest_at"
    )  # fmt: skip
    changed = {}
    for job_id, earliest_at, latest_at in pending.values_list(*columns):
        before = None
        if earliest_at is not None and latest_at is not None:
            bounds = ((at - now).total_seconds() for at in (earliest_at, latest_at))
            before = ExpectedStart(*bounds)
        after = starts.get(job_id)
        if job_id in waiting and _is_changed(before, after):
            changed[job_id] = (before, after)
    first = sorted(changed, key=lambda job_id: _earliest_s(changed[job_id][1]))[:STARTS_LIMIT]
    jobs = visible.in_bulk(first)
    return [StartChange(jobs[job_id], *changed[job_id]) for job_id in first if job_id in jobs]


def _is_changed(before: ExpectedStart | None, after: ExpectedStart | None) -> bool:
    if before is None or after is None:
        return before is not after
    return not after.confirms(before) and _words(before) != _words(after)


def _earliest_s(start: ExpectedStart | None) -> float:
    return math.inf if start is None else start.earliest_s


def _words(start: ExpectedStart | None) -> str:
    return "no estimate" if start is None else durations(start.earliest_s, start.latest_s)
