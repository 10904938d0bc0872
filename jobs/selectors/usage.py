"""Use of accelerators over a time, by project, user or tag: hours, waste and cost."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Q

from jobs.models import Accelerator, AcceleratorPrice, Allocation, Job, Project
from jobs.selectors.access import Person, is_seen
from jobs.selectors.readings import HOUR_S
from jobs.selectors.usage_periods import Period, usage_periods
from jobs.selectors.usage_sums import OWNER, PROJECT, TAG, TERM, Amounts, Group


def accelerator_seconds(jobs: Iterable[Job], now: datetime.datetime) -> dict[int, float]:
    """Return the accelerator-seconds of jobs by number, of those that they hold now up to `now`."""
    held_s = {job.pk: job.attained_accelerator_s for job in jobs}
    present = Allocation.objects.filter(job__in=held_s, released_at=None)
    for job_id, granted_at in present.values_list("job_id", "granted_at"):
        held_s[job_id] += max(0.0, (now - granted_at).total_seconds())
    return held_s


class UsageBy(StrEnum):
    """Grouping of usage."""

    PROJECT = "project"
    USER = "user"
    TAG = "tag"


#: Column of a job that tells its group. Names of projects and users are read after the sums: text
#: and further joins would take most of the time of summing hundreds of thousands of rows.
_COLUMNS = {UsageBy.PROJECT: PROJECT, UsageBy.USER: OWNER, UsageBy.TAG: TERM}


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
    jobs, owned = is_seen(person, "job"), is_seen(person)
    if project:
        jobs &= Q(job__project__name=project)
        owned &= Q(project__name=project)
    prices = accelerator_prices()
    periods = usage_periods(jobs, owned, since, until)
    sums = _sums(periods, [_COLUMNS[by]])
    if by is UsageBy.TAG:
        total = _sums(periods, []).get((), Amounts())
    else:
        # Every job is in exactly one group.
        total = Amounts()
        for amounts in sums.values():
            total.add(amounts)
    has_idle = all(period.has_idle for period in periods)
    names = _names(by, [group[0] for group in sums])
    rows = [
        _row(names.get(group, ""), amounts, has_idle, prices) for (group,), amounts in sums.items()
    ]
    rows.sort(key=lambda row: (-row.accelerator_hours, row.name))
    return Usage(since, until, by, rows, _row("", total, has_idle, prices), settings.CURRENCY)


def accelerator_kinds(*, with_removed: bool = False) -> list[str]:
    """Return the kinds of all accelerators of the cluster, sorted.

    Args:
        with_removed: also those of nodes that were removed.
    """
    rows = Accelerator.objects.order_by()
    if not with_removed:
        rows = rows.filter(node__removed_at=None)
    return sorted({*rows.values_list("kind", flat=True).distinct()})


def accelerator_prices() -> dict[str, float]:
    """Return the prices of an hour by kind of accelerator, of the kinds that have one."""
    return dict(AcceleratorPrice.objects.order_by().values_list("kind", "per_hour"))


def _sums(periods: Iterable[Period], columns: Sequence[str]) -> dict[Group, Amounts]:
    """Return the use by group of those that held accelerators."""
    sums: dict[Group, Amounts] = defaultdict(Amounts)
    for period in periods:
        for group, amounts in period.sums(columns).items():
            sums[group].add(amounts)
    return {group: amounts for group, amounts in sums.items() if amounts.held}


def _row(name: str, amounts: Amounts, has_idle: bool, prices: Mapping[str, float]) -> UsageRow:
    hours = {kind: time.total_seconds() / HOUR_S for kind, time in sorted(amounts.held.items())}
    priced = [number * prices[kind] for kind, number in hours.items() if kind in prices]
    return UsageRow(
        name,
        hours,
        idle_hours=amounts.idle_s / HOUR_S if has_idle else None,
        paused_hours=amounts.paused_s / HOUR_S,
        cost=sum(priced) if priced else None,
    )


def _names(by: UsageBy, groups: Iterable[Any]) -> dict[Any, str]:
    """Return the names of groups, as far as they have any."""
    keys = [group for group in groups if group]
    if by is UsageBy.PROJECT:
        return dict(Project.with_deleted.filter(pk__in=keys).values_list("pk", "name"))
    if by is UsageBy.USER:
        return dict(User.objects.filter(pk__in=keys).values_list("pk", "username"))
    return {key: key.removeprefix(TAG) for key in keys}


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
