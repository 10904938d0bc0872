"""Recovery of missing reports: a lost leader may not have delivered its reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache

from controlplane.core.protocol.wire import Membership
from jobs.models import Generation, Job, StepReport
from jobs.selectors.prepared import PreparedQuery

#: Newest step reports searched for a gap; trainers may not keep a longer record.
_LOOKED_AT = 10_000
#: Most reports that one report may overlap: of leaders that followed each other there are few.
OVERLAPS_LIMIT = 1_000
#: Stand-ins of `_overlapping_query`.
_JOB, _SINCE, _FIRST, _LAST = 1, 2, 3, 4


def membership_ask_missed(job: Job, membership: Membership) -> Membership:
    """Ask a new leader to repeat reports from the first missing step and epoch on.

    A leader that stays delivers its reports itself. All members have the leader's records, so a
    lost leader's reports are not lost, however long the connection was down.
    """
    if not membership.members or membership.source_slot == membership.leader_slot:
        return membership
    return dataclasses.replace(
        membership, epochs_known=first_missing_epoch(job), steps_known=steps_known(job)
    )


def first_missing_epoch(job: Job) -> int:
    """Return the first epoch without a report; gaps are searched from epoch 0."""
    reported = set(job.epoch_reports.values_list("epoch", flat=True))
    return next(number for number in range(len(reported) + 1) if number not in reported)


def steps_known(job: Job) -> int:
    """Return the last step up to which the job's newest start was reported without a gap."""
    start = start_of(job, job.generation)
    since = 0 if start is None else start.number
    rows = StepReport.objects.filter(job=job, generation__gte=since).order_by("-last_step")
    spans = sorted(rows.values_list("first_step", "last_step")[:_LOOKED_AT])
    known = (start.step or 0) if start is not None else 0
    if len(spans) == _LOOKED_AT:
        known = spans[0][0] - 1
    for first, last in spans:
        if first > known + 1:
            break
        known = max(known, last)
    return known


def steps_unreported(
    job: Job, start: Generation | None, first: int, last: int
) -> Iterator[tuple[int, int]]:
    """Yield the spans of steps `first` to `last` not reported yet since a start of the job.

    Two leaders may report the same steps in different spans. Steps repeated after a restart are
    reported again.

    Raises:
        ValueError: so many reports are of these steps that nobody but the job's code can have made
            them; each gap between them would be a row, written while the node waits.
    """
    since = 0 if start is None else start.number
    values = {_JOB: job.pk, _SINCE: since, _FIRST: first, _LAST: last}
    rows = _overlapping_query().rows(values)
    if len(rows) > OVERLAPS_LIMIT:
        raise ValueError(f"over {OVERLAPS_LIMIT} reports are of steps {first} to {last} already")
    for reported_first, reported_last in rows:
        if reported_first > first:
            yield first, reported_first - 1
        first = max(first, reported_last + 1)
    if first <= last:
        yield first, last


@cache
def _overlapping_query() -> PreparedQuery:
    reports = StepReport.objects.filter(
        job=_JOB, generation__gte=_SINCE, last_step__gte=_FIRST, first_step__lte=_LAST
    )
    rows = reports.order_by("first_step").values_list("first_step", "last_step")
    return PreparedQuery(rows[: OVERLAPS_LIMIT + 1])


def start_of(job: Job, generation: int) -> Generation | None:
    """Return the generation of the job's newest start or restart up to this generation."""
    starts = job.generations.filter(previous=None, number__lte=generation, num_members__gt=0)
    return starts.order_by("-number").first()
