"""Use of accelerators on days that are summed up, and at the other times."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings
from django.db.models import F, Q, Sum

from jobs.models import UsageDay, UsageSum
from jobs.selectors.readings import HOUR_S, MINUTE_S
from jobs.selectors.usage_sums import TERM, Amounts, Group, LivePeriod, group_of, live_period

#: Periods up to this look at readings of minutes.
_MINUTES_S = 6 * HOUR_S
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class SummedDays:
    """Use on days that are summed up.

    Attributes:
        jobs: condition on the project and the owner of jobs.
        until: the day after the last one.
    """

    jobs: Q
    since: datetime.date
    until: datetime.date
    has_idle: bool

    def sums(self, columns: Sequence[str]) -> dict[Group, Amounts]:
        """Return the use as `LivePeriod` does."""
        own = [column.removeprefix("search_terms__") for column in columns]
        tagged = ~Q(term="") if TERM in columns else Q(term="")
        rows = UsageSum.objects.filter(self.jobs, tagged, day__gte=self.since, day__lt=self.until)
        found: dict[Group, Amounts] = defaultdict(Amounts)
        grouped = rows.order_by().values("kind", *own)
        sums = {"time": Sum("held"), "idle": Sum("idle_s"), "paused": Sum("paused_s")}
        for row in grouped.annotate(**sums):
            amounts = found[group_of(row, own)]
            amounts.hold(row["kind"], row["time"])
            amounts.idle_s += row["idle"]
            amounts.paused_s += row["paused"]
        return found


Period = LivePeriod | SummedDays


def usage_periods(
    jobs: Q, owned: Q, since: datetime.datetime, until: datetime.datetime
) -> list[Period]:
    """Return a time in parts: its whole days up to the first that is not summed up, and the rest.

    Args:
        jobs: condition on the field `job`.
        owned: the same on the project and the owner of jobs.
    """
    width_s = MINUTE_S if (until - since).total_seconds() <= _MINUTES_S else HOUR_S
    begin = since.astimezone(datetime.UTC).date()
    begin += _DAY if day_start(begin) < since else datetime.timedelta()
    days = days_summed(begin, until.astimezone(datetime.UTC).date())
    end = begin
    while end in days:
        end += _DAY
    if end == begin:
        return [live_period(jobs, since, until, width_s)]
    has_idle = all(days[day] for day in days_between(begin, end))
    parts: list[Period] = [SummedDays(owned, begin, end, has_idle)]
    if since < day_start(begin):
        over = UsageDay.objects.values_list("held_over", flat=True).get(day=begin)
        parts.append(live_period(jobs, since, day_start(begin), width_s, over))
    if day_start(end) < until:
        parts.append(live_period(jobs, day_start(end), until, width_s))
    return parts


def days_summed(since: datetime.date, until: datetime.date) -> dict[datetime.date, bool]:
    """Return the days before `until` whose sums hold, and of each whether idle time is known."""
    rows = UsageDay.objects.filter(day__gte=since, day__lt=until, summed_revision=F("revision"))
    rows = rows.filter(idle_percent=settings.IDLE_PERCENT)
    return dict(rows.values_list("day", "has_idle"))


def day_start(day: datetime.date) -> datetime.datetime:
    """Return the beginning of a day in UTC."""
    return datetime.datetime.combine(day, datetime.time(), datetime.UTC)


def days_between(since: datetime.date, until: datetime.date) -> list[datetime.date]:
    """Return the days from `since` on that are before `until`."""
    return [since + number * _DAY for number in range((until - since).days)]
