"""Use of accelerators over a time, by project, user or tag: hours, waste and cost."""

from __future__ import annotations

import datetime
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import (
    DurationField,
    ExpressionWrapper,
    F,
    FloatField,
    Q,
    QuerySet,
    Sum,
    Value,
)
from django.db.models.functions import Cast, Coalesce, Greatest, Least

from jobs.models import (
    Accelerator,
    AcceleratorPrice,
    Allocation,
    Generation,
    Job,
    Project,
    ReadingBin,
)
from jobs.selectors.access import Person, is_seen
from jobs.selectors.readings import HOUR_S, MINUTE_S

#: Idle bins and holdings that one answer looks at; with more its idle hours are not told.
MAX_IDLE_ROWS = 200_000
#: Periods up to this look at readings of minutes.
_MINUTES_S = 6 * HOUR_S
_TAG = "tag="


class UsageBy(StrEnum):
    """Grouping of usage."""

    PROJECT = "project"
    USER = "user"
    TAG = "tag"


#: Column of a job that tells its group. Names of projects and users are read after the sums: text
#: and further joins would take most of the time of summing hundreds of thousands of rows.
_COLUMNS = {
    UsageBy.PROJECT: "project_id",
    UsageBy.USER: "owner_id",
    UsageBy.TAG: "search_terms__term",
}


@dataclass(slots=True)
class UsageRow:
    """Use of a group of jobs.

    Attributes:
        name: of the project, user or tag; empty: jobs without a project.
        hours: kind -> accelerator-hours held.
        idle_hours: of these those with a use below `VIRTUALFLOW_IDLE_PERCENT`; None: not known.
        paused_hours: of these those in which training stood still for a change of accelerators.
        cost: hours times prices; None: no kind has a price.
    """

    name: str
    hours: dict[str, float] = field(default_factory=dict)
    idle_hours: float | None = 0.0
    paused_hours: float = 0.0
    cost: float | None = None

    @property
    def accelerator_hours(self) -> float:
        """Accelerator-hours of all kinds."""
        return sum(self.hours.values())


@dataclass(frozen=True, slots=True)
class Usage:
    """Use between two times, the largest first."""

    since: datetime.datetime
    until: datetime.datetime
    by: UsageBy
    rows: Sequence[UsageRow]
    total: UsageRow
    currency: str


def usage_between(
    person: Person,
    by: UsageBy,
    since: datetime.datetime,
    until: datetime.datetime,
    project: str = "",
) -> Usage:
    """Return the use of accelerators by the jobs that a person sees.

    A job with several tags counts under each of them, and one without under none; `total` counts
    each job once.

    Args:
        project: only jobs of the project of this name.
    """
    jobs = is_seen(person, "job")
    if project:
        jobs &= Q(job__project__name=project)
    prices = dict(AcceleratorPrice.objects.values_list("kind", "per_hour"))
    held = _held(jobs, since, until)
    paused = _paused(jobs, since, until)
    idle = _idle_by_job(since, until)
    rows = _rows(by, held, paused, idle, jobs)
    if by is UsageBy.TAG:
        total = _rows(None, held, paused, idle, jobs).get("", UsageRow(""))
    else:
        # Every job is in exactly one group.
        total = _sum(rows.values())
    for row in (*rows.values(), total):
        priced = [hours * prices[kind] for kind, hours in row.hours.items() if kind in prices]
        row.cost = sum(priced) if priced else None
    order = sorted(rows.values(), key=lambda row: (-row.accelerator_hours, row.name))
    return Usage(since, until, by, order, total, settings.CURRENCY)


def _rows(
    by: UsageBy | None,
    held: QuerySet[Allocation],
    paused: QuerySet[Generation],
    idle: Mapping[int, float] | None,
    jobs: Q,
) -> dict[Any, UsageRow]:
    """Sum up by group; without one all jobs are the group ""."""
    column = Value("") if by is None else F(f"job__{_COLUMNS[by]}")
    if by is UsageBy.TAG:
        held = held.filter(job__search_terms__term__startswith=_TAG)
        paused = paused.filter(job__search_terms__term__startswith=_TAG)
    rows: dict[Any, UsageRow] = defaultdict(
        lambda: UsageRow("", idle_hours=None if idle is None else 0.0)
    )
    kinds = dict(Accelerator.objects.order_by().values_list("pk", "kind"))
    found = held.order_by().annotate(group=column).values_list("group", "accelerator_id")
    for group, accelerator_id, spent in found.annotate(spent=Sum("span")):
        if spent is not None:
            hours, kind = rows[group].hours, kinds[accelerator_id]
            hours[kind] = hours.get(kind, 0.0) + spent.total_seconds() / HOUR_S
    stood = paused.order_by().annotate(group=column).values_list("group")
    for group, seconds in stood.annotate(seconds=Sum("lost_s")):
        rows[group].paused_hours = (seconds or 0.0) / HOUR_S
    for group, seconds in _idle_by_group(by, idle or {}, jobs):
        rows[group].idle_hours = (rows[group].idle_hours or 0.0) + seconds / HOUR_S
    used = {group: row for group, row in rows.items() if row.hours}
    names = _names(by, used)
    for group, row in used.items():
        row.name = names.get(group, "")
    return used


def _names(by: UsageBy | None, groups: Iterable[Any]) -> dict[Any, str]:
    """Return the names of groups, as far as they have any."""
    keys = [group for group in groups if group]
    if by is UsageBy.PROJECT:
        return dict(Project.objects.filter(pk__in=keys).values_list("pk", "name"))
    if by is UsageBy.USER:
        return dict(User.objects.filter(pk__in=keys).values_list("pk", "username"))
    return {key: key.removeprefix(_TAG) for key in keys}


def _sum(rows: Iterable[UsageRow]) -> UsageRow:
    total = UsageRow("")
    for row in rows:
        for kind, hours in row.hours.items():
            total.hours[kind] = total.hours.get(kind, 0.0) + hours
        unknown = row.idle_hours is None or total.idle_hours is None
        total.idle_hours = None if unknown else (total.idle_hours or 0.0) + (row.idle_hours or 0.0)
        total.paused_hours += row.paused_hours
    return total


def _held(jobs: Q, since: datetime.datetime, until: datetime.datetime) -> QuerySet[Allocation]:
    """Return the allocations between two times, with their `span` inside."""
    end = Least(Coalesce(F("released_at"), Value(until)), Value(until))
    span = ExpressionWrapper(end - Greatest(F("granted_at"), Value(since)), DurationField())
    return (
        Allocation.objects.filter(jobs, granted_at__lt=until)
        .filter(Q(released_at=None) | Q(released_at__gt=since))
        .annotate(span=span)
    )


def _paused(jobs: Q, since: datetime.datetime, until: datetime.datetime) -> QuerySet[Generation]:
    """Return the changes of accelerators between two times, with `lost_s` of all their trainers."""
    lost = Cast(F("num_members"), FloatField()) * F("pause_s")
    changes = Generation.objects.filter(jobs, switched_at__gte=since, switched_at__lt=until)
    return changes.exclude(pause_s=None).annotate(lost_s=ExpressionWrapper(lost, FloatField()))


def _idle_by_group(
    by: UsageBy | None, idle: Mapping[int, float], jobs: Q
) -> Iterable[tuple[str | None, float]]:
    """Yield (group, idle seconds) for each job that is counted."""
    if not idle:
        return
    seen = Allocation.objects.filter(jobs, job__in=[*idle]).order_by().values("job")
    rows = Job.objects.filter(pk__in=seen).order_by()
    if by is UsageBy.TAG:
        rows = rows.filter(search_terms__term__startswith=_TAG)
    column = Value("") if by is None else F(_COLUMNS[by])
    for job_id, name in rows.annotate(group=column).values_list("pk", "group"):
        yield name, idle[job_id]


def _idle_by_job(since: datetime.datetime, until: datetime.datetime) -> dict[int, float] | None:
    """Return the seconds in which each job held an accelerator that it hardly used.

    A bin counts if its job held the accelerator from its beginning to its end. None: too many rows.
    """
    width_s = MINUTE_S if (until - since).total_seconds() <= _MINUTES_S else HOUR_S
    bins = ReadingBin.objects.filter(
        width_s=width_s, at__gte=since, at__lt=until, utilisation_percent__lt=settings.IDLE_PERCENT
    ).order_by("at")
    idle: dict[int, list[datetime.datetime]] = defaultdict(list)
    rows = bins.values_list("accelerator_id", "at")[: MAX_IDLE_ROWS + 1]
    for accelerator_id, at in rows:
        idle[accelerator_id].append(at)
    if sum(map(len, idle.values())) > MAX_IDLE_ROWS:
        return None
    held = Allocation.objects.filter(accelerator__in=[*idle], granted_at__lt=until)
    held = held.filter(Q(released_at=None) | Q(released_at__gt=since)).order_by()
    columns = ("accelerator_id", "job_id", "granted_at", "released_at")
    spans = list(held.values_list(*columns)[: MAX_IDLE_ROWS + 1])
    if len(spans) > MAX_IDLE_ROWS:
        return None
    width = datetime.timedelta(seconds=width_s)
    seconds: dict[int, float] = defaultdict(float)
    for accelerator_id, job_id, granted_at, released_at in spans:
        ats = idle[accelerator_id]
        first = bisect_left(ats, granted_at)
        last = len(ats) if released_at is None else bisect_right(ats, released_at - width)
        if last > first:
            seconds[job_id] += (last - first) * width_s
    return dict(seconds)


def usage_table(usage: Usage) -> list[list[Any]]:
    """Return the usage as rows of a table, its headings first and its total last."""
    kinds = sorted({kind for row in usage.rows for kind in row.hours} | {*usage.total.hours})
    currency = f" {usage.currency}" if usage.currency else ""
    heading = [
        usage.by.value, "accelerator hours", *(f"{kind} hours" for kind in kinds),
        "idle hours", "paused hours", f"cost{currency}",
    ]  # fmt: skip
    return [heading, *(_cells(row, kinds) for row in (*usage.rows, usage.total))]


def _cells(row: UsageRow, kinds: Sequence[str]) -> list[Any]:
    by_kind = (row.hours.get(kind, 0.0) for kind in kinds)
    numbers = (row.accelerator_hours, *by_kind, row.idle_hours, row.paused_hours, row.cost)
    return [row.name, *("" if number is None else round(number, 4) for number in numbers)]
