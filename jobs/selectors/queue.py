"""The queue: active jobs in their order, places in it, priorities; read-only."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Max, Min, Q

from controlplane.core.values.explanations import begins
from controlplane.core.values.lifecycle import JobStatus
from controlplane.core.values.tiers import TIERS, Tier
from jobs.models import (
    Allocation,
    Job,
)
from jobs.models.jobs import LIVE_JOB_STATUSES
from jobs.selectors.access import (
    SHOWN_COLUMNS,
    Person,
    jobs_visible_to,
)
from jobs.selectors.cluster_map import LEAVING_TIMES

MAX_LIVE_JOBS = 500
QUEUE_JOBS_AT_ONCE = 50
_QUEUE_COLUMNS = (
    *SHOWN_COLUMNS, "tier", "priority", "min_accelerators", "max_accelerators", "owner__username",
    "status_reason", "policy_reason", "forecast",
)  # fmt: skip
#: Order of the queue: by tier (in alphabetical order, as it happens), priority and age.
QUEUE_ORDER = ("-tier", "-priority", "pk")


def live_jobs(person: Person) -> list[Job]:
    """List jobs that have not ended, by tier and priority, highest first, then oldest first."""
    jobs = jobs_visible_to(person).filter(status__in=LIVE_JOB_STATUSES)
    return list(jobs.order_by(*QUEUE_ORDER)[:MAX_LIVE_JOBS])


def queue_page(number: int) -> list[tuple[Job, int]]:
    """List a page (from 1) of all jobs in the order of the queue, with the accelerators kept.

    More jobs than fit on a page tell that there is another one.
    """
    first = (number - 1) * QUEUE_JOBS_AT_ONCE
    jobs = Job.objects.filter(status__in=LIVE_JOB_STATUSES)
    rows = jobs.select_related("owner", "forecast").only(*_QUEUE_COLUMNS).order_by(*QUEUE_ORDER)
    shown = list(rows[first : first + QUEUE_JOBS_AT_ONCE + 1])
    kept = Allocation.objects.filter(
        job__in=[job.pk for job in shown],
        accelerator__is_present=True,
        accelerator__node__removed_at=None,
        **dict.fromkeys(LEAVING_TIMES, None),
        released_at=None,
    )
    counts = dict(kept.order_by().values_list("job").annotate(number=Count("pk")))
    return [(job, counts.get(job.pk, 0)) for job in shown]


def queue_place(job: Job) -> int | None:
    """Return the position (from 1) of a pending job in the queue: tier, priority, then age.

    Jobs that cannot start have none, and are not counted.
    """
    cannot_start = begins("cannot_start")
    if job.policy_reason.startswith(cannot_start):
        return None
    ahead = Job.objects.filter(status=JobStatus.PENDING).filter(
        Q(tier__in=[tier for tier in TIERS if tier.rank < Tier(job.tier).rank])
        | Q(tier=job.tier, priority__gt=job.priority)
        | Q(tier=job.tier, priority=job.priority, pk__lt=job.pk)
    )
    return ahead.exclude(policy_reason__startswith=cannot_start).count() + 1


@dataclass(frozen=True, slots=True)
class PriorityRange:
    """Lowest and highest priority of the jobs of a tier, and their number."""

    lowest: int
    highest: int
    num_jobs: int


def priority_ranges(without: Job | None = None) -> dict[Tier, PriorityRange]:
    """Return the priorities of all active jobs, whoever owns them, by tier, highest first."""
    jobs = Job.objects.filter(status__in=LIVE_JOB_STATUSES)
    if without is not None:
        jobs = jobs.exclude(pk=without.pk)
    rows = jobs.order_by("-tier").values_list("tier")
    found = rows.annotate(lowest=Min("priority"), highest=Max("priority"), num_jobs=Count("pk"))
    return {Tier(tier): PriorityRange(*numbers) for tier, *numbers in found}
