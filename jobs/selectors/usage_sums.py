"""Sums of the use of accelerators from allocations, generations and readings."""

from __future__ import annotations

import datetime
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.conf import settings
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

from jobs.models import Accelerator, Allocation, Generation, Job, ReadingBin, SearchTerm
from jobs.selectors.expressions import IsAnyOf

#: Idle bins and holdings that one period looks at; with more its idle time is not told.
MAX_IDLE_ROWS = 200_000
#: Jobs of a period that are grouped by their own rows. Otherwise the database reads all jobs there
#: are for a join, which takes longer than a day's jobs.
MAX_JOBS = 20_000
#: Columns of a job by which its use can be grouped.
PROJECT, OWNER, TERM = "project_id", "owner_id", "search_terms__term"
#: Beginning of the search terms that are tags.
TAG = "tag="

#: Values of the columns by which jobs are grouped.
Group = tuple[Any, ...]


@dataclass(slots=True)
class Amounts:
    """Use of a group of jobs: time held by kind of accelerator, and seconds wasted of it."""

    held: dict[str, datetime.timedelta] = field(default_factory=dict)
    idle_s: float = 0.0
    paused_s: float = 0.0

    def hold(self, kind: str, time: datetime.timedelta) -> None:
        """Add time on accelerators of a kind."""
        if time:
            self.held[kind] = self.held.get(kind, datetime.timedelta()) + time

    def add(self, other: Amounts) -> None:
        """Add the use of other jobs, or of another time."""
        for kind, time in other.held.items():
            self.hold(kind, time)
        self.idle_s += other.idle_s
        self.paused_s += other.paused_s


class JobTimes(NamedTuple):
    """Use by job: (job, kind, time held), and (job, seconds paused)."""

    held: Sequence[tuple[int, str, datetime.timedelta]]
    paused: Sequence[tuple[int, float]]

    @property
    def jobs(self) -> set[int]:
        return {row[0] for row in self.held} | {row[0] for row in self.paused}


@dataclass(frozen=True, slots=True)
class LivePeriod:
    """Use between two times, summed up from allocations, generations and readings.

    Attributes:
        held: the allocations, with their `span` inside.
        paused: the generations switched to, with the time `lost_s` of all their trainers.
        idle: job -> seconds in which it held an accelerator that it hardly used; None: too many
            readings.
        by_job: use of jobs by their own rows; None: there are too many.
    """

    held: QuerySet[Allocation]
    paused: QuerySet[Generation]
    idle: Mapping[int, float] | None
    by_job: JobTimes | None

    @property
    def has_idle(self) -> bool:
        """True if idle time is known."""
        return self.idle is not None

    def sums(self, columns: Sequence[str]) -> dict[Group, Amounts]:
        """Return the use by groups of jobs with equal columns; by `TERM` of those with tags."""
        if self.by_job is None:
            return self._sums_joined(columns)
        found: dict[Group, Amounts] = defaultdict(Amounts)
        jobs = self.by_job.jobs
        groups: dict[int, list[Amounts]] = defaultdict(list)
        for job_id, *group in _groups(jobs, columns):
            groups[job_id].append(found[tuple(group)])
        for job_id, kind, time in self.by_job.held:
            for amounts in groups.get(job_id, ()):
                amounts.hold(kind, time)
        for job_id, seconds in self.by_job.paused:
            for amounts in groups.get(job_id, ()):
                amounts.paused_s += seconds
        for job_id, seconds in (self.idle or {}).items():
            for amounts in groups.get(job_id, ()):
                amounts.idle_s += seconds
        return found

    def _sums_joined(self, columns: Sequence[str]) -> dict[Group, Amounts]:
        """Let the database join the jobs, all of which it reads."""
        found: dict[Group, Amounts] = defaultdict(Amounts)
        names = [f"job__{column}" for column in columns]
        held, paused = self.held, self.paused
        if TERM in columns:
            tagged = {f"job__{TERM}__startswith": TAG}
            held, paused = held.filter(**tagged), paused.filter(**tagged)
        kinds = dict(Accelerator.objects.order_by().values_list("pk", "kind"))
        grouped = held.order_by().values("accelerator_id", *names)
        for row in grouped.annotate(time=Sum("span")):
            found[group_of(row, names)].hold(kinds[row["accelerator_id"]], row["time"])
        # With no column at all `values` would take every one.
        lost = paused.order_by().annotate(any=Value(1)).values("any", *names)
        for row in lost.annotate(seconds=Sum("lost_s")):
            found[group_of(row, names)].paused_s += row["seconds"] or 0.0
        idle = self.idle or {}
        seen = self.held.filter(job__in=[*idle]).order_by().values_list("job", flat=True)
        for job_id, *group in _groups({*seen}, columns):
            found[tuple(group)].idle_s += idle[job_id]
        return found


def held_over(at: datetime.datetime) -> QuerySet[Allocation]:
    """Return the allocations from before a time to after it."""
    return Allocation.objects.filter(_is_open_after(at), granted_at__lt=at).order_by()


def live_period(
    jobs: Q,
    since: datetime.datetime,
    until: datetime.datetime,
    width_s: int,
    held_over: Sequence[int] | None = None,
) -> LivePeriod:
    """Return a period whose idle time is that of readings over `width_s`.

    Args:
        held_over: numbers of the allocations from before `until` to after it. With them an index
            leads to those of a time long ago, which is a part of all that ended since.
    """
    ended = _is_open_after(since)
    if held_over is not None:
        ended = Q(released_at__gt=since, released_at__lte=until) | Q(pk__in=held_over)
    allocations = Allocation.objects.filter(ended, granted_at__lt=until)
    end = Least(Coalesce(F("released_at"), Value(until)), Value(until))
    span = ExpressionWrapper(end - Greatest(F("granted_at"), Value(since)), DurationField())
    held = allocations.filter(jobs).annotate(span=span)
    lost = ExpressionWrapper(Cast(F("num_members"), FloatField()) * F("pause_s"), FloatField())
    paused = Generation.objects.filter(jobs, switched_at__gte=since, switched_at__lt=until)
    paused = paused.exclude(pause_s=None).annotate(lost_s=lost)
    idle = _idle_by_job(allocations, since, until, width_s)
    return LivePeriod(held, paused, idle, _by_job(held, paused))


def _is_open_after(at: datetime.datetime) -> Q:
    return Q(released_at=None) | Q(released_at__gt=at)


def _by_job(held: QuerySet[Allocation], paused: QuerySet[Generation]) -> JobTimes | None:
    """Return the use by job; None if there are too many jobs."""
    times = held.order_by().values_list("job_id", "accelerator__kind").annotate(time=Sum("span"))
    lost = paused.order_by().values_list("job_id").annotate(seconds=Sum("lost_s"))
    held_rows: list[Any] = list(times[: MAX_JOBS + 1])
    paused_rows: list[Any] = list(lost[: MAX_JOBS + 1])
    found = JobTimes(held_rows, paused_rows)
    return None if max(map(len, found)) > MAX_JOBS else found


def _groups(jobs: Collection[int], columns: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    """Return jobs with their columns, each with every one of its tags."""
    if not columns:
        return ((job_id,) for job_id in jobs)
    if [*columns] == [TERM]:
        terms = SearchTerm.objects.filter(IsAnyOf("job_id", jobs), term__startswith=TAG)
        return terms.order_by().values_list("job_id", "term")
    rows = Job.objects.filter(IsAnyOf("pk", jobs))
    if TERM in columns:
        rows = rows.filter(**{f"{TERM}__startswith": TAG})
    return rows.order_by().values_list("pk", *columns)


def group_of(row: Mapping[str, Any], names: Iterable[str]) -> Group:
    return tuple(row[name] for name in names)


def _idle_by_job(
    allocations: QuerySet[Allocation],
    since: datetime.datetime,
    until: datetime.datetime,
    width_s: int,
) -> dict[int, float] | None:
    """Return the seconds in which each job held an accelerator that it hardly used.

    A bin counts if its job held the accelerator from its beginning to its end. None: too many rows.
    """
    bins = ReadingBin.objects.filter(
        width_s=width_s, at__gte=since, at__lt=until, utilisation_percent__lt=settings.IDLE_PERCENT
    ).order_by("at")
    idle: dict[int, list[datetime.datetime]] = defaultdict(list)
    rows = bins.values_list("accelerator_id", "at")[: MAX_IDLE_ROWS + 1]
    for accelerator_id, at in rows:
        idle[accelerator_id].append(at)
    if sum(map(len, idle.values())) > MAX_IDLE_ROWS:
        return None
    width = datetime.timedelta(seconds=width_s)
    # Shorter ones, which are most where jobs are short, hold no whole bin.
    is_long = Q(released_at=None) | Q(released_at__gte=F("granted_at") + width)
    held = allocations.filter(is_long, accelerator__in=[*idle]).order_by()
    columns = ("accelerator_id", "job_id", "granted_at", "released_at")
    spans = list(held.values_list(*columns)[: MAX_IDLE_ROWS + 1])
    if len(spans) > MAX_IDLE_ROWS:
        return None
    seconds: dict[int, float] = defaultdict(float)
    for accelerator_id, job_id, granted_at, released_at in spans:
        ats = idle[accelerator_id]
        first = bisect_left(ats, granted_at)
        last = len(ats) if released_at is None else bisect_right(ats, released_at - width)
        if last > first:
            seconds[job_id] += (last - first) * width_s
    return dict(seconds)
