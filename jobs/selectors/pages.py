"""Data of the pages, read in few queries; read-only.

The cluster map shows every user that an accelerator is held, but the job only to users who may see
it.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Count, F, Max, Min, Q, QuerySet

from controlplane.core.values.explanations import begins
from controlplane.core.values.lifecycle import GenerationPhase, JobStatus
from controlplane.core.values.tiers import TIERS, Tier
from jobs.models import (
    Accelerator,
    Allocation,
    AuditEntry,
    EnrolmentToken,
    Event,
    Generation,
    Job,
    JobMetric,
    Node,
    ReadingBin,
)
from jobs.models.jobs import LIVE_JOB_STATUSES
from jobs.selectors.access import (
    SHOWN_COLUMNS,
    Person,
    is_admin,
    is_seen,
    jobs_visible_to,
    node_for,
)
from jobs.selectors.job_order import jobs_slice
from jobs.selectors.readings import IdleHeld, use_now

#: Rows of a page of jobs or of the audit log.
PAGE_SIZE = 50
MAX_LIVE_JOBS = 500
MAX_NODES = 500
MAX_ACCELERATORS = 4000
MAX_EVENTS = 200
EVENTS_AT_ONCE = 50
MAX_STAYS = 200
MAX_TOKENS = 200
#: More than a page shows, for the number of members before the oldest resize shown.
MAX_GENERATIONS = 150

_OPEN_PHASES = (GenerationPhase.PREPARING, GenerationPhase.SWITCHING, GenerationPhase.ACTIVE)

#: Times of an allocation that its job does not keep.
_LEAVING = ("stop_requested_at", "release_requested_at", "left_at", "finished_at")

QUEUE_JOBS_AT_ONCE = 50
_QUEUE_COLUMNS = (
    *SHOWN_COLUMNS, "tier", "priority", "min_accelerators", "max_accelerators", "owner__username",
    "status_reason", "policy_reason", "forecast",
)  # fmt: skip
#: Order of the queue: by tier (in alphabetical order, as it happens), priority and age.
QUEUE_ORDER = ("-tier", "-priority", "pk")


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of jobs, and the cursors of its neighbours; empty if there are none.

    Attributes:
        steps_per_epoch: by job, None where unknown: the only fact that lists use.
        best_values: of the metric asked for, by job.
    """

    jobs: Sequence[Job]
    previous_cursor: str
    next_cursor: str
    steps_per_epoch: Mapping[int, int | None]
    best_values: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class AcceleratorCell:
    """One accelerator on the cluster map.

    Attributes:
        job: the holder, if the viewer may see it; `is_held` is true in any case.
        state: free, starting, training or leaving.
        virtual_nodes: virtual nodes of its trainer, ascending.
        reading: its use in the last minute, if known; of the cells of `with_use`.
        idle: set if a job holds it and has hardly used it; of the cells of `with_use`.
    """

    accelerator: Accelerator
    is_held: bool = False
    job: Job | None = None
    slot: int | None = None
    state: str = "free"
    virtual_nodes: tuple[int, ...] = ()
    reading: ReadingBin | None = None
    idle: IdleHeld | None = None

    @property
    def is_kept(self) -> bool:
        """True if a job holds the accelerator and is meant to keep it."""
        return self.is_held and self.state != "leaving"


@dataclass(frozen=True, slots=True)
class NodeMap:
    """A node and its accelerators, in order."""

    node: Node
    cells: Sequence[AcceleratorCell]

    @property
    def num_held(self) -> int:
        """Number of accelerators held by jobs."""
        return sum(cell.is_held for cell in self.cells)

    @property
    def jobs(self) -> list[Job]:
        """Jobs that hold accelerators of the node and that the viewer may see."""
        return list({cell.job.pk: cell.job for cell in self.cells if cell.job}.values())


def job_page(
    jobs: QuerySet[Job],
    *,
    order: str,
    cursor: str,
    metric: str = "",
    parts: Sequence[Q] = (Q(),),
) -> JobPage:
    """Read one page of `jobs`, the first one if the cursor is none of them.

    Args:
        order, cursor, parts: as of `jobs_slice`.
        metric: name of a metric whose best values are shown.
    """
    try:
        part = jobs_slice(jobs, order, cursor, PAGE_SIZE, parts)
    except ValueError:
        part = jobs_slice(jobs, order, "", PAGE_SIZE, parts)
    rows = jobs.filter(pk__in=part.job_ids).annotate(steps_per_epoch=F("facts__steps_per_epoch"))
    found = rows.order_by().in_bulk()
    shown = [found[job_id] for job_id in part.job_ids if job_id in found]
    best = JobMetric.objects.filter(name=metric, job_id__in=part.job_ids) if metric else ()
    return JobPage(
        shown,
        part.previous_cursor,
        part.next_cursor,
        {job.pk: job.steps_per_epoch for job in shown},
        {row.job_id: row.best for row in best},
    )


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
        **dict.fromkeys(_LEAVING, None),
        released_at=None,
    )
    counts = dict(kept.order_by().values_list("job").annotate(number=Count("pk")))
    return [(job, counts.get(job.pk, 0)) for job in shown]


def cluster_map(
    person: Person, job_id: int | None = None, node_id: int | None = None
) -> list[NodeMap]:
    """Read every node with its accelerators and their holders; or those of one job, or one node."""
    accelerators = Accelerator.objects.filter(node__removed_at=None).select_related("node")
    allocations = Allocation.objects.filter(released_at=None).select_related("job")
    if node_id is not None:
        accelerators = accelerators.filter(node_id=node_id)
        allocations = allocations.filter(accelerator__node_id=node_id)
    if job_id is not None:
        allocations = allocations.filter(job_id=job_id)
        accelerators = accelerators.filter(pk__in=allocations.values("accelerator_id"))
    else:
        accelerators = accelerators.filter(is_present=True)
    holders = {allocation.accelerator_id: allocation for allocation in allocations}
    slots = _virtual_nodes_by_slot({allocation.job_id for allocation in holders.values()})
    held_by = {allocation.job_id for allocation in holders.values()}
    visible = jobs_visible_to(person).filter(pk__in=held_by)
    seen = None if is_admin(person) else set(visible.values_list("pk", flat=True))
    cells: dict[Node, list[AcceleratorCell]] = {}
    for accelerator in accelerators.order_by("node__name", "index")[:MAX_ACCELERATORS]:
        cell = _cell(accelerator, holders.get(accelerator.pk), slots, seen)
        cells.setdefault(accelerator.node, []).append(cell)
    return [NodeMap(node_for(person, node), of_node) for node, of_node in cells.items()]


def with_use(maps: Iterable[NodeMap], now: datetime.datetime) -> list[NodeMap]:
    """Add the present use to the cells of a map, in three queries."""
    maps = list(maps)
    use = use_now([cell.accelerator.pk for row in maps for cell in row.cells], now)
    return [
        NodeMap(
            row.node,
            [
                dataclasses.replace(
                    cell,
                    reading=use.readings.get(cell.accelerator.pk),
                    idle=use.idle.get(cell.accelerator.pk),
                )
                for cell in row.cells
            ],
        )
        for row in maps
    ]


def _cell(
    accelerator: Accelerator,
    allocation: Allocation | None,
    slots: Mapping[tuple[int, int], tuple[int, ...]],
    seen: Collection[int] | None,
) -> AcceleratorCell:
    if allocation is None:
        return AcceleratorCell(accelerator)
    if not (seen is None or allocation.job_id in seen):
        return AcceleratorCell(accelerator, is_held=True, state="in use")
    return AcceleratorCell(
        accelerator,
        is_held=True,
        job=allocation.job,
        slot=allocation.slot,
        state=_allocation_state(allocation),
        virtual_nodes=slots.get((allocation.job_id, allocation.slot), ()),
    )


def _allocation_state(allocation: Allocation) -> str:
    if any(getattr(allocation, name) for name in _LEAVING):
        return "leaving"
    return "training" if allocation.joined_at else "starting"


def _virtual_nodes_by_slot(job_ids: Iterable[int]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Map (job, slot) to virtual nodes; the active generation takes precedence."""
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    generations = Generation.objects.filter(job_id__in=list(job_ids), phase__in=_OPEN_PHASES)
    for generation in sorted(
        generations, key=lambda g: (g.phase != GenerationPhase.ACTIVE, g.number)
    ):
        for member in generation.membership.members:
            key = (generation.job_id, member.slot)
            found.setdefault(key, tuple(member.virtual_nodes))
    return found


def nodes(person: Person) -> list[Node]:
    """List the nodes that have not been removed."""
    rows = Node.objects.filter(removed_at=None).order_by("name")[:MAX_NODES]
    return [node_for(person, node) for node in rows]


def node_events(
    node: Node, person: Person, before_id: int | None = None
) -> tuple[list[Event], bool]:
    """Read the newest events of a node, without those of jobs hidden from a person.

    Returns:
        The events, and whether there are older ones.
    """
    events = node.events.order_by("-id")
    if before_id is not None:
        events = events.filter(pk__lt=before_id)
    if not is_admin(person):
        events = events.filter(Q(job=None) | is_seen(person, "job"))
    rows = list(events[: EVENTS_AT_ONCE + 1])
    return rows[:EVENTS_AT_ONCE], len(rows) > EVENTS_AT_ONCE


@dataclass(frozen=True, slots=True)
class NodeStay:
    """A job's stay on a node: times of its first and last accelerator there; None: still."""

    job: Job  # with the columns `SHOWN_COLUMNS`
    num_accelerators: int
    since: datetime.datetime
    until: datetime.datetime | None


def node_stays(node: Node, person: Person) -> list[NodeStay]:
    """List the jobs that have held accelerators of a node and that a person may see.

    Of the newest `MAX_STAYS` allocations, the newest job first.
    """
    spans = Allocation.objects.filter(accelerator__node=node)
    if not is_admin(person):
        spans = spans.filter(is_seen(person, "job"))
    by_job: dict[int, list[Allocation]] = {}
    for span in spans.order_by("-id")[:MAX_STAYS]:
        by_job.setdefault(span.job_id, []).append(span)
    rows_of = jobs_visible_to(person).select_related(None).defer(None)
    jobs = rows_of.only(*SHOWN_COLUMNS).in_bulk(by_job)
    return [
        NodeStay(
            jobs[job_id],
            len({row.accelerator_id for row in rows}),
            min(row.granted_at for row in rows),
            max((row.released_at for row in rows if row.released_at), default=None)
            if all(row.released_at for row in rows)
            else None,
        )
        for job_id, rows in by_job.items()
        if job_id in jobs
    ]


def enrolment_tokens(now: datetime.datetime) -> list[EnrolmentToken]:
    """List the enrolment tokens that can still be used, newest first."""
    tokens = EnrolmentToken.objects.filter(used_at=None, expires_at__gt=now)
    return list(tokens.select_related("created_by").order_by("-id")[:MAX_TOKENS])


def audit_page(
    entries: QuerySet[AuditEntry], before_id: int | None
) -> tuple[list[AuditEntry], bool]:
    """Read one page of audit entries, newest first; and whether there are older ones."""
    if before_id is not None:
        entries = entries.filter(pk__lt=before_id)
    rows = list(entries.order_by("-pk")[: PAGE_SIZE + 1])
    return rows[:PAGE_SIZE], len(rows) > PAGE_SIZE


def generations_of(job: Job) -> list[Generation]:
    """List the newest generations of a job, newest first, without their memberships."""
    return list(job.generations.defer("membership").order_by("-number")[:MAX_GENERATIONS])


def events_of(job: Job) -> list[Event]:
    """List events of a job, newest first."""
    return list(job.events.order_by("-id")[:MAX_EVENTS])


def members_by_phase(job: Job) -> dict[str, int]:
    """Return the number of members of a job's open generations by phase, of the newest each."""
    rows = job.generations.filter(phase__in=_OPEN_PHASES).order_by("number")
    return dict(rows.values_list("phase", "num_members"))


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
