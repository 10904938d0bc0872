"""Nodes, their events and stays of jobs on them, enrolment tokens, peer filters; read-only."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from django.db.models import Max, Q

from jobs.models import (
    Allocation,
    EnrolmentToken,
    Event,
    Job,
    Node,
)
from jobs.selectors.access import (
    SHOWN_COLUMNS,
    Person,
    is_admin,
    is_seen,
    jobs_visible_to,
    node_for,
)

MAX_NODES = 500
MAX_STAYS = 200
MAX_TOKENS = 200
EVENTS_AT_ONCE = 50


def nodes_present(person: Person) -> list[Node]:
    """List the nodes that have not been removed."""
    rows = Node.objects.filter(removed_at=None).order_by("name")[:MAX_NODES]
    return [node_for(person, node) for node in rows]


def node_events(node: Node, person: Person, before_id: int | None) -> tuple[list[Event], bool]:
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


#: Kinds of the events that a node adds at enrolment or hello, when its agent's setting changes.
FILTERED, UNFILTERED = "node_filtered", "node_unfiltered"


def unfiltered_nodes() -> set[int]:
    """Return the nodes whose agents run with `--no-peer-filter`."""
    told = Event.objects.filter(kind__in=(FILTERED, UNFILTERED)).order_by()
    newest = told.values("node").annotate(newest=Max("pk")).values("newest")
    rows = Event.objects.filter(pk__in=newest, kind=UNFILTERED)
    return set(rows.order_by().values_list("node_id", flat=True))
