"""Drains of nodes: who would move where and by when, and what became of it."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q

from controlplane.core.expected_starts import ExpectedStart, expected_starts
from controlplane.core.values import types
from controlplane.simulator.settings import MEASURED, ResizeCosts
from jobs.models import Accelerator, Allocation, Event, Job, Node
from jobs.models.audit import AuditAction
from jobs.selectors.access import Person, jobs_visible_to
from jobs.selectors.history import resize_costs
from jobs.selectors.next_cycle import decide_timed, next_cycle

#: Most jobs of the record of a drain.
RECORD_LIMIT = 500
#: An ended drain is shown for so long.
SHOWN_FOR = datetime.timedelta(days=7)
#: Kinds of the events with which jobs leave a node, and may come back.
_DRAINS = (AuditAction.NODE_DRAINED, "maintenance_began")
_DRAIN_ENDS = (AuditAction.NODE_UNCORDONED, "maintenance_ended")


@dataclass(frozen=True, slots=True)
class DrainMove:
    """A job that a drain would change.

    Attributes:
        num_here: accelerators that it holds on the nodes.
        held, wanted: number of its accelerators before and after.
        nodes: name of a node -> number of accelerators there after it.
        within_s: seconds until the change is done; None if it is not known.
        start: of a job that waits then, the expected start.
    """

    job: Job
    num_here: int
    held: int
    wanted: int
    nodes: Mapping[str, int]
    within_s: float | None
    start: ExpectedStart | None = None

    @property
    def where(self) -> str:
        """The nodes in words: "3 on node-b, 1 on node-c"."""
        return ", ".join(f"{count} on {name}" for name, count in self.nodes.items())

    @property
    def start_s(self) -> tuple[float, float] | None:
        """Seconds until the earliest and the latest start."""
        return None if self.start is None else (self.start.earliest_s, self.start.latest_s)

    @property
    def text(self) -> str:
        """The change in words: "4 → 3 on node-b"."""
        if not self.wanted:
            return f"{self.held} → 0: its state is saved, and it waits"
        if not self.held:
            return f"starts with {self.where}"
        return f"{self.held} → {self.where}"


def drain_preview(nodes: Collection[Node], now: datetime.datetime) -> list[DrainMove]:
    """Decide as if nodes were drained now; list the changed jobs, those of the nodes first."""
    snapshot, policy = next_cycle(now, without_nodes=[node.pk for node in nodes])
    plan, num_decisions = decide_timed(snapshot, policy)
    assert plan.allocation is not None
    starts = expected_starts(snapshot, plan, policy, num_decisions)
    wanted = plan.allocation.accelerators
    there = Accelerator.objects.filter(node__in=nodes)
    here = set(there.values_list("pk", flat=True))
    changed = [
        job for job in snapshot.jobs if set(snapshot.manned(job.id)) != set(wanted.get(job.id, ()))
    ]
    costs = resize_costs(job.id for job in changed)
    leave_s = {job.id: _leave_s(job) for job in changed if snapshot.manned(job.id)}
    rows = Job.objects.select_related("owner").in_bulk([job.id for job in changed])
    used = Accelerator.objects.filter(pk__in={pk for places in wanted.values() for pk in places})
    names = dict(used.values_list("pk", "node__name"))
    moves = [
        DrainMove(
            job=rows[job.id],
            num_here=len(here.intersection(snapshot.manned(job.id))),
            held=len(snapshot.manned(job.id)),
            wanted=len(wanted.get(job.id, ())),
            nodes=Counter(names[pk] for pk in wanted.get(job.id, ())),
            within_s=_within_s(job, snapshot, plan, costs, leave_s),
            start=None if job.id in wanted else starts.get(job.id),
        )
        for job in changed
        if job.id in rows
    ]
    return sorted(moves, key=lambda move: (-bool(move.num_here), move.job.pk))


def drain_record(moves: Sequence[DrainMove]) -> list[dict[str, Any]]:
    """Return moves as they are kept with the event of the drain."""
    return [
        {
            "job": move.job.pk,
            "held": move.held,
            "wanted": move.wanted,
            "nodes": dict(move.nodes),
            "within_s": move.within_s,
        }
        for move in moves[:RECORD_LIMIT]
        if move.num_here
    ]


@dataclass(frozen=True, slots=True)
class DrainOutcome:
    """A job of a drained node: the expectation, and the change that happened.

    Attributes:
        expected: accelerators after it, as the preview said.
        within_s: seconds that it was to take.
        left_s: seconds until it had left the node; None while it is still there.
        held_after: accelerators that it held on other nodes when it had left.
    """

    job: Job
    held: int
    expected: int
    within_s: float | None
    left_s: float | None
    held_after: int


def drain_outcome(node: Node, person: Person, now: datetime.datetime) -> list[DrainOutcome]:
    """Compare the newest drain of a node with its preview, for the jobs that a person may see.

    Empty if the node was given work again, or after a week.
    """
    event = node.events.filter(kind__in=[*_DRAINS, *_DRAIN_ENDS]).order_by("-pk").first()
    if event is None or event.kind not in _DRAINS or event.at < now - SHOWN_FOR:
        return []
    kept = event.data.get("jobs", [])
    jobs = jobs_visible_to(person).in_bulk([row["job"] for row in kept])
    spans: dict[int, list[Allocation]] = {}
    for span in Allocation.objects.filter(
        Q(released_at=None) | Q(released_at__gte=event.at), job__in=jobs
    ).select_related("accelerator"):
        spans.setdefault(span.job_id, []).append(span)
    return [
        _outcome(row, jobs[row["job"]], spans.get(row["job"], []), event)
        for row in kept
        if row["job"] in jobs
    ]


def _outcome(
    row: Mapping[str, Any], job: Job, spans: Sequence[Allocation], event: Event
) -> DrainOutcome:
    here = [
        span
        for span in spans
        if span.accelerator.node_id == event.node_id and span.granted_at <= event.at
    ]
    ends = [span.released_at for span in here if span.released_at is not None]
    left_at = max(ends, default=event.at) if len(ends) == len(here) else None
    after = [
        span
        for span in spans
        if span.accelerator.node_id != event.node_id
        and (left_at is None or span.granted_at <= left_at)
        and (span.released_at is None or (left_at is not None and span.released_at > left_at))
    ]
    return DrainOutcome(
        job=job,
        held=row["held"],
        expected=row["wanted"],
        within_s=row["within_s"],
        left_s=None if left_at is None else (left_at - event.at).total_seconds(),
        held_after=len(after),
    )


def jobs_on(nodes: Collection[Node]) -> list[Job]:
    """List the jobs that hold accelerators of nodes."""
    held = Allocation.objects.filter(accelerator__node__in=nodes, released_at=None)
    return list(Job.objects.filter(pk__in=held.values("job")).order_by("pk"))


def _leave_s(job: types.Job) -> float:
    """Return the seconds until a job has left accelerators that it gives up.

    The running step ends, state is moved, and the trainer's process ends. A job whose speed is not
    known is assumed to take a second a step.
    """
    speed = max(job.examples_per_s.values(), default=0.0)
    step_s = job.global_batch_size / speed if speed > 0.0 else 1.0
    return step_s + job.resize_s + MEASURED.release_s


def _within_s(
    job: types.Job,
    snapshot: types.Snapshot,
    plan: types.Plan,
    costs: ResizeCosts,
    leave_s: Mapping[int, float],
) -> float | None:
    assert plan.allocation is not None
    wanted = set(plan.allocation.accelerators.get(job.id, ()))
    held = set(snapshot.manned(job.id))
    if not wanted:
        return leave_s.get(job.id)
    # Accelerators of others are free once these have left.
    others = [
        leave_s[other]
        for other, places in snapshot.held.items()
        if other != job.id and other in leave_s and wanted.intersection(places)
    ]
    total_s = max(others, default=0.0)
    if not held:
        return total_s + costs.start_s
    return total_s + leave_s[job.id] + (costs.growth_s if wanted - held else 0.0)
