"""Rows of the timeline: stays of jobs on accelerators, and marks of what changed them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple

from django.db.models import Q

from jobs.models import Accelerator, Event
from jobs.selectors.access import Person, is_admin, is_seen, projects_seen_by, text_for
from jobs.selectors.expressions import EpochSeconds
from jobs.selectors.series import allocations_between, jobs_named

#: Most accelerators, stays and marks of one timeline; the newest stays and marks are taken.
MAX_ROWS = 128
MAX_STAYS = 3_000
MAX_MARKS = 1_000


class MarkKind(StrEnum):
    """Kinds of marks."""

    RESIZE = "resize"
    PREEMPTION = "preemption"
    FAILURE = "failure"
    NODE = "node"
    POLICY = "policy"


_KINDS = {
    "resize": MarkKind.RESIZE,
    "preempted": MarkKind.PREEMPTION,
    "failed": MarkKind.FAILURE,
    "recovery_requested": MarkKind.FAILURE,
    "resize_given_up": MarkKind.FAILURE,
    "node_lost": MarkKind.FAILURE,
    "node_back": MarkKind.NODE,
    "node_cordoned": MarkKind.NODE,
    "node_drained": MarkKind.NODE,
    "node_uncordoned": MarkKind.NODE,
    "maintenance_began": MarkKind.NODE,
    "maintenance_ended": MarkKind.NODE,
    "maintenance_cancelled": MarkKind.NODE,
    "node_quarantined": MarkKind.NODE,
    "node_doubted": MarkKind.NODE,
    "policy": MarkKind.POLICY,
}


class Stay(NamedTuple):
    """A job on one accelerator; without a name if the viewer may not see it.

    Attributes:
        granted_at, released_at: seconds since the epoch; None: still.
    """

    accelerator_id: int
    job_id: int
    job_name: str | None
    colour: int
    granted_at: float
    released_at: float | None


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """An event; of a job, of a node, or of the whole cluster."""

    kind: MarkKind
    at: datetime.datetime
    text: str
    job_id: int | None
    node_id: int | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Stays and marks between two times.

    Attributes:
        num_left_out: accelerators above `MAX_ROWS`.
        is_cut: whether older stays or marks are left out.
    """

    accelerators: Sequence[Accelerator]
    stays: Sequence[Stay]
    marks: Sequence[TimelineEvent]
    num_left_out: int
    is_cut: bool


def timeline_between(
    start_at: datetime.datetime,
    end_at: datetime.datetime,
    person: Person,
    node_id: int | None = None,
) -> Timeline:
    """Read a timeline, in a constant number of queries of bounded size.

    Args:
        node_id: only this node.
    """
    present = Accelerator.objects.filter(is_present=True, node__removed_at=None)
    if node_id is not None:
        present = present.filter(node_id=node_id)
    rows = list(present.select_related("node").order_by("node__name", "index")[:MAX_ROWS])
    stays = _stays(start_at, end_at, person, rows)
    marks = _marks(start_at, end_at, person, node_id)
    return Timeline(
        rows,
        stays,
        marks,
        max(0, present.count() - len(rows)) if len(rows) == MAX_ROWS else 0,
        len(stays) == MAX_STAYS or len(marks) == MAX_MARKS,
    )


def _stays(
    start_at: datetime.datetime,
    end_at: datetime.datetime,
    person: Person,
    accelerators: Sequence[Accelerator],
) -> list[Stay]:
    columns = (EpochSeconds("granted_at"), "accelerator_id", "job_id", EpochSeconds("released_at"))
    rows = [
        row
        for spans in allocations_between(start_at, end_at)
        for row in spans.filter(accelerator__in=accelerators).values_list(*columns)[:MAX_STAYS]
    ]
    shown = sorted(rows, key=itemgetter(0, 1))[-MAX_STAYS:]
    jobs = jobs_named({job_id for _, _, job_id, _ in shown})
    if not is_admin(person):
        projects = projects_seen_by(person)
        jobs = {
            job_id: job
            for job_id, job in jobs.items()
            if job.owner_id == person.pk or job.project_id in projects
        }
    return [
        Stay(place, job_id, job.name, job.colour, since, until)
        if (job := jobs.get(job_id))
        else Stay(place, 0, None, 0, since, until)
        for since, place, job_id, until in shown
    ]


def _marks(
    start_at: datetime.datetime,
    end_at: datetime.datetime,
    person: Person,
    node_id: int | None,
) -> list[TimelineEvent]:
    events = Event.objects.filter(kind__in=_KINDS, at__gte=start_at, at__lte=end_at)
    if not is_admin(person):
        events = events.filter(Q(job=None) | is_seen(person, "job"))
    if node_id is not None:
        events = events.filter(Q(node=None) | Q(node_id=node_id))
    rows = events.order_by("-at").values_list("kind", "at", "message", "job_id", "node_id")
    return [
        TimelineEvent(_KINDS[kind], at, text_for(person, text), job, node)
        for kind, at, text, job, node in rows[:MAX_MARKS]
    ][::-1]
