"""Sums of the use of accelerators by day, and their renewal when a past day changes.

A sum is of the past, which services change in two ways only: by the tags of a job, and by a late
report of a pause. Both raise the day's revision in their own transaction. The revision is read
before the rows and compared after them, so a change in between leaves the day to be summed again.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence

from django.conf import settings
from django.db import transaction
from django.db.models import F, Max, Min, Q, Value
from django.db.models.functions import Coalesce

from jobs.models import Allocation, Job, UsageDay, UsageSum
from jobs.selectors.readings import HOUR_S
from jobs.selectors.usage_periods import day_start, days_between, days_summed
from jobs.selectors.usage_sums import (
    OWNER,
    PROJECT,
    TERM,
    Amounts,
    Group,
    held_over,
    live_period,
)

#: Days that one run of the task sums up.
DAYS_AT_ONCE = 10
#: Time after the end of a day in which its last rows are stored.
SETTLED_AFTER = datetime.timedelta(hours=1)
#: Longest past that is summed up, as long as a usage may be asked for.
_PAST = datetime.timedelta(days=3660)


def usage_days_sum(now: datetime.datetime) -> int:
    """Sum up days that are over and have no sums that hold, the newest first; return how many."""
    released = Allocation.objects.exclude(released_at=None).order_by("released_at")
    oldest = released.values_list("granted_at", flat=True).first()
    if oldest is None:
        return 0
    since = max(oldest, now - _PAST).astimezone(datetime.UTC).date()
    until = (now - SETTLED_AFTER).astimezone(datetime.UTC).date()
    known = days_summed(since, until)
    missing = [day for day in reversed(days_between(since, until)) if day not in known]
    return sum(_day_sum(day) for day in missing[:DAYS_AT_ONCE])


def jobs_usage_changed(jobs: Sequence[Job], now: datetime.datetime) -> None:
    """Let the days that are over be summed up again in which jobs held accelerators."""
    released_at = Coalesce(F("released_at"), Value(now))
    held = Allocation.objects.filter(job__in=jobs).order_by().values("job")
    spans = held.annotate(since=Min("granted_at"), until=Max(released_at))
    _changed(spans.values_list("since", "until"), now)


def usage_changed(
    since: datetime.datetime, until: datetime.datetime, now: datetime.datetime
) -> None:
    """Let the days that are over be summed up again from one time to another, both included.

    To be called in the transaction of the change: the rows that it writes make a sum that is under
    way wait for its end, and then fail.
    """
    _changed([(since, until)], now)


def _changed(
    spans: Iterable[tuple[datetime.datetime, datetime.datetime]], now: datetime.datetime
) -> None:
    days: set[datetime.date] = set()
    for span in spans:
        first, last, today = (time.astimezone(datetime.UTC).date() for time in (*span, now))
        days.update(days_between(first, min(last + datetime.timedelta(days=1), today)))
    if days:
        UsageDay.objects.bulk_create([UsageDay(day=day) for day in days], ignore_conflicts=True)
        rows = UsageDay.objects.filter(day__in=days)
        # Locked in one order, so that two changes cannot wait for each other.
        list(rows.select_for_update(no_key=True).order_by("day"))
        rows.update(revision=F("revision") + 1)


def _day_sum(day: datetime.date) -> bool:
    """Store the sums of a day in place of earlier ones; return False if the day changed."""
    row, _ = UsageDay.objects.get_or_create(day=day)
    start = day_start(day)
    period = live_period(Q(), start, start + datetime.timedelta(days=1), HOUR_S)
    over = list(held_over(start).values_list("pk", flat=True))
    sums = list(_rows(day, period.sums([PROJECT, OWNER])))
    sums += _rows(day, period.sums([PROJECT, OWNER, TERM]))
    with transaction.atomic():
        unchanged = UsageDay.objects.filter(pk=row.pk, revision=row.revision)
        if not unchanged.update(
            summed_revision=row.revision,
            idle_percent=settings.IDLE_PERCENT,
            has_idle=period.has_idle,
            held_over=over,
        ):
            return False
        UsageSum.objects.filter(day=day).delete()
        UsageSum.objects.bulk_create(sums, 1000)
    return True


def _rows(day: datetime.date, sums: Mapping[Group, Amounts]) -> Iterator[UsageSum]:
    for (project_id, owner_id, *term), amounts in sums.items():
        group = {"day": day, "project_id": project_id, "owner_id": owner_id, "term": "".join(term)}
        for kind, held in amounts.held.items():
            yield UsageSum(**group, kind=kind, held=held)
        if amounts.idle_s or amounts.paused_s:
            yield UsageSum(**group, idle_s=amounts.idle_s, paused_s=amounts.paused_s)
